"""Virtual time: the host's clock, streams and events."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import torch

from executors.cuda.driver import GpuFacts, Partition
from tests.fake_gpu.errors import FakeGpuError
from tests.fake_gpu.races import Ticks


class Gpu(Protocol):
    """The parts of the simulated GPU that streams and events use."""

    device: torch.device
    facts: GpuFacts

    @property
    def clock(self) -> "Clock": ...

    def _wait(self, stream: "FakeStream", event: "FakeEvent") -> None: ...

    def _record(self, stream: "FakeStream", event: "FakeEvent") -> None: ...

    def _host_waits_for(self, event: "FakeEvent") -> None: ...


class KernelRun(NamedTuple):
    """A kernel or a host call that ran, with its virtual times."""

    op: str
    stream: int
    start_s: float
    end_s: float


@dataclass(eq=False)
class FakeStream:
    """A serial queue. `tail_s`: when all work that was issued to it, and all events that it waits for, have ended."""

    gpu: Gpu = field(repr=False)
    index: int
    priority: int
    partition: Partition | None
    tail_s: float = 0.0
    outstanding: deque[float] = field(default_factory=deque, repr=False)  # the ends of its launches, in order

    @property
    def device(self) -> torch.device:
        """Its GPU."""
        return self.gpu.device

    @property
    def sms(self) -> int:
        """The number of SMs that its kernels run on."""
        return self.partition.sms if self.partition else self.gpu.facts.sms

    def wait_event(self, event: "FakeEvent") -> None:
        """Let all later work wait for the point that the event marks now."""
        self.gpu._wait(self, event)


@dataclass(frozen=True)
class Mark:
    """The point at which an event was recorded: its time, the ops ordered before it, and in a capture the nodes before it."""

    time_s: float | None
    ticks: Ticks
    capture: object = None  # the capture, or None
    nodes: frozenset[int] = frozenset()


@dataclass(eq=False)
class FakeEvent:
    """A point in a stream. It belongs to the GPU of the first stream that records it."""

    gpu: Gpu = field(repr=False)
    timing: bool
    external: bool
    mark: Mark | None = None
    device: torch.device | None = None

    def record(self, stream: FakeStream) -> None:
        """Mark the current end of the stream."""
        if self.device not in (None, stream.device):
            raise FakeGpuError(f"an event of {self.device} is recorded on a stream of {stream.device}")
        self.device = stream.device
        self.gpu._record(stream, self)

    def elapsed_time(self, end: "FakeEvent") -> float:
        """Milliseconds from this event to `end`, in virtual time."""
        milliseconds = (end._reached_s() - self._reached_s()) * 1e3
        if self.device != end.device:
            raise FakeGpuError("elapsed_time of events of two GPUs, whose clocks differ")
        return milliseconds

    def query(self) -> bool:
        """Whether the event has been reached."""
        return self.mark is None or (self.mark.time_s is not None and self.mark.time_s <= self.gpu.clock.now_s)

    def synchronize(self) -> None:
        """Let the host wait until the event has been reached."""
        self.gpu._host_waits_for(self)

    def _reached_s(self) -> float:
        if not self.timing:
            raise FakeGpuError("elapsed_time of an event created without timing")
        if self.mark is None or self.mark.time_s is None:
            raise FakeGpuError("elapsed_time of an event that was not recorded, or recorded in a capture and not reached in a replay")
        if self.mark.time_s > self.gpu.clock.now_s:
            raise FakeGpuError("elapsed_time of an event that is not reached yet: synchronize first")
        return self.mark.time_s


class Clock:
    """The host's clock, and the launches that it issues to streams."""

    def __init__(self, queue_depth: int, launch_gap_s: float = 0.0):
        self.now_s = 0.0
        self.queue_depth, self.launch_gap_s = queue_depth, launch_gap_s

    def spend(self, seconds: float) -> None:
        """Advance the host's time."""
        self.now_s += seconds

    def make_room(self, stream: FakeStream) -> None:
        """Block the host until the stream's queue has room for one more launch."""
        queue = stream.outstanding
        while queue and queue[0] <= self.now_s:
            queue.popleft()
        while len(queue) >= self.queue_depth:
            self.now_s = queue.popleft()

    def launch(self, stream: FakeStream, seconds: float) -> tuple[float, float]:
        """Issue one kernel. Returns its start and end in s."""
        self.make_room(stream)
        start_s = max(self.now_s, stream.tail_s + (self.launch_gap_s if stream.outstanding else 0.0))
        stream.tail_s = start_s + seconds
        stream.outstanding.append(stream.tail_s)
        return start_s, stream.tail_s

    def wait_for(self, streams: Iterable[FakeStream]) -> None:
        """Let the host wait until the streams have ended."""
        self.now_s = max(self.now_s, *(stream.tail_s for stream in streams))
