"""A timeline: when and where each task ran, predicted or measured. Times are seconds from the start of the first step.

It also has the contents of a device's memory: by kind of value over time, and at the peak.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from pydantic import Field, FiniteFloat, TypeAdapter, ValidationError

from traces.documents.base import Bytes, Data, Duration, Seconds
from traces.errors import UnusableFileError
from traces.files import first_fault, read_document, write_json


@dataclass(frozen=True, slots=True)
class HeldByKind:
    """Bytes by kind of value. Entry i of a kind is valid from `time_s[i]` until the next instant; every kind has one entry per instant."""

    time_s: tuple[Seconds, ...]
    held_bytes: dict[str, tuple[Bytes, ...]]


class Holder(Data):
    """One storage at the peak.

    `layer` is the layer of the task that writes it first, or of the parameter that it contains or belongs to.
    """

    storage: str
    kind: str
    layer: str
    bytes: int = Field(ge=0)


class AtPeak(Data):
    """The contents of one device's memory at its peak.

    `time_s` counts from the start of the steady period and is negative if the peak comes earlier. `task`, `layer` and `phase` describe the
    task that runs on the device at that time ("" if none does). `by_kind` has the largest kind first. `largest` lists the largest storages
    that are not carried, the largest first. `replicated_bytes` counts parameters, optimizer state and buffers that other devices store too.
    """

    device: str
    bytes: int = Field(ge=0)
    time_s: float
    task: str
    layer: str
    phase: str
    by_kind: dict[str, int]
    largest: tuple[Holder, ...]
    replicated_bytes: int = 0


SCHEMA = "schedcast.timeline/1"


class Cause(StrEnum):
    """Why a task on the critical path did not start earlier."""

    DEPENDENCY = "dependency"  # waited for a value that another task writes, or for the readers of a value that it overwrites
    LANE = "lane"  # waited for the previous task of its own lane
    LAUNCH = "launch"  # waited for the host to issue it
    LINK = "link"  # waited for, or shared, a link
    SMS = "sms"  # waited for SMs (CPU: cores)
    START = "start"  # waited for nothing


@dataclass(frozen=True, slots=True)
class Span:
    """One execution of one task. `iteration` is the training iteration it works on, `period` the period it was issued in.

    `action`: the pipeline action that the task is part of, as torch.distributed.pipelining writes it: 0F3 is stage 0's forward of
    microbatch 3, B a backward, I and W the halves of one.
    """

    task: str
    device: str
    lane: str
    start_s: Seconds
    end_s: Seconds
    phase: str
    layer: str = ""
    microbatch: int = 0
    iteration: int = 0
    period: int = 0
    action: str = ""


@dataclass(frozen=True, slots=True)
class CriticalSpan:
    """One entry of the critical path of a steady-state period."""

    task: str
    start_s: Seconds
    end_s: Seconds
    cause: Cause
    phase: str = ""
    layer: str = ""


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """The busy share of one device in a steady-state period, and its peak memory use."""

    name: str
    busy_share: FiniteFloat
    peak_bytes: Bytes


@dataclass(frozen=True)
class Timeline:
    """Spans of all simulated or measured periods, with quantities derived from the steady state.

    `window_s` is the steady period (start, end) that plots and the critical path refer to. `memory` maps a device to (time_s, bytes) steps.
    `memory_kinds` splits the bytes of the steady period by kind of value. `limits_bytes` is the size of a device's memory, which devices
    may share. `settled` is False if `step_s` is not known to be that of the steady state: the schedule neither repeats itself nor has the
    same mean in longer runs.
    """

    kind: str  # "predicted" or "measured"
    spans: tuple[Span, ...]
    step_s: Duration
    window_s: tuple[Seconds, Seconds]
    mode: str = "eager"
    devices: tuple[DeviceUse, ...] = ()
    critical_path: tuple[CriticalSpan, ...] = ()
    memory: dict[str, tuple[tuple[Seconds, Bytes], ...]] = field(default_factory=dict)
    bubble_share: FiniteFloat = 0.0
    exposed_transfer_s: Seconds = 0.0
    settled: bool = True
    period_lengths_s: tuple[Seconds, ...] = ()
    memory_kinds: dict[str, HeldByKind] = field(default_factory=dict)
    limits_bytes: dict[str, Bytes] = field(default_factory=dict)

    def window(self) -> tuple[Span, ...]:
        """The spans that overlap the steady period, in order of start."""
        start, end = self.window_s
        return tuple(sorted((s for s in self.spans if s.end_s > start and s.start_s < end), key=lambda s: s.start_s))

    def save(self, path: Path | str) -> Path:
        """Write as JSON, compressed with gzip if the name ends in .gz."""
        return write_json(path, {"schema": SCHEMA, **_ADAPTER.dump_python(self, mode="json")})

    @staticmethod
    def load(path: Path | str) -> "Timeline":
        """Read a timeline written by `save`. Raises UnusableFileError for any other file."""
        document = read_document(path, "timeline", SCHEMA)
        document.pop("schema")
        try:
            timeline = _ADAPTER.validate_python(document)
        except ValidationError as error:
            raise UnusableFileError(f"timeline {path} is damaged {first_fault(error)}; make it again") from error
        for fault in faults(timeline):
            raise UnusableFileError(f"timeline {path} is damaged: {fault}; make it again")
        return timeline


_ADAPTER = TypeAdapter(Timeline)


def faults(timeline: Timeline) -> Iterator[str]:
    """Faults that the types alone do not exclude."""
    if not timeline.window_s[0] < timeline.window_s[1]:
        yield "its steady period has no length"
    spans: tuple[Span | CriticalSpan, ...] = (*timeline.spans, *timeline.critical_path)
    yield from (f"{span.task!r} ends before it starts" for span in spans if span.end_s < span.start_s)
    for device, use in timeline.memory_kinds.items():
        if any(len(held) != len(use.time_s) for held in use.held_bytes.values()):
            yield f"the memory of {device!r} has other numbers of bytes than of instants"


def busy_seconds(spans: "list[Span] | tuple[Span, ...]", start_s: float, end_s: float) -> float:
    """Length of the union of the spans' intervals within [start_s, end_s].

    >>> spans = [Span("a", "cuda:0", "stream 0", 0.0, 2.0, "forward"), Span("b", "cuda:0", "stream 1", 1.0, 3.0, "forward")]
    >>> busy_seconds(spans, 0.0, 10.0)
    3.0
    """
    total, reached = 0.0, start_s
    for left, right in sorted((max(s.start_s, start_s), min(s.end_s, end_s)) for s in spans):
        if right > max(left, reached):
            total += right - max(left, reached)
            reached = right
    return total
