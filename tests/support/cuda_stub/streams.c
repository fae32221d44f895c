/* The log, streams and events. */

#include "stub.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static FILE *log_file;
static __thread cudaError_t last_error;
static Stream legacy;
Stream *stub_streams[STREAMS] = {&legacy};
/* The device works in the order of issue. What is issued is finished once it has been waited for, or has been asked for a second time. */
static unsigned long issued, finished, asked;

void stub_log(const char *format, ...) {
    pthread_mutex_lock(&lock);
    if (!log_file) {
        const char *path = getenv("SCHEDCAST_STUB_LOG");
        log_file = fopen(path ? path : "/dev/null", "a");
    }
    va_list arguments;
    va_start(arguments, format);
    vfprintf(log_file, format, arguments);
    fputc('\n', log_file);
    va_end(arguments);
    pthread_mutex_unlock(&lock);
}

/* For Python: a line that the caller has composed. */
void stub_note(const char *line) { stub_log("%s", line); }

cudaError_t stub_refuse(const char *function, cudaError_t error) {
    if (error) {
        last_error = error;
        stub_log("refused %s %s", function, cudaGetErrorName(error));
    }
    return error;
}

cudaError_t cudaGetLastError(void) { cudaError_t error = last_error; last_error = cudaSuccess; return error; }
cudaError_t cudaPeekAtLastError(void) { return last_error; }

Stream *stub_stream(cudaStream_t handle) {
    return handle == NULL || handle == cudaStreamLegacy || handle == cudaStreamPerThread ? &legacy : (Stream *)handle;
}

/* The host's clock, a microsecond later with each piece of work. */
static double next_us(void) {
    static double last;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    double us = now.tv_sec * 1e6 + now.tv_nsec * 1e-3;
    return last = us > last + 1 ? us : last + 1;
}

void stub_perform(const Node *node) {
    double us = next_us();
    issued++;
    if (node->work == COPY) memmove(node->target, node->source, node->size);
    if (node->work == FILL) memset(node->target, node->value, node->size);
    if (node->work == CALL) node->function(node->target);
    if (node->work == RECORD) node->event->serial = issued, node->event->time_us = us;
}

cudaError_t stub_issue(const char *function, cudaStream_t handle, Node node) {
    Stream *stream = stub_stream(handle);
    pthread_mutex_lock(&lock);
    Capture *capture = stream->capture;
    cudaError_t error = cudaSuccess;
    if (capture && capture->invalid) error = cudaErrorStreamCaptureInvalidated;
    else if (capture) {
        Graph *graph = capture->graph;
        if ((graph->count & (graph->count - 1)) == 0)
            graph->nodes = realloc(graph->nodes, sizeof(Node) * (graph->count ? 2 * graph->count : 1));
        graph->nodes[graph->count++] = node;
        stream->reached.of[stream->number]++;
    } else {
        stub_perform(&node);
        stream->serial = issued;
    }
    pthread_mutex_unlock(&lock);
    return stub_refuse(function, error);
}

/* Streams. */

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *out, unsigned flags, int priority) {
    int number = 1;
    while (number < STREAMS && stub_streams[number]) number++;
    if (number == STREAMS) REFUSE(cudaErrorMemoryAllocation);
    Stream *stream = stub_streams[number] = calloc(1, sizeof(Stream));
    stream->number = number, stream->flags = flags, stream->priority = priority < -5 ? -5 : priority > 0 ? 0 : priority;
    stub_log("stream %d %d %u", number, stream->priority, flags);
    *out = (cudaStream_t)stream;
    return cudaSuccess;
}

int stub_number(cudaStream_t stream) { return stub_stream(stream)->number; }
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags) { return cudaStreamCreateWithPriority(out, flags, 0); }
cudaError_t cudaStreamCreate(cudaStream_t *out) { return cudaStreamCreateWithPriority(out, 0, 0); }
cudaError_t cudaStreamGetPriority(cudaStream_t stream, int *priority) { *priority = stub_stream(stream)->priority; return cudaSuccess; }
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) { *least = 0, *greatest = -5; return cudaSuccess; }

cudaError_t cudaStreamDestroy(cudaStream_t handle) {
    Stream *stream = stub_stream(handle);
    stub_streams[stream->number] = NULL;
    free(stream);
    return cudaSuccess;
}

static void finish(unsigned long serial) { finished = finished < serial ? serial : finished; }

/* Whether work is finished that is asked for. */
static bool answered(unsigned long serial) {
    if (asked >= serial) finish(serial);
    asked = asked < serial ? serial : asked;
    return finished >= serial;
}

/* The checks that waiting for a stream and asking it have in common. */
static cudaError_t may_ask(const char *function, Stream *stream) {
    if (stream->capture) {
        stream->capture->invalid = true;
        return stub_refuse(function, cudaErrorStreamCaptureUnsupported);
    }
    return stub_unsafe(function);
}

cudaError_t cudaStreamQuery(cudaStream_t handle) {
    Stream *stream = stub_stream(handle);
    cudaError_t error = may_ask(__func__, stream);
    if (error) return error;
    if (!answered(stream->serial)) return last_error = cudaErrorNotReady;
    stub_log("sync %d", stream->number);
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
    Stream *stream = stub_stream(handle);
    cudaError_t error = may_ask(__func__, stream);
    if (error) return error;
    finish(stream->serial);
    stub_log("sync %d", stream->number);
    return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize(void) {
    if (stub_end_captures()) REFUSE(cudaErrorStreamCaptureUnsupported);
    finish(issued);
    stub_log("sync_device");
    return cudaSuccess;
}

/* Events. */

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags) {
    Event *event = calloc(1, sizeof(Event));
    event->flags = flags;
    *out = (cudaEvent_t)event;
    return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *out) { return cudaEventCreateWithFlags(out, 0); }

cudaError_t cudaEventDestroy(cudaEvent_t handle) {
    stub_log("destroy_event %p", (void *)handle);
    free(((Event *)handle)->reached);
    free(handle);
    return cudaSuccess;
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t handle, cudaStream_t on, unsigned flags) {
    Event *event = (Event *)handle;
    Stream *stream = stub_stream(on);
    bool external = flags & cudaEventRecordExternal;
    if (external && !stream->capture) REFUSE(cudaErrorIllegalState);
    if (external || !stream->capture) {
        cudaError_t error = stub_issue(__func__, on, (Node){.work = RECORD, .event = event});
        if (error) return error;
    } else {
        if (stream->capture->invalid) REFUSE(cudaErrorStreamCaptureInvalidated);
        if (!event->reached) event->reached = malloc(sizeof(Reached));
        *event->reached = stream->reached;
    }
    event->capture = external ? NULL : stream->capture;
    stub_log("record %d %p%s", stream->number, (void *)handle, external ? " external" : "");
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) { return cudaEventRecordWithFlags(event, stream, 0); }

cudaError_t cudaStreamWaitEvent(cudaStream_t on, cudaEvent_t handle, unsigned flags) {
    Event *event = (Event *)handle;
    Stream *stream = stub_stream(on);
    if (event->capture && event->capture->ended) REFUSE(cudaErrorCapturedEvent);
    if (stream->capture && stream->capture->invalid) REFUSE(cudaErrorStreamCaptureInvalidated);
    if (stream->capture && !event->capture && event->serial && !(flags & cudaEventWaitExternal)) {
        stream->capture->invalid = true;
        REFUSE(cudaErrorStreamCaptureIsolation);
    }
    if (event->capture) {
        if (stream == &legacy) REFUSE(cudaErrorStreamCaptureImplicit);
        if (stream->capture && stream->capture != event->capture) {
            stream->capture->invalid = event->capture->invalid = true;
            REFUSE(cudaErrorStreamCaptureMerge);
        }
        if (!stream->capture) {
            stream->capture = event->capture;
            memset(&stream->reached, 0, sizeof(Reached));
        }
        for (int i = 0; i < STREAMS; i++)
            if (stream->reached.of[i] < event->reached->of[i]) stream->reached.of[i] = event->reached->of[i];
    }
    stub_log("wait %d %p", stream->number, (void *)handle);
    return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t handle) {
    Event *event = (Event *)handle;
    UNSAFE();
    if (event->capture) REFUSE(cudaErrorCapturedEvent);
    if (!answered(event->serial)) return last_error = cudaErrorNotReady;
    stub_log("sync_event %p", (void *)handle);
    return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t handle) {
    UNSAFE();
    if (((Event *)handle)->capture) REFUSE(cudaErrorCapturedEvent);
    finish(((Event *)handle)->serial);
    stub_log("sync_event %p", (void *)handle);
    return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t first, cudaEvent_t last) {
    Event *begin = (Event *)first, *end = (Event *)last;
    if (begin->capture || end->capture) REFUSE(cudaErrorCapturedEvent);
    if (!begin->serial || !end->serial || (begin->flags | end->flags) & cudaEventDisableTiming) REFUSE(cudaErrorInvalidResourceHandle);
    if (begin->serial > finished || end->serial > finished) REFUSE(cudaErrorNotReady);
    *ms = (end->time_us - begin->time_us) * 1e-3;
    return cudaSuccess;
}
