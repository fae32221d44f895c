/* Matrix products that launch one kernel and compute nothing. What a call does not need of its arguments is not declared. */

#include "stub.h"
#include <stdlib.h>
#include <string.h>

typedef struct Handle {
    cudaStream_t stream;
    void *workspace;
    size_t workspace_bytes;
    int mode, pointers;
} Handle;

int cublasCreate_v2(Handle **out) {
    UNSAFE(); /* the real one allocates memory */
    *out = calloc(1, sizeof(Handle));
    return 0;
}
int cublasDestroy_v2(Handle *handle) { free(handle); return 0; }
int cublasSetStream_v2(Handle *handle, cudaStream_t stream) { handle->stream = stream; return 0; }
int cublasSetMathMode(Handle *handle, int mode) { handle->mode = mode; return 0; }
int cublasGetMathMode(Handle *handle, int *mode) { *mode = handle->mode; return 0; }
int cublasSetPointerMode_v2(Handle *handle, int mode) { handle->pointers = mode; return 0; }
int cublasGetPointerMode_v2(Handle *handle, int *mode) { *mode = handle->pointers; return 0; }
int cublasSetWorkspace_v2(Handle *handle, void *workspace, size_t size) { handle->workspace = workspace, handle->workspace_bytes = size; return 0; }

static int product(const char *name, cudaStream_t stream, void *workspace, size_t size) {
    stub_log("launch %d %s", stub_stream(stream)->number, name);
    if (size) stub_log("workspace %d %p %zu", stub_stream(stream)->number, workspace, size);
    return stub_issue(name, stream, (Node){.work = KERNEL}) ? 13 : 0; /* CUBLAS_STATUS_EXECUTION_FAILED */
}

#define PRODUCT(name) int name(Handle *handle) { return product(#name, handle->stream, handle->workspace, handle->workspace_bytes); }
PRODUCT(cublasSgemm_v2) PRODUCT(cublasDgemm_v2) PRODUCT(cublasSgemmEx) PRODUCT(cublasGemmEx) PRODUCT(cublasSgemv_v2) PRODUCT(cublasDgemv_v2)
PRODUCT(cublasSgemmStridedBatched) PRODUCT(cublasDgemmStridedBatched) PRODUCT(cublasGemmStridedBatchedEx) PRODUCT(cublasSdot_v2)

/* Descriptions hold nothing. */
#define DESCRIBE(name) \
    int cublasLt##name##Create(void **out) { *out = malloc(1); return 0; } \
    int cublasLt##name##Destroy(void *description) { free(description); return 0; } \
    int cublasLt##name##SetAttribute(void *description) { return 0; }
DESCRIBE(MatmulDesc) DESCRIBE(MatmulPreference) DESCRIBE(MatrixLayout)

size_t cublasLtGetVersion(void) { return 130100; }
int cublasLtMatmulAlgoGetHeuristic(
    void *handle, void *product, void *a, void *b, void *c, void *d, void *preference, int requested, void *results, int *count) {
    *count = 1;
    return 0;
}
int cublasLtMatmul(
    void *handle, void *product_, void *alpha, void *a, void *a_, void *b, void *b_, void *beta, void *c, void *c_, void *d, void *d_,
    void *algorithm, void *workspace, size_t size, cudaStream_t stream) {
    return product("cublasLtMatmul", stream, workspace, size);
}
