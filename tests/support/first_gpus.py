"""Simulated GPUs on which quick probes run in milliseconds, whole and with faults."""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from unittest.mock import patch

from torch._subclasses import FakeTensor

from calibrate.cuda.bench import Effort
from calibrate.cuda.contention import Sizes
from calibrate.preflight import probe
from calibrate.preflight.probe import Context, Probe, Scale, answer
from calibrate.preflight.probes import streams
from calibrate.preflight.runner import Ask
from executors.cuda.profiled import TEARDOWN
from simulator.model.job import Job
from tests.fake_gpu import FACTS, FakeGpu, Times
from tests.fake_gpu.calls import tensors_in
from tests.fake_gpu.driver import Box
from tests.support import mlp
from traces.errors import SchedcastError

QUICK = Effort(rounds=2, graph_s=5e-5, fewest_copies=2, most_copies=4, most_sets=4, most_issues=4, sustained_s=0.0)
JOBS = (Job(f"{mlp.__file__}:normalised", 4), Job("rnn_bitstream", 2, 4))
SCALE = Scale(
    QUICK, Sizes(16, 8, 4096), JOBS, (Job("lenet5", 2),), (4, 4, 16), (1, 2, 8, 8), (1, 4, 4), (1, 2, 4, 8, 2), relu_bytes=24 << 10
)
#: Graphs so long that their times do not hang on the host, for checks that compare times.
LONGER = replace(SCALE, effort=Effort(rounds=2, graph_s=5e-5, fewest_copies=4, most_copies=32, most_sets=8, most_issues=4, sustained_s=0.0))
SMALL = replace(FACTS, memory_bytes=64 << 20, cache_bytes=1 << 16)


class FirstGpu(FakeGpu):
    """A simulated GPU that can launch on several streams in one graph."""

    def sm_ids_in_one_graph(self, streams):
        """See Driver."""
        return [self.sm_ids(stream, replayed=True) for stream in streams]


class Twice(FirstGpu):
    """Does the work of every graph twice."""

    @contextmanager
    def capture(self, stream, others=()):
        """See Driver."""
        with super().capture(stream, others) as graph:
            yield graph
        once = graph.replay
        graph.replay = lambda: (once(), once())


class Drifting(FirstGpu):
    """Computes results that are larger by the share `growth` at every call of one op."""

    def __init__(self, op: str, growth: float = 0.1):
        super().__init__(facts=SMALL)
        self.op, self.growth, self.calls = op, growth, 0

    def _issue(self, func, args, kwargs):
        results = super()._issue(func, args, kwargs)
        if str(func.overloadpacket) == self.op:
            self.calls += 1
            with self._outside():
                for tensor in tensors_in(results)[:1] or tensors_in(args)[:1]:
                    tensor.mul_(1 + self.growth * self.calls)
        return results


class Refusing(FirstGpu):
    """Refuses one op, but not while a graph is captured on fake tensors."""

    def __init__(self, op: str):
        super().__init__(facts=SMALL)
        self.op = op

    def _issue(self, func, args, kwargs):
        if str(func.overloadpacket) == self.op and not any(isinstance(tensor, FakeTensor) for tensor in tensors_in(args)):
            raise RuntimeError(f"{self.op} is not implemented")
        return super()._issue(func, args, kwargs)


class OneQueue(FirstGpu):
    """Has 33 queues, the last of which serves all further streams."""

    def stream(self, priority=0, partition=None):
        """See Driver."""
        return super().stream(priority, partition) if len(self.streams) < 34 else self.streams[-1]


class Overlapping(FirstGpu):
    """Its partitions share SMs."""

    def partitions(self, count):
        """See Driver."""
        return tuple(replace(partition, handle=range(64)) for partition in super().partitions(count))


class OneBlock(FirstGpu):
    """Has one block for all results of a graph, so that each replaces the one before in the cache."""

    def _issue(self, func, args, kwargs):
        results = super()._issue(func, args, kwargs)
        for tensor in tensors_in(results):
            if (memory := self.memories.find(tensor)) is not None and memory.capture:
                memory.block = 0
        return results


class EmptySessions(FirstGpu):
    """Lists kernels in the first profiler session alone; if `attachable`, in all for which CUPTI is left attached."""

    sessions, attachable = 0, False

    def kernels(self, works):
        """See Driver."""
        self.sessions += 1
        listed = super().kernels(works)
        lists = self.sessions == 1 or (self.attachable and os.environ.get(TEARDOWN) == "0")
        return listed if lists or listed is None else [[] for _ in listed]


class Attachable(EmptySessions):
    """Lists kernels in later sessions only if CUPTI is left attached."""

    attachable = True


class BrokenByCaptures(FirstGpu):
    """Cannot be used after a capture that failed."""

    broken = False

    @contextmanager
    def capture(self, stream, others=()):
        """See Driver."""
        try:
            with super().capture(stream, others) as graph:
                yield graph
        except BaseException:
            self.broken = True
            raise

    def seed(self, value):
        """See Driver."""
        if self.broken:
            raise RuntimeError("operation not permitted when stream is capturing")
        super().seed(value)


class Troubled(Context):
    """The process of one probe crashes, and that of another hangs."""

    def begin(self, name):
        """See Context."""
        if name == "events":
            print("about to crash", file=sys.stderr, flush=True)
            os.abort()
        if name == "captures":
            (self.folder / "probes" / "captures.pid").write_text(str(os.getpid()))
            time.sleep(600)
        super().begin(name)


def troubled() -> Context:
    """As `whole`, with trouble."""
    return Troubled(whole().driver, SCALE)


def lasting() -> Context:
    """As `whole`, with long probes that take no time."""
    for quick in streams.PROBES:
        object.__setattr__(quick, "file", f"{quick.name}.json")
    return whole()


def dying() -> Context:
    """As `lasting`, but long probes leave the GPU unusable."""
    probe.usable = lambda driver: False
    return lasting()


class Answering(Context):
    """The process of one probe aborts once its answer is on disk, and that of another hangs."""

    def answered(self, fields):
        """See Context."""
        super().answered(fields)
        if self.running == "events":
            os.abort()
        if self.running == "captures":
            time.sleep(600)

    def begin(self, name):
        """See Context."""
        super().begin(name)
        self.running = name


def answering() -> Context:
    """As `whole`, with trouble after two answers."""
    return Answering(whole().driver, SCALE)


class Talking(Context):
    """Reports progress, and then hangs."""

    def begin(self, name):
        """See Context."""
        super().begin(name)
        if name:
            self.show(0, 1, "")
            time.sleep(600)


def talking() -> Context:
    """As `whole`, but its process hangs after a word."""
    return Talking(whole().driver, SCALE)


def gone() -> Context:
    """A GPU that can be opened for the first probe alone."""
    if os.environ.get("TEARDOWN_CUPTI") is not None:
        raise SchedcastError("the GPU has fallen off the bus")
    return whole()


def none() -> Context:
    """A machine without a GPU."""
    raise SchedcastError("PyTorch can use no GPU; check that nvidia-smi lists one")


def another() -> Context:
    """Another GPU than that of `whole`."""
    context = whole()
    context.driver.facts = replace(SMALL, name="Other GPU")
    return context


def whole() -> Context:
    """The context of probes on a simulated GPU without faults, which is active from now on."""
    gpu = FirstGpu(facts=SMALL)
    gpu.activate()
    return Context(gpu, SCALE)


def whole_at(index: str) -> Context:
    """As `whole`, for any index."""
    return whole()


@contextmanager
def opened(gpu: FakeGpu, scale: Scale = SCALE) -> Iterator[Context]:
    """The context of probes on a simulated GPU."""
    with gpu:
        yield Context(gpu, scale)


def in_process(context: Context) -> Ask:
    """Runs probes in this process, whose answers need not be on disk before they are returned."""
    context.answered = lambda fields: None

    def ask(asked: Probe, limit_s: float, left_s: float, reserve_s: float, show) -> dict:
        context.show = lambda done, total, text: show(f"{asked.name} {done}/{total} {text}")
        with patch.dict(os.environ, asked.environment):
            return answer(asked, context, left_s, reserve_s)

    return ask


class Garbling(FakeGpu):
    """Sends every copy to another GPU with doubled numbers."""

    def _issue_copy(self, target, func, args, kwargs):
        results = super()._issue_copy(target, func, args, kwargs)
        with self._outside():
            for tensor in tensors_in(results):
                if tensor.is_floating_point():
                    tensor.mul_(2)
        return results


def first_of_two(other: type[FakeGpu] = FakeGpu, **options) -> FirstGpu:
    """A GPU whose process also sees another one of its kind. `options`: of both."""
    box = Box(Times())
    first = FirstGpu(facts=SMALL, box=box, **options)
    other(facts=SMALL, box=box, **options)
    return first
