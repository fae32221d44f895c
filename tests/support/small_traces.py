"""A synthetic trace of torch.profiler: steps of forward, backward with an all-reduce on a stream of its own, and the optimizer."""

from pathlib import Path

from tests.support.kineto_traces import Trace

MAIN, AUTOGRAD, COMPUTE, NETWORK = 100, 101, 7, 20


def write_trace(path: Path, steps: int = 4, rank: int = 0) -> Path:
    """Write steps of 1000 us. On the GPU: gemm 200, two wgrads of 200 with an all-reduce of 300 after the first, two updates of 50."""
    trace = Trace(rank, world=2)
    extents = {"grid": [256, 1, 1], "block": [128, 1, 1]}
    for number in range(steps):
        at = 1000.0 * number
        trace.annotate(f"ProfilerStep#{number}", at, 950.0)
        trace.kernel("gemm", at + 10, at + 20, 200.0, thread=MAIN, stream=COMPUTE, **extents)
        trace.kernel("wgrad_1", at + 30, at + 220, 200.0, thread=AUTOGRAD, stream=COMPUTE, **extents)
        trace.kernel("ncclDevKernel_AllReduce_Sum_f32", at + 40, at + 420, 300.0, thread=AUTOGRAD, stream=NETWORK, **extents)
        trace.kernel("wgrad_2", at + 50, at + 420, 200.0, thread=AUTOGRAD, stream=COMPUTE, **extents)
        trace.annotate("Optimizer.step#SGD.step", at + 60, 40.0)
        trace.call("cudaStreamWaitEvent", at + 61, 1.0, thread=MAIN)
        trace.kernel("multi_tensor_apply_kernel<mul>", at + 65, at + 720, 50.0, thread=MAIN, stream=COMPUTE, **extents)
        trace.kernel("multi_tensor_apply_kernel<add>", at + 75, at + 770, 50.0, thread=MAIN, stream=COMPUTE, **extents)
        trace.call("cudaDeviceSynchronize", at + 85, 740.0, thread=MAIN)
    return trace.save(path)


def write_unexplained_trace(path: Path) -> Path:
    """Write steps of 1000 us in which a kernel starts 400 us late for no recorded reason: a replay's steps take 600."""
    trace = Trace()
    for number in range(4):
        at = 1000.0 * number
        trace.annotate(f"ProfilerStep#{number}", at, 950.0)
        trace.kernel("gemm", at + 10, at + 17, 100.0)
        trace.kernel("late", at + 20, at + 517, 100.0)
        trace.call("cudaDeviceSynchronize", at + 30, 587.0)
    return trace.save(path)


def rank(number: int, arrive: float) -> Trace:
    """A rank whose all-reduce starts when it arrives and ends at 100, as on every rank."""
    trace = Trace(rank=number, world=2)
    trace.call("cudaDeviceSynchronize", 0, 1)
    trace.kernel("f", 2, 9, arrive - 9, device=number)
    trace.call("cudaStreamWaitEvent", 8, 1)
    trace.kernel("ncclDevKernel_AllReduce", 10, arrive, 100 - arrive, stream=20, device=number)
    trace.call("cudaStreamWaitEvent", 20, 1)
    trace.kernel("u", 22, 100, 10, device=number)
    return trace
