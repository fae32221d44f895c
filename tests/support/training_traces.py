"""Traces of a small training job whose times follow from a few numbers, so that the effect of changing one of them is known.

Each step: Python loads data for `loader` us, and launches a forward of three kernels, a backward of three, a kernel on a side stream that
waits for the second of these, and an update; then the host waits for the device. All numbers are microseconds.
"""

from dataclasses import dataclass
from pathlib import Path

from tests.support.kineto_traces import Trace

MAIN, SIDE = 7, 20
#: From the end of a launch to the start of its kernel on an idle stream, and between two kernels of a stream.
LATENCY, GAP = 2.0, 1.0


@dataclass(frozen=True)
class TrainingJob:
    """The numbers of a job. `backward`: the kernels of the backward in order, of which the side kernel waits for the one called `wgrad_b`.

    `side_stream`: where the side kernel runs. `item_sync`: the host waits for the device after the forward, too. `extra`: one more kernel
    in the forward. `python`: time between two launches. `names`: what the names of the kernels end with.
    """

    loader: float = 100.0
    python: float = 20.0
    launch: float = 5.0
    forward: float = 200.0
    backward: tuple[tuple[str, float], ...] = (("wgrad_a", 100.0), ("wgrad_b", 150.0), ("wgrad_c", 300.0))
    side: float = 120.0
    update: float = 50.0
    extra: float = 0.0
    side_stream: int = SIDE
    item_sync: bool = False
    names: str = ""

    def save(self, path: Path, steps: int = 4) -> Path:
        """Write the trace."""
        return _Recorder().record(self, steps).save(path)


class _Recorder:
    """Writes down what a device with streams does."""

    def __init__(self, rank: int = 0, world: int = 1):
        self.trace = Trace(rank, world)
        self.host = 0.0
        self.free: dict[int, float] = {}
        self.rank = rank

    def record(self, job: TrainingJob, steps: int) -> Trace:
        for number in range(steps):
            begin = self.host
            self.forward(job)
            self.backward(job)
            self.kernel(job, "multi_tensor_apply_kernel<sgd>", job.update, after=max(self.free.values()), waits=True)
            self.wait_for_device()
            self.trace.annotate(f"ProfilerStep#{number}", begin, self.host - begin)
        return self.trace

    def forward(self, job: TrainingJob) -> None:
        self.host += job.loader
        for name in ("gemm_a", "gemm_b", "gemm_a"):
            self.kernel(job, name + job.names, job.forward)
        if job.extra:
            self.kernel(job, "check_finite", job.extra)
        if job.item_sync:
            self.wait_for_device()

    def backward(self, job: TrainingJob) -> None:
        ends = {name: self.kernel(job, name + job.names, length) for name, length in job.backward}
        self.kernel(job, "side_kernel", job.side, stream=job.side_stream, after=ends["wgrad_b"], waits=True)

    def kernel(self, job: TrainingJob, name: str, length: float, stream: int = MAIN, after: float = 0.0, **how) -> float:
        """Launch a kernel; returns when it ends. `waits`: the stream waits for an event first."""
        self.host += job.python
        if how.get("waits"):
            self.trace.call("cudaStreamWaitEvent", self.host - 2, 1)
        start = max(self.host + job.launch + LATENCY, self.free.get(stream, -GAP) + GAP, after + GAP)
        self.trace.kernel(name, self.host, start, length, call=job.launch, stream=stream, device=self.rank)
        self.host += job.launch
        self.free[stream] = start + length
        return start + length

    def wait_for_device(self) -> None:
        """The host waits until all streams are done, and returns 4 us later."""
        end = max(*self.free.values(), self.host) + 4
        self.trace.call("cudaDeviceSynchronize", self.host + 1, end - self.host - 1)
        self.host = end


def write_ranks(folder: Path, jobs: list[TrainingJob], steps: int = 4, all_reduce: float = 80.0, ahead: float = 0.0) -> list[Path]:
    """Write the traces of ranks that meet in an all-reduce behind every backward, which takes `all_reduce` once all have arrived.

    `ahead`: how far the clock of each rank is ahead of that of the rank before it.
    """
    recorders = [_Recorder(rank, len(jobs)) for rank in range(len(jobs))]
    for number in range(steps):
        arrivals, begins = [], [recorder.host for recorder in recorders]
        for recorder, job in zip(recorders, jobs, strict=True):
            recorder.forward(job)
            for name, length in job.backward:
                recorder.kernel(job, name, length)
            recorder.host += job.python
            arrivals.append(max(recorder.free[MAIN] + GAP, recorder.host + job.launch + LATENCY))
        for recorder, job, arrival, begin in zip(recorders, jobs, arrivals, begins, strict=True):
            end = max(arrivals) + all_reduce
            correlation = recorder.trace.call("cudaLaunchKernel", recorder.host, job.launch)
            recorder.trace.work("ncclDevKernel_AllReduce", arrival, end - arrival, correlation, stream=MAIN, device=recorder.rank)
            recorder.host += job.launch
            recorder.free[MAIN] = end
            recorder.kernel(job, "multi_tensor_apply_kernel<sgd>", job.update)
            recorder.wait_for_device()
            recorder.trace.annotate(f"ProfilerStep#{number}", begin, recorder.host - begin)
    for recorder in recorders:
        for event in recorder.trace.events:
            event["ts"] += ahead * recorder.rank
    return [recorder.trace.save(folder / f"rank{recorder.rank}.json") for recorder in recorders]
