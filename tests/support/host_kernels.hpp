// Runs CUDA C++ as C++ on the host. The threads of a block are fibers that switch at barriers, and blocks run one after another.
// Shared memory is poisoned before every block. Threads run in either order between barriers, which reveals most missing barriers.

#include <cstring>
#include <utility>
#include <vector>
#include <ucontext.h>

#define __global__
#define __device__
#define __launch_bounds__(threads)
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __shared__ static __attribute__((section("shared_memory")))

struct Place { unsigned x, y, z; };
static Place threadIdx, blockIdx;
extern char __start_shared_memory[] __attribute__((weak)), __stop_shared_memory[] __attribute__((weak));

namespace host {
enum State { RUNNING, WAITING, DONE };
struct Fiber { ucontext_t context; std::vector<char> stack; State state; };
static std::vector<Fiber> fibers;
static ucontext_t scheduler;
static unsigned now;
static void (*body)(void**);
static void** arguments;

static void enter() {
    body(arguments);
    fibers[now].state = DONE;
    swapcontext(&fibers[now].context, &scheduler);
}

// Runs one block. Returns whether every thread reached the same barriers.
static bool run_block(unsigned threads, bool backwards) {
    memset(__start_shared_memory, 0xFF, __stop_shared_memory - __start_shared_memory);
    for (auto& fiber : fibers) {
        fiber.stack.resize(1 << 16);
        fiber.state = RUNNING;
        getcontext(&fiber.context);
        fiber.context.uc_stack.ss_sp = fiber.stack.data();
        fiber.context.uc_stack.ss_size = fiber.stack.size();
        fiber.context.uc_link = nullptr;
        makecontext(&fiber.context, enter, 0);
    }
    for (unsigned left = threads; left;) {
        for (unsigned turn = 0; turn < threads; turn++) {
            now = backwards ? threads - 1 - turn : turn;
            threadIdx = {now, 0, 0};
            fibers[now].state = RUNNING;
            swapcontext(&scheduler, &fibers[now].context);
        }
        left = 0;
        for (auto& fiber : fibers) left += fiber.state == WAITING;
        if (left && left != threads) return false;
    }
    return true;
}

template <class... A, size_t... I>
void unpack(void (*kernel)(A...), void** args, std::index_sequence<I...>) { kernel(*static_cast<A*>(args[I])...); }

template <class... A>
void call(void (*kernel)(A...), void** args) { unpack(kernel, args, std::index_sequence_for<A...>()); }

static int launch(void (*kernel)(void**), const unsigned* grid, unsigned threads, void** args, int backwards) {
    body = kernel;
    arguments = args;
    fibers.resize(threads);
    for (unsigned y = 0; y < grid[1]; y++)
        for (unsigned x = 0; x < grid[0]; x++) {
            blockIdx = {x, y, 0};
            if (!run_block(threads, backwards)) return 1;
        }
    return 0;
}
}  // namespace host

static inline void __syncthreads() {
    host::fibers[host::now].state = host::WAITING;
    swapcontext(&host::fibers[host::now].context, &host::scheduler);
}
