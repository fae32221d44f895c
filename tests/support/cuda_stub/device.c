/* One device with the figures of an H100, the kernels of the program, and the names of errors. */

#include "stub.h"
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

cudaError_t cudaGetDeviceCount(int *count) { *count = 1; return cudaSuccess; }
cudaError_t cudaGetDevice(int *device) { *device = 0; return cudaSuccess; }
cudaError_t cudaSetDevice(int device) { return device == 0 ? cudaSuccess : stub_refuse(__func__, cudaErrorInvalidDevice); }
cudaError_t cudaDriverGetVersion(int *version) { *version = CUDART_VERSION; return cudaSuccess; }
cudaError_t cudaRuntimeGetVersion(int *version) { *version = CUDART_VERSION; return cudaSuccess; }
cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer) { *can = 0; return cudaSuccess; }

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *out, int device) {
    memset(out, 0, sizeof(*out));
    strcpy(out->name, "NVIDIA H100 80GB HBM3");
    memcpy(out->uuid.bytes, "a stub, no GPU..", 16);
    out->major = 9;
    out->multiProcessorCount = 132;
    out->totalGlobalMem = 80ull << 30;
    out->l2CacheSize = 50 << 20;
    out->warpSize = 32;
    out->maxThreadsPerBlock = out->maxThreadsDim[0] = out->maxThreadsDim[1] = 1024;
    out->maxThreadsDim[2] = 64;
    out->maxGridSize[0] = INT32_MAX;
    out->maxGridSize[1] = out->maxGridSize[2] = 65535;
    out->maxThreadsPerMultiProcessor = 2048;
    out->maxBlocksPerMultiProcessor = 32;
    out->regsPerBlock = out->regsPerMultiprocessor = 65536;
    out->sharedMemPerBlock = 48 << 10;
    out->sharedMemPerBlockOptin = 227 << 10;
    out->sharedMemPerMultiprocessor = 228 << 10;
    out->totalConstMem = 64 << 10;
    out->textureAlignment = 512;
    out->memoryBusWidth = 5120;
    out->concurrentKernels = out->unifiedAddressing = out->canMapHostMemory = out->streamPrioritiesSupported = out->cooperativeLaunch = 1;
    out->asyncEngineCount = 3;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device) {
    switch (attribute) {
        case cudaDevAttrMaxThreadsPerBlock: *value = 1024; break;
        case cudaDevAttrMultiProcessorCount: *value = 132; break;
        case cudaDevAttrMaxThreadsPerMultiProcessor: *value = 2048; break;
        case cudaDevAttrMaxBlocksPerMultiprocessor: *value = 32; break;
        case cudaDevAttrComputeCapabilityMajor: *value = 9; break;
        case cudaDevAttrMaxSharedMemoryPerBlock: *value = 48 << 10; break;
        case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = 227 << 10; break;
        case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = 228 << 10; break;
        case cudaDevAttrMaxRegistersPerBlock: *value = 65536; break;
        case cudaDevAttrWarpSize: *value = 32; break;
        case cudaDevAttrMaxGridDimX: *value = INT32_MAX; break;
        case cudaDevAttrMaxGridDimY: case cudaDevAttrMaxGridDimZ: *value = 65535; break;
        default: *value = 0;
    }
    return cudaSuccess;
}

/* Kernels, by the address of their stub on the host. */

#define ROOM (1 << 18)
static struct { const void *stub; const char *name; } kernels[ROOM];

static size_t place_of(const void *stub) {
    size_t place = ((uintptr_t)stub * 0x9E3779B97F4A7C15ull) >> 46;
    while (kernels[place].stub && kernels[place].stub != stub) place = (place + 1) % ROOM;
    return place;
}

static const char *name_of(const void *stub) {
    const char *name = kernels[place_of(stub)].name;
    return name ? name : "?";
}

void **__cudaRegisterFatBinary(void *binary) { static void *handle; return &handle; }
void __cudaRegisterFatBinaryEnd(void **handle) {}
void __cudaUnregisterFatBinary(void **handle) {}
char __cudaInitModule(void **handle) { return 0; }
void __cudaRegisterVar(void **handle, char *var, char *address, const char *name, int external, size_t size, int constant, int global) {}

void __cudaRegisterFunction(
    void **handle, const char *stub, char *address, const char *name, int threads, void *tid, void *bid, dim3 *block, dim3 *grid, int *warp) {
    size_t place = place_of(stub);
    kernels[place].stub = stub, kernels[place].name = name;
}

/* A launch in angle brackets is three calls: the shape is pushed, popped, and given to the launch. */
static __thread struct { dim3 grid, block; size_t shared; void *stream; } shape;

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void *stream) {
    shape.grid = grid, shape.block = block, shape.shared = shared, shape.stream = stream;
    return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream) {
    *grid = shape.grid, *block = shape.block, *shared = shape.shared, *(void **)stream = shape.stream;
    return cudaSuccess;
}

static cudaError_t launch(const char *function, const void *stub, dim3 grid, dim3 block, cudaStream_t stream) {
    unsigned long long threads = (unsigned long long)block.x * block.y * block.z;
    stub_log("launch %d %s", stub_stream(stream)->number, name_of(stub));
    if (!grid.x || !grid.y || !grid.z || grid.y > 65535 || grid.z > 65535 || !threads || threads > 1024)
        return stub_refuse(function, cudaErrorInvalidConfiguration);
    return stub_issue(function, stream, (Node){.work = KERNEL});
}

cudaError_t __cudaGetKernel(cudaKernel_t *out, const void *stub) { *out = (cudaKernel_t)stub; return cudaSuccess; }
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **arguments, size_t shared, cudaStream_t stream) {
    return launch(__func__, kernel, grid, block, stream);
}
cudaError_t cudaLaunchKernel(const void *stub, dim3 grid, dim3 block, void **arguments, size_t shared, cudaStream_t stream) {
    return launch(__func__, stub, grid, block, stream);
}
cudaError_t cudaLaunchCooperativeKernel(const void *stub, dim3 grid, dim3 block, void **arguments, size_t shared, cudaStream_t stream) {
    return launch(__func__, stub, grid, block, stream);
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *stub, void **arguments) {
    return launch(__func__, stub, config->gridDim, config->blockDim, config->stream);
}

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *out, const void *stub) {
    memset(out, 0, sizeof(*out));
    out->maxThreadsPerBlock = 1024, out->numRegs = 32, out->binaryVersion = out->ptxVersion = 90;
    return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void *stub, enum cudaFuncAttribute attribute, int value) { return cudaSuccess; }
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *stub, int threads, size_t shared) {
    *blocks = threads > 0 ? 2048 / threads : 1;
    return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *stub, int threads, size_t shared, unsigned flags) {
    return cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks, stub, threads, shared);
}

/* Errors. */

const char *cudaGetErrorName(cudaError_t error) {
#define NAME(name) case name: return #name;
    switch (error) {
        NAME(cudaSuccess) NAME(cudaErrorNotReady) NAME(cudaErrorInvalidValue) NAME(cudaErrorMemoryAllocation) NAME(cudaErrorInvalidDevice)
        NAME(cudaErrorInvalidConfiguration) NAME(cudaErrorInvalidResourceHandle) NAME(cudaErrorIllegalState) NAME(cudaErrorNotSupported)
        NAME(cudaErrorStreamCaptureUnsupported) NAME(cudaErrorStreamCaptureInvalidated) NAME(cudaErrorStreamCaptureMerge)
        NAME(cudaErrorStreamCaptureUnmatched) NAME(cudaErrorStreamCaptureUnjoined) NAME(cudaErrorStreamCaptureIsolation)
        NAME(cudaErrorStreamCaptureImplicit) NAME(cudaErrorCapturedEvent) NAME(cudaErrorStreamCaptureWrongThread)
        default: return "cudaErrorUnknown";
    }
}

const char *cudaGetErrorString(cudaError_t error) { return cudaGetErrorName(error); }
