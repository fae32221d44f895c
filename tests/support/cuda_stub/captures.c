/* Captures and graphs. */

#include "stub.h"
#include <stdlib.h>
#include <string.h>

static __thread enum cudaStreamCaptureMode thread_mode = cudaStreamCaptureModeGlobal;
static Capture **captures; /* all, also ended ones: events point to them */
static size_t capture_count;

bool stub_end_captures(void) {
    bool any = false;
    for (size_t i = 0; i < capture_count; i++)
        if (!captures[i]->ended) captures[i]->invalid = any = true;
    return any;
}

/* cudaThreadExchangeStreamCaptureMode documents which captures forbid potentially unsafe calls to which threads. */
static bool forbids(const Capture *capture) {
    bool own = pthread_equal(capture->thread, pthread_self());
    if (capture->ended || capture->invalid || thread_mode == cudaStreamCaptureModeRelaxed || capture->mode == cudaStreamCaptureModeRelaxed)
        return false;
    return own || (thread_mode == cudaStreamCaptureModeGlobal && capture->mode == cudaStreamCaptureModeGlobal);
}

cudaError_t stub_unsafe(const char *function) {
    cudaError_t error = cudaSuccess;
    for (size_t i = 0; i < capture_count; i++)
        if (forbids(captures[i])) {
            captures[i]->invalid = true;
            error = cudaErrorStreamCaptureUnsupported;
        }
    return stub_refuse(function, error);
}

cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode) {
    enum cudaStreamCaptureMode before = thread_mode;
    thread_mode = *mode, *mode = before;
    return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t handle, enum cudaStreamCaptureMode mode) {
    Stream *stream = stub_stream(handle);
    if (stream == stub_stream(NULL)) REFUSE(cudaErrorStreamCaptureUnsupported);
    if (stream->capture) REFUSE(cudaErrorIllegalState);
    Capture *capture = calloc(1, sizeof(Capture));
    *capture = (Capture){.id = capture_count + 1, .mode = mode, .thread = pthread_self(), .origin = stream, .graph = calloc(1, sizeof(Graph))};
    captures = realloc(captures, sizeof(Capture *) * (capture_count + 1));
    captures[capture_count++] = stream->capture = capture;
    memset(&stream->reached, 0, sizeof(Reached));
    stub_log("begin %d %llu %d", stream->number, capture->id, (int)mode);
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t *out) {
    Stream *stream = stub_stream(handle);
    Capture *capture = stream->capture;
    *out = NULL;
    if (!capture) REFUSE(cudaErrorIllegalState);
    if (capture->origin != stream) {
        capture->invalid = true;
        REFUSE(cudaErrorStreamCaptureUnmatched);
    }
    if (capture->mode != cudaStreamCaptureModeRelaxed && !pthread_equal(capture->thread, pthread_self()))
        REFUSE(cudaErrorStreamCaptureWrongThread);
    cudaError_t error = capture->invalid ? cudaErrorStreamCaptureInvalidated : cudaSuccess;
    for (int i = 0; i < STREAMS; i++)
        if (stub_streams[i] && stub_streams[i]->capture == capture) {
            if (!error && stub_streams[i]->reached.of[i] > stream->reached.of[i]) error = cudaErrorStreamCaptureUnjoined;
            stub_streams[i]->capture = NULL;
        }
    capture->ended = true;
    stub_log("end %d %llu %p", stream->number, capture->id, error ? NULL : (void *)capture->graph);
    if (error) REFUSE(error);
    *out = (cudaGraph_t)capture->graph;
    return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t handle, enum cudaStreamCaptureStatus *status) {
    return cudaStreamGetCaptureInfo(handle, status, NULL, NULL, NULL, NULL, NULL);
}

cudaError_t cudaStreamGetCaptureInfo(
    cudaStream_t handle, enum cudaStreamCaptureStatus *status, unsigned long long *id, cudaGraph_t *graph, const cudaGraphNode_t **nodes,
    const cudaGraphEdgeData **edges, size_t *count) {
    Capture *capture = stub_stream(handle)->capture;
    *status = !capture ? cudaStreamCaptureStatusNone : capture->invalid ? cudaStreamCaptureStatusInvalidated : cudaStreamCaptureStatusActive;
    if (id) *id = capture ? capture->id : 0;
    if (graph) *graph = capture ? (cudaGraph_t)capture->graph : NULL;
    if (nodes) *nodes = NULL;
    if (edges) *edges = NULL;
    if (count) *count = 0;
    return cudaSuccess;
}

/* Graphs. An executable graph is the graph itself, which lives as long as the process. */

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long flags) {
    *out = (cudaGraphExec_t)graph;
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long flags) {
    return cudaGraphInstantiateWithFlags(out, graph, flags);
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t handle, cudaStream_t on) {
    Graph *graph = (Graph *)handle;
    Stream *stream = stub_stream(on);
    if (stream->capture) REFUSE(cudaErrorStreamCaptureUnsupported);
    stub_log("graph %d %p", stream->number, (void *)graph);
    for (size_t i = 0; i < graph->count; i++) stub_perform(&graph->nodes[i]);
    stub_issue(__func__, on, (Node){.work = KERNEL}); /* the end of the graph, also of an empty one */
    return cudaSuccess;
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *count) { *count = ((Graph *)graph)->count; return cudaSuccess; }
cudaError_t cudaGraphDestroy(cudaGraph_t graph) { return cudaSuccess; }
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) { stub_log("drop %p", (void *)exec); return cudaSuccess; }
cudaError_t cudaGraphDebugDotPrint(cudaGraph_t graph, const char *path, unsigned flags) { return cudaSuccess; }
cudaError_t cudaGraphNodeGetDependencies(cudaGraphNode_t node, cudaGraphNode_t *from, cudaGraphEdgeData *edges, size_t *count) {
    *count = 0;
    return cudaSuccess;
}
