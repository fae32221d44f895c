/* The functions of libcuda that PyTorch, cuda.bindings and the executor ask for. */

#include "stub.h"
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#undef cuGetProcAddress
#undef cuDevicePrimaryCtxRelease

static int context; /* its address is the primary context */

static CUresult unsupported(void) { return CUDA_ERROR_NOT_SUPPORTED; }

/* A function of this library by its name, with or without a version; else one that says that it is not supported. */
static void *function(const char *symbol) {
    static void *self;
    if (!self) {
        Dl_info info;
        dladdr(&context, &info);
        self = dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
    }
    void *found = dlsym(self, symbol);
    return found ? found : (void *)unsupported;
}

cudaError_t cudaGetDriverEntryPointByVersion(
    const char *symbol, void **out, unsigned version, unsigned long long flags, enum cudaDriverEntryPointQueryResult *status) {
    *out = function(symbol);
    if (status) *status = cudaDriverEntryPointSuccess;
    return cudaSuccess;
}

CUresult cuGetProcAddress_v2(const char *symbol, void **out, int version, cuuint64_t flags, CUdriverProcAddressQueryResult *status) {
    *out = function(symbol);
    if (status) *status = CU_GET_PROC_ADDRESS_SUCCESS;
    return CUDA_SUCCESS;
}

CUresult cuGetProcAddress(const char *symbol, void **out, int version, cuuint64_t flags) {
    return cuGetProcAddress_v2(symbol, out, version, flags, NULL);
}

/* NVRTC looks for undocumented tables once there is a driver. */
CUresult cuGetExportTable(const void **out, const CUuuid *id) { return CUDA_ERROR_NOT_FOUND; }
CUresult cuInit(unsigned flags) { return CUDA_SUCCESS; }
CUresult cuDriverGetVersion(int *version) { *version = CUDA_VERSION; return CUDA_SUCCESS; }
CUresult cuDeviceGetCount(int *count) { *count = 1; return CUDA_SUCCESS; }
CUresult cuDeviceGet(CUdevice *device, int ordinal) { *device = ordinal; return CUDA_SUCCESS; }
/* The runtime's numbers of attributes are the driver's. */
CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
    return (CUresult)cudaDeviceGetAttribute(value, (enum cudaDeviceAttr)attribute, device);
}
CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active) { *flags = 0, *active = 1; return CUDA_SUCCESS; }
CUresult cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice device) { *out = (CUcontext)&context; return CUDA_SUCCESS; }
CUresult cuCtxGetCurrent(CUcontext *out) { *out = (CUcontext)&context; return CUDA_SUCCESS; }
CUresult cuCtxSetCurrent(CUcontext current) { return CUDA_SUCCESS; }
CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest) { return (CUresult)cudaDeviceGetStreamPriorityRange(least, greatest); }
CUresult cuStreamCreateWithPriority(CUstream *out, unsigned flags, int priority) {
    return (CUresult)cudaStreamCreateWithPriority((cudaStream_t *)out, flags, priority);
}
CUresult cuLaunchHostFunc(CUstream stream, CUhostFn call, void *argument) { return (CUresult)cudaLaunchHostFunc(stream, call, argument); }
CUresult cuGetErrorString(CUresult error, const char **out) { *out = cudaGetErrorName((cudaError_t)error); return CUDA_SUCCESS; }
CUresult cuGetErrorName(CUresult error, const char **out) { return cuGetErrorString(error, out); }

/* Modules that NVRTC has compiled: a function is a copy of its name. */
CUresult cuModuleLoadData(CUmodule *out, const void *image) { *out = (CUmodule)&context; return (CUresult)stub_unsafe(__func__); }
CUresult cuModuleGetFunction(CUfunction *out, CUmodule module, const char *name) { *out = (CUfunction)strdup(name); return CUDA_SUCCESS; }
CUresult cuModuleUnload(CUmodule module) { return CUDA_SUCCESS; }
CUresult cuFuncSetAttribute(CUfunction kernel, CUfunction_attribute attribute, int value) { return CUDA_SUCCESS; }
CUresult cuLaunchKernel(
    CUfunction kernel, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, CUstream stream,
    void **arguments, void **extra) {
    stub_log("launch %d %s", stub_stream(stream)->number, (const char *)kernel);
    return (CUresult)stub_issue(__func__, stream, (Node){.work = KERNEL});
}

/* Green contexts. A context is the number of its SMs. */

static CUdevResource sms(unsigned count) {
    CUdevResource resource = {.type = CU_DEV_RESOURCE_TYPE_SM};
    resource.sm.smCount = count, resource.sm.minSmPartitionSize = resource.sm.smCoscheduledAlignment = 8;
    return resource;
}

CUresult cuDeviceGetDevResource(CUdevice device, CUdevResource *out, CUdevResourceType type) { *out = sms(132); return CUDA_SUCCESS; }
CUresult cuDevSmResourceSplitByCount(
    CUdevResource *out, unsigned *groups, const CUdevResource *whole, CUdevResource *rest, unsigned flags, unsigned least) {
    unsigned fit = whole->sm.smCount / least;
    *groups = *groups < fit ? *groups : fit;
    for (unsigned i = 0; out && i < *groups; i++) out[i] = sms(least);
    if (rest) *rest = sms(whole->sm.smCount - *groups * least);
    return CUDA_SUCCESS;
}
CUresult cuDevResourceGenerateDesc(CUdevResourceDesc *out, CUdevResource *resources, unsigned count) {
    *out = (CUdevResourceDesc)(size_t)resources->sm.smCount;
    return CUDA_SUCCESS;
}
CUresult cuGreenCtxCreate(CUgreenCtx *out, CUdevResourceDesc description, CUdevice device, unsigned flags) {
    *out = (CUgreenCtx)description;
    return CUDA_SUCCESS;
}
CUresult cuGreenCtxGetDevResource(CUgreenCtx green, CUdevResource *out, CUdevResourceType type) {
    *out = sms((unsigned)(size_t)green);
    return CUDA_SUCCESS;
}
CUresult cuGreenCtxStreamCreate(CUstream *out, CUgreenCtx green, unsigned flags, int priority) {
    return cuStreamCreateWithPriority(out, flags, priority);
}
