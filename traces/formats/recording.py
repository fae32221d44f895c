"""A recorded run: device work, the host calls that launched it or waited for it, and the annotations around them.

Times are seconds since `Recording.origin_ns`, so that nanoseconds are not lost. Recordings of several ranks have origins on one clock.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from traces.formats.operators import Operators

KERNEL, MEMCPY, MEMSET, COLLECTIVE = "kernel", "memcpy", "memset", "collective"

#: NCCL and RCCL; the custom all-reduces of serving engines and PyTorch's symmetric memory; NVSHMEM (its kernels of host calls end in
#: `_on_stream_kernel`) and rocSHMEM; DeepEP, whose namespace is `dpsk::ep` in traces of its authors, and MORI's port of it.
_COMMUNICATION = re.compile(
    r"nccl|rccl|oneshot_?all_?reduce|cross_device_reduce|all_?reduce_?kernel|multimem_"
    r"|nvshmem|rocshmem|_on_stream_kernel|deep_ep|\bep::(inter|intra)node|\bep(dispatch|combine)(inter|intra)node",
    re.IGNORECASE,
)


def is_communication(kernel: str) -> bool:
    """Whether a kernel of this name moves data between devices of a job, or waits for other devices to do so."""
    return _COMMUNICATION.search(kernel) is not None


class CallKind(StrEnum):
    """What a host call means for the order of device work."""

    LAUNCH = "launch"  # submits work and returns at once
    STREAM_WAIT = "stream wait"  # later work of a stream waits for an event
    EVENT_RECORD = "event record"
    STREAM_SYNC = "stream sync"  # the host waits for one stream
    EVENT_SYNC = "event sync"  # the host waits for an event
    DEVICE_SYNC = "device sync"  # the host waits for all streams


class Work(NamedTuple):
    """One kernel, copy, set or collective on a device. `call` is the index of the call that launched it, -1 if that was not recorded.

    `grid` counts blocks, `block` threads per block, `registers` registers per thread, `shared_bytes` shared memory per block; 0 if not
    recorded.
    """

    name: str
    category: str
    device: int
    stream: int
    start_s: float
    end_s: float
    bytes: float = 0.0
    grid: int = 0
    call: int = -1
    block: int = 0
    registers: int = 0
    shared_bytes: int = 0

    @property
    def lane(self) -> tuple[int, int]:
        """(device, stream)."""
        return (self.device, self.stream)

    @property
    def duration_s(self) -> float:
        """Duration, rounded to the picosecond."""
        return round(self.end_s - self.start_s, 12)


class Call(NamedTuple):
    """One call of the CUDA runtime or driver that launches or orders work. Threads are numbered by first appearance."""

    name: str
    kind: CallKind
    thread: int
    start_s: float
    end_s: float
    correlation: int = -1


class Sync(NamedTuple):
    """What a synchronizing call refers to, as the profiler recorded it; -1 if unknown."""

    stream: int = -1
    wait_on_stream: int = -1
    record_correlation: int = -1


class Annotation(NamedTuple):
    """A named range on a host thread."""

    name: str
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Recording:
    """The trace of one rank. `works` are in order of (start, device, stream), `calls` in order of start.

    `syncs` are by index of the call. `world_size` is the number of ranks of the job, 1 if unknown. `notes` are one line each. `operators`:
    the ops that the host called.
    """

    source: str
    works: tuple[Work, ...]
    calls: tuple[Call, ...]
    syncs: dict[int, Sync]
    annotations: tuple[Annotation, ...]
    origin_ns: int = 0
    rank: int = 0
    world_size: int = 1
    notes: tuple[str, ...] = ()
    operators: Operators = field(default_factory=Operators)

    @property
    def unmatched(self) -> int:
        """How many works have no recorded launch."""
        return sum(work.call < 0 for work in self.works)

    @property
    def streams(self) -> int:
        """How many streams have work."""
        return len({work.lane for work in self.works})

    @property
    def begin_s(self) -> float:
        """The earliest start of any work or call."""
        return min([self.works[0].start_s, *(call.start_s for call in self.calls[:1])])


def by_lane(works: Sequence[Work]) -> dict[tuple[int, int], list[int]]:
    """Indices of the works of each stream, in order of start."""
    lanes: dict[tuple[int, int], list[int]] = {}
    for index, work in enumerate(works):
        lanes.setdefault(work.lane, []).append(index)
    return lanes
