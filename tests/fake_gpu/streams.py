"""Virtual time: the host's clock, streams and events."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from executors.cuda.driver import Partition
from tests.fake_gpu.errors import FakeGpuError
from tests.fake_gpu.races import Ticks

if TYPE_CHECKING:
    from tests.fake_gpu.driver import FakeGpu
    from tests.fake_gpu.graphs import Capture


@dataclass(frozen=True)
class Ran:
    """A kernel as it ran in virtual time."""

    op: str
    stream: int
    start_s: float
    end_s: float


@dataclass(eq=False)
class FakeStream:
    """A serial queue. `tail_s`: when all that was issued to it, and all it waits for, has ended."""

    gpu: FakeGpu = field(repr=False)
    index: int
    priority: int
    partition: Partition | None
    tail_s: float = 0.0
    outstanding: deque[float] = field(default_factory=deque, repr=False)  # ends of what it was given, in order

    @property
    def sms(self) -> int:
        """How many SMs its kernels run on."""
        return self.partition.sms if self.partition else self.gpu.facts.sms

    def wait_event(self, event: FakeEvent) -> None:
        """What is issued from now on waits for the point that the event marks now."""
        self.gpu._wait(self, event)


@dataclass(frozen=True)
class Mark:
    """Where an event was recorded: a time, what is ordered before it, and, in a capture, the nodes it comes after."""

    time_s: float | None
    ticks: Ticks
    capture: Capture | None = None
    nodes: frozenset[int] = frozenset()


@dataclass(eq=False)
class FakeEvent:
    """A point in a stream."""

    gpu: FakeGpu = field(repr=False)
    timing: bool
    external: bool
    mark: Mark | None = None

    def record(self, stream: FakeStream) -> None:
        """Mark the stream's end as it is now."""
        self.gpu._record(stream, self)

    def elapsed_time(self, end: FakeEvent) -> float:
        """Milliseconds from this event to `end`, in virtual time."""
        return (end._reached_s() - self._reached_s()) * 1e3

    def synchronize(self) -> None:
        """The host waits until it has been reached."""
        self.gpu._host_waits_for(self)

    def _reached_s(self) -> float:
        if not self.timing:
            raise FakeGpuError("elapsed_time of an event made without timing")
        if self.mark is None or self.mark.time_s is None:
            raise FakeGpuError("elapsed_time of an event that was not recorded, or recorded in a capture and not reached in a replay")
        if self.mark.time_s > self.gpu.clock.now_s:
            raise FakeGpuError("elapsed_time of an event that is not reached yet: synchronize first")
        return self.mark.time_s


class Clock:
    """The host's time, and what it does to streams."""

    def __init__(self, queue_depth: int):
        self.now_s = 0.0
        self.queue_depth = queue_depth

    def spend(self, seconds: float) -> None:
        """The host is busy."""
        self.now_s += seconds

    def make_room(self, stream: FakeStream) -> None:
        """The host blocks until the stream takes one launch more."""
        queue = stream.outstanding
        while queue and queue[0] <= self.now_s:
            queue.popleft()
        while len(queue) >= self.queue_depth:
            self.now_s = queue.popleft()

    def launch(self, stream: FakeStream, seconds: float) -> tuple[float, float]:
        """Issue one kernel; returns its start and end."""
        self.make_room(stream)
        start_s = max(self.now_s, stream.tail_s)
        stream.tail_s = start_s + seconds
        stream.outstanding.append(stream.tail_s)
        return start_s, stream.tail_s

    def wait_for(self, streams: Iterable[FakeStream]) -> None:
        """The host waits until streams have ended."""
        self.now_s = max(self.now_s, *(stream.tail_s for stream in streams))
