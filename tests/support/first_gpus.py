"""Simulated GPUs on which the checks of gpu-first run in milliseconds, whole and with faults."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from calibrate.cuda.bench import Effort
from calibrate.cuda.co_runs import Sizes
from calibrate.cuda.first.check import CheckContext, Scale
from simulator.job import Job
from tests.fake_gpu import FACTS, FakeGpu
from tests.support import mlp

QUICK = Effort(rounds=2, graph_s=5e-5, fewest_copies=2, most_copies=4, most_sets=4, most_issues=4)
JOBS = (Job(f"{mlp.__file__}:normalised", 4), Job("rnn_bitstream", 2, 4))
SCALE = Scale(QUICK, Sizes(16, 8, 4096), JOBS, (Job("lenet5", 2),), (4, 4, 16), (1, 2, 8, 8))
SMALL = replace(FACTS, memory_bytes=64 << 20, cache_bytes=1 << 16)


class FirstGpu(FakeGpu):
    """A simulated GPU that can launch on several streams in one graph."""

    def sm_ids_in_one_graph(self, streams):
        """See Driver."""
        return [self.sm_ids(stream, replayed=True) for stream in streams]


def whole() -> CheckContext:
    """The context of a check on a simulated GPU without faults, which is active from now on."""
    gpu = FirstGpu(facts=SMALL)
    gpu.activate()
    return CheckContext(gpu, SCALE)


@contextmanager
def opened(gpu: FakeGpu) -> Iterator[CheckContext]:
    """The context of a check on a simulated GPU."""
    with gpu:
        yield CheckContext(gpu, SCALE)
