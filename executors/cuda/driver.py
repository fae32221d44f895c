"""The interface through which the executor and the calibration use one GPU.

`torch_driver` implements it with CUDA, and the tests with a simulated GPU. Streams and events are used like PyTorch's:
`stream.wait_event(event)`, `event.record(stream)`, `first.elapsed_time(last)`. They are typed Any where only the driver's own objects work.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from traces.errors import SchedcastError

#: The first words of an error, and of the reason why something could not be measured: work that never ended. It is not tried again.
STALLED = "the GPU never finished"


class GpuStalledError(SchedcastError):
    """The GPU has not finished work that should have ended long ago. Nothing can stop it, so the process cannot use the GPU any more."""


@dataclass(frozen=True)
class GpuFacts:
    """The properties that the GPU reports. `priority_levels`: the number of stream priorities, from 0 (least urgent) to 1 − levels."""

    name: str
    sms: int
    memory_bytes: int
    cache_bytes: int
    capability: tuple[int, int]
    threads_per_sm: int
    blocks_per_sm: int
    registers_per_sm: int
    shared_bytes_per_sm: int
    priority_levels: int


@dataclass(frozen=True)
class Kernel:
    """A kernel launch as the profiler recorded it. `grid`: blocks. `block`: threads. `registers`: per thread. `shared_bytes`: per block."""

    name: str
    grid: int
    block: int
    registers: int
    shared_bytes: int
    seconds: float


@dataclass(frozen=True)
class Partition:
    """Some of the GPU's SMs, disjoint from the other partitions of the same split. `handle`: the driver's green context."""

    index: int
    sms: int
    handle: object = None


class Event(Protocol):
    """A point in a stream."""

    def record(self, stream: Any) -> None:
        """Mark the current end of the stream. A point marked earlier is forgotten."""

    def elapsed_time(self, end: Any) -> float:
        """Milliseconds from this event to `end`. Both must be timing events of one GPU that have been reached."""

    def query(self) -> bool:
        """Whether the event has been reached. True if it was never recorded."""


class Stream(Protocol):
    """A serial queue of a GPU. Streams may wait for events of other GPUs."""

    priority: int

    @property
    def device(self) -> torch.device:
        """The GPU."""

    def wait_event(self, event: Any) -> None:
        """Let all later work on this stream wait for the point that the event marks now."""


class Graph(Protocol):
    """A captured CUDA graph. Two replays of it never overlap."""

    def replay(self) -> None:
        """Launch the graph on the current stream."""


class Driver(Protocol):
    """One GPU. Not thread-safe: one thread issues all work."""

    device: torch.device
    facts: GpuFacts

    def software(self) -> dict[str, str]:
        """The versions of driver, cuda, torch, cudnn and nccl. An entry that cannot be read is missing."""

    def set_precision(self, precision: str) -> dict[str, object]:
        """Allow TF32 in dense kernels on float32 operands if `precision` is "tf32", with "default" in cuDNN's, and forbid it otherwise.

        Returns PyTorch's flags.
        """

    def stream(self, priority: int = 0, partition: Partition | None = None) -> Stream:
        """A stream with a separate queue, which no other stream in use shares.

        Smaller priorities are more urgent; they are clipped to the GPU's levels. The stream's kernels run on the partition's SMs (default:
        all SMs). Raises SchedcastError if there are no more streams.
        """

    def use(self, stream: Stream) -> None:
        """Make `stream`, of any GPU, the current stream of its GPU, and that GPU the current one.

        Later work is issued to the current stream of the GPU whose memory it uses, or to that of the current GPU if it uses none. A copy
        from one GPU to another allocates for the target's current stream. It begins after the work on both current streams, and later
        work on both comes after it.
        """

    def event(self, timing: bool = False, external: bool = False) -> Event:
        """A new event. An `external` event that is recorded during a capture becomes a node of the graph, reached again in every replay."""

    def capture(self, stream: Stream, others: "Sequence[Driver]" = ()) -> AbstractContextManager[Graph]:
        """Within the context, work issued to `stream`, and to streams that wait for its events, is recorded in the graph and not run.

        These may be streams of this GPU and of those of `others`. All other streams must be joined to `stream` by events before the context
        ends.
        """

    def call_host(self, duration_s: float) -> None:
        """Stop the current stream until a host thread of the driver has slept for `duration_s` (0: has called a function that returns).

        The caller does not wait. In a capture the call becomes a node of the graph. Calls from several streams may run one after another.
        Raises SchedcastError if the driver cannot do so.
        """

    def synchronize(self, in_flight: Callable[[], str] | None = None) -> None:
        """Wait for all issued work. `in_flight` says what that is, for a warning if it takes very long, or raises to end the wait."""

    def wait_for(self, event: Event, in_flight: Callable[[], str] | None = None) -> None:
        """Wait until the event has been reached. See `synchronize`."""

    def now_s(self) -> float:
        """The time of the host's clock."""

    def seed(self, value: int) -> None:
        """Reset the generator of random kernels to the start of this seed. Must not be called during a capture."""

    def allocated_bytes(self) -> int:
        """The bytes allocated for tensors now, by the allocator's count."""

    def peak_bytes(self, reset: bool = False) -> int:
        """The peak bytes allocated for tensors since the last reset. `reset`: start a new peak after this reading."""

    def workspace_bytes(self) -> int:
        """The bytes that the library of matrix products keeps allocated for each stream on which a product has run."""

    def free_workspaces(self) -> int:
        """Free these workspaces on an idle GPU. Returns the bytes freed: 0 while a graph exists, because its replays use them."""

    def host_tensor(self, size_bytes: int, pinned: bool) -> torch.Tensor:
        """A uint8 tensor in the host's memory."""

    def kernels(self, works: Sequence[Callable[[], object]]) -> list[list[Kernel]] | None:
        """The kernels that each piece of work launches, in order, from one profiler session; None if the profiler is refused."""

    def partitions(self, count: int) -> tuple[Partition, ...]:
        """Split the SMs into `count` disjoint partitions of equal size. Raises SchedcastError with the reason if that is impossible."""

    def peers(self) -> "Sequence[Driver]":
        """The drivers of the machine's other usable GPUs with the same product name."""

    def sm_ids(self, stream: Stream, replayed: bool = False) -> frozenset[int]:
        """The SMs that kernels on `stream` run on, found by a probe kernel. With `replayed`, the kernel runs in a graph's replay.

        Raises SchedcastError if the probe kernel cannot be compiled.
        """

    def sm_ids_in_one_graph(self, streams: Sequence[Stream]) -> list[frozenset[int]]:
        """The SMs that kernels on each stream run on in the replay of one graph with work of all of them. Raises as `sm_ids` does."""


def timing_event(driver: Driver, stream: Stream) -> Event:
    """An event at the current end of the stream, whose time can be read."""
    event = driver.event(timing=True)
    event.record(stream)
    return event


@dataclass(frozen=True)
class Place:
    """Where a device of a plan is: a GPU, or one of its partitions, with a context of its own. A place's streams run on its SMs."""

    driver: Driver
    partition: Partition | None = None

    @property
    def sms(self) -> int:
        """The number of SMs."""
        return self.partition.sms if self.partition is not None else self.driver.facts.sms

    def stream(self, priority: int = 0) -> Stream:
        """A stream with a separate queue; see `Driver.stream`."""
        return self.driver.stream(priority, self.partition)
