/* Memory of the device and pinned memory, copies and fills. */

#include "stub.h"
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define DEVICE_BYTES (80ull << 30)

typedef struct Block {
    char *begin;
    size_t size;
    bool at_host;
} Block;

static Block *blocks;
static size_t block_count;
static size_t used_bytes;

/* The block that holds an address; NULL if the library did not allocate it. */
static Block *block_of(const void *address) {
    for (size_t i = 0; i < block_count; i++)
        if (blocks[i].begin && (const char *)address >= blocks[i].begin && (const char *)address < blocks[i].begin + blocks[i].size) return &blocks[i];
    return NULL;
}

/* Pages that hold zeros and take no memory before they are written. */
static cudaError_t allocate(const char *function, void **out, size_t size, bool at_host) {
    cudaError_t error = stub_unsafe(function);
    if (error) return error;
    if (!at_host && used_bytes + size > DEVICE_BYTES) return stub_refuse(function, cudaErrorMemoryAllocation);
    size = (size + 4095) & ~4095ull;
    *out = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (*out == MAP_FAILED) return stub_refuse(function, cudaErrorMemoryAllocation);
    blocks = realloc(blocks, sizeof(Block) * (block_count + 1));
    blocks[block_count++] = (Block){*out, size, at_host};
    used_bytes += at_host ? 0 : size;
    stub_log("%s %p %zu", at_host ? "malloc_host" : "malloc", *out, size);
    return cudaSuccess;
}

static cudaError_t release(const char *function, void *address) {
    cudaError_t error = stub_unsafe(function);
    if (error || !address) return error;
    Block *block = block_of(address);
    if (!block || block->begin != address) return stub_refuse(function, cudaErrorInvalidValue);
    stub_log("%s %p %zu", block->at_host ? "free_host" : "free", address, block->size);
    munmap(block->begin, block->size);
    used_bytes -= block->at_host ? 0 : block->size;
    block->begin = NULL;
    return cudaSuccess;
}

cudaError_t cudaMalloc(void **out, size_t size) { return allocate(__func__, out, size, false); }
cudaError_t cudaHostAlloc(void **out, size_t size, unsigned flags) { return allocate(__func__, out, size, true); }
cudaError_t cudaFree(void *address) { return release(__func__, address); }
cudaError_t cudaFreeHost(void *address) { return release(__func__, address); }

cudaError_t cudaMemGetInfo(size_t *available, size_t *total) {
    *available = DEVICE_BYTES - used_bytes, *total = DEVICE_BYTES;
    return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *out, const void *address) {
    Block *block = block_of(address);
    memset(out, 0, sizeof(*out));
    out->type = !block ? cudaMemoryTypeUnregistered : block->at_host ? cudaMemoryTypeHost : cudaMemoryTypeDevice;
    out->device = block && !block->at_host ? 0 : -1;
    out->devicePointer = block ? (void *)address : NULL;
    out->hostPointer = block && block->at_host ? (void *)address : NULL;
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *target, const void *source, size_t size, enum cudaMemcpyKind kind, cudaStream_t stream) {
    stub_log("copy %d %p %p %zu", stub_stream(stream)->number, target, source, size);
    return stub_issue(__func__, stream, (Node){.work = COPY, .target = target, .source = source, .size = size});
}

cudaError_t cudaMemcpyPeerAsync(void *target, int to, const void *source, int from, size_t size, cudaStream_t stream) {
    return cudaMemcpyAsync(target, source, size, cudaMemcpyDefault, stream);
}

cudaError_t cudaMemcpy2DAsync(
    void *target, size_t target_pitch, const void *source, size_t source_pitch, size_t width, size_t height, enum cudaMemcpyKind kind,
    cudaStream_t stream) {
    cudaError_t error = cudaSuccess;
    for (size_t row = 0; row < height && !error; row++)
        error = cudaMemcpyAsync((char *)target + row * target_pitch, (const char *)source + row * source_pitch, width, kind, stream);
    return error;
}

cudaError_t cudaMemsetAsync(void *target, int value, size_t size, cudaStream_t stream) {
    stub_log("fill %d %p %zu", stub_stream(stream)->number, target, size);
    return stub_issue(__func__, stream, (Node){.work = FILL, .target = target, .value = value, .size = size});
}

/* Calls that wait for the legacy stream. */

cudaError_t cudaMemcpy(void *target, const void *source, size_t size, enum cudaMemcpyKind kind) {
    UNSAFE();
    cudaError_t error = cudaMemcpyAsync(target, source, size, kind, NULL);
    return error ? error : cudaStreamSynchronize(NULL);
}

cudaError_t cudaMemset(void *target, int value, size_t size) {
    UNSAFE();
    return cudaMemsetAsync(target, value, size, NULL);
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *argument) {
    stub_log("call %d", stub_stream(stream)->number);
    return stub_issue(__func__, stream, (Node){.work = CALL, .function = function, .target = argument});
}
