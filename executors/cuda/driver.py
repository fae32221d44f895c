"""What executor and calibration ask of one GPU, and nothing more: `torch_driver` answers with CUDA, the tests with a simulated GPU.

Streams and events are used the way PyTorch's are: `stream.wait_event(event)`, `event.record(stream)`, `first.elapsed_time(last)`.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import torch


@dataclass(frozen=True)
class GpuFacts:
    """What the GPU says of itself. `priority_levels`: distinct stream priorities, 0 (least urgent) down to 1 − levels."""

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
    """One kernel launch as the profiler saw it: `grid` in blocks, `block` in threads, registers per thread, shared memory per block."""

    name: str
    grid: int
    block: int
    registers: int
    shared_bytes: int
    seconds: float


@dataclass(frozen=True)
class Partition:
    """A part of the GPU's SMs that no other partition of the same split has. `handle` is the driver's own."""

    index: int
    sms: int
    handle: object = None


class Event(Protocol):
    """A point in a stream."""

    def record(self, stream: "Stream") -> None:
        """Mark the stream's end as it is now; what was marked before is forgotten."""

    def elapsed_time(self, end: "Event") -> float:
        """Milliseconds from this event to `end`; both are timing events that have been reached."""

    def synchronize(self) -> None:
        """Wait until it has been reached."""


class Stream(Protocol):
    """A serial queue of the GPU."""

    def wait_event(self, event: Event) -> None:
        """What is issued to the stream from now on waits for the point that the event marks now."""


class Graph(Protocol):
    """A captured CUDA graph. It never overlaps itself."""

    def replay(self) -> None:
        """Launch it on the current stream."""


class Driver(Protocol):
    """One GPU. Not thread-safe: one thread issues everything."""

    device: torch.device
    facts: GpuFacts

    def software(self) -> dict[str, str]:
        """Versions: driver, cuda, torch, cudnn, nccl; an entry that cannot be read is missing."""

    def set_precision(self, precision: str) -> dict[str, object]:
        """Let dense kernels use TF32 on float32 operands for `tf32` and for nothing else; returns the flags as they now are."""

    def stream(self, priority: int = 0, partition: Partition | None = None) -> Stream:
        """A stream of its own: no other call returned the same queue. Smaller priorities are more urgent; beyond the levels they are cut.

        Its kernels run on the partition's SMs, or on all. Raises StepcastError where no more streams can be had.
        """

    def use(self, stream: Stream) -> None:
        """Issue what follows to `stream`."""

    def event(self, timing: bool = False, external: bool = False) -> Event:
        """`external`: recorded during a capture, it becomes a node of the graph that is reached anew in every replay."""

    def capture(self, stream: Stream) -> AbstractContextManager[Graph]:
        """Within it, what is issued to `stream`, and to streams that wait for its events, becomes the graph instead of running.

        Other streams must have been joined to `stream` by events before it ends.
        """

    def call_host(self, duration_s: float) -> None:
        """The current stream stops until a thread of the driver has slept for `duration_s` seconds (0: has called a function that returns).

        The caller does not wait. In a capture the call becomes a node of the graph. Calls from several streams may come one after another.
        Raises StepcastError where it cannot be done.
        """

    def synchronize(self) -> None:
        """Wait for everything issued."""

    def now_s(self) -> float:
        """The host's clock."""

    def seed(self, value: int) -> None:
        """Seed the generator that random kernels draw from, at its beginning. Not during a capture."""

    def allocated_bytes(self) -> int:
        """Bytes that tensors hold now, by the allocator."""

    def peak_bytes(self, reset: bool = False) -> int:
        """The most bytes that tensors held since the last reset; `reset` starts anew."""

    def host_tensor(self, size_bytes: int, pinned: bool) -> torch.Tensor:
        """A uint8 tensor in the host's memory."""

    def kernels(self, works: Sequence[Callable[[], None]]) -> list[list[Kernel]] | None:
        """The kernels that each piece of work launches, in order, from one profiler session; None where the profiler is refused."""

    def partitions(self, count: int) -> tuple[Partition, ...]:
        """Split the SMs into `count` disjoint parts of equal size. Raises StepcastError with the reason where it cannot be done."""

    def peers(self) -> "Sequence[Driver]":
        """The drivers of the machine's other GPUs of the same product, as far as they can be used."""

    def sm_ids(self, stream: Stream, replayed: bool = False) -> frozenset[int]:
        """The SMs that kernels on `stream` run on, by a kernel that asks each of its blocks; in a graph's replay if `replayed`.

        Raises StepcastError where the kernel cannot be compiled.
        """
