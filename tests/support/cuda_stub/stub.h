/* A CUDA library without a GPU: what its parts share. See tests/support/stub_log.py for the log.

Memory of the device is memory of the host; copies and fills happen when they are called, or when their graph is launched; kernels do
nothing. Errors are the real ones, as the CUDA Runtime API's documentation of stream capture states them. */

#pragma once
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

#define STREAMS 512

typedef struct Capture Capture;

/* What a stream's or an event's capture has reached: of each stream, by number, how many of its nodes come before. */
typedef struct Reached {
    unsigned of[STREAMS];
} Reached;

typedef struct Stream {
    int number, priority;
    unsigned flags;
    unsigned long serial; /* of its last work */
    Capture *capture;
    Reached reached;
} Stream;

typedef struct Event {
    unsigned flags;
    unsigned long serial; /* of its last record; 0: never recorded */
    double time_us;
    Capture *capture; /* that recorded it last, also after its end */
    Reached *reached;
} Event;

enum Work { KERNEL, COPY, FILL, RECORD, CALL };

/* A piece of a stream's work, and a node of a graph. */
typedef struct Node {
    enum Work work;
    void *target;
    const void *source;
    size_t size;
    int value;
    Event *event;
    void (*function)(void *);
} Node;

typedef struct Graph {
    Node *nodes;
    size_t count;
} Graph;

struct Capture {
    unsigned long long id;
    enum cudaStreamCaptureMode mode;
    pthread_t thread;
    Stream *origin;
    bool invalid, ended;
    Graph *graph;
};

/* Writes one line to the log. */
void stub_log(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Logs an error with the function that returns it, and keeps it for cudaGetLastError. */
cudaError_t stub_refuse(const char *function, cudaError_t error);
#define REFUSE(error) return stub_refuse(__func__, error)
/* For calls that wait, ask or allocate: an error, and an end to the captures, if one is under way that forbids them to this thread. */
cudaError_t stub_unsafe(const char *function);
#define UNSAFE() do { cudaError_t unsafe_ = stub_unsafe(__func__); if (unsafe_) return unsafe_; } while (0)
/* Puts an end to all captures that are under way. Returns whether there are any. */
bool stub_end_captures(void);
extern Stream *stub_streams[STREAMS]; /* by number; the first is the legacy stream */
Stream *stub_stream(cudaStream_t handle);
void stub_perform(const Node *node);
/* Does the work, or adds it to the stream's capture. */
cudaError_t stub_issue(const char *function, cudaStream_t stream, Node node);
