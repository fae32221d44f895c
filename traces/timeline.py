"""A timeline: when and where each task ran, predicted or measured. Times are seconds from the start of the first step."""

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from traces.errors import UnusableFileError
from traces.files import first_fault, read_document, write_json
from traces.memory_use import HeldByKind

SCHEMA = "stepcast.timeline/1"


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
    """One execution of one task. `iteration` is the training iteration it works on, `period` the period it was issued in."""

    task: str
    device: str
    lane: str
    start_s: float
    end_s: float
    phase: str
    layer: str = ""
    micro_batch: int = 0
    iteration: int = 0
    period: int = 0


@dataclass(frozen=True, slots=True)
class CriticalSpan:
    """One entry of the critical path of a steady-state period."""

    task: str
    start_s: float
    end_s: float
    cause: Cause
    phase: str = ""
    layer: str = ""


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """The busy share of one device in a steady-state period, and its peak memory use."""

    name: str
    busy_share: float
    peak_bytes: int


@dataclass(frozen=True)
class Timeline:
    """Spans of all simulated or measured periods, with quantities derived from the steady state.

    `window_s` is the steady period (start, end) that plots and the critical path refer to. `memory` maps a device to (time_s, bytes) steps.
    `memory_kinds` splits the bytes of the steady period by kind of value. `limits_bytes` is the size of a device's memory, which devices
    may share. `settled` is False if the lengths of successive periods did not agree.
    """

    kind: str  # "predicted" or "measured"
    spans: tuple[Span, ...]
    step_s: float
    window_s: tuple[float, float]
    mode: str = "eager"
    devices: tuple[DeviceUse, ...] = ()
    critical_path: tuple[CriticalSpan, ...] = ()
    memory: dict[str, tuple[tuple[float, int], ...]] = field(default_factory=dict)
    bubble_share: float = 0.0
    exposed_transfer_s: float = 0.0
    settled: bool = True
    period_lengths_s: tuple[float, ...] = ()
    memory_kinds: dict[str, HeldByKind] = field(default_factory=dict)
    limits_bytes: dict[str, int] = field(default_factory=dict)

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
            return _ADAPTER.validate_python(document)
        except ValidationError as error:
            raise UnusableFileError(f"timeline {path} is damaged {first_fault(error)}; make it again") from error


_ADAPTER = TypeAdapter(Timeline)


def busy_seconds(spans: "list[Span] | tuple[Span, ...]", start_s: float, end_s: float) -> float:
    """Length of the union of the spans' intervals within [start_s, end_s]."""
    total, reached = 0.0, start_s
    for left, right in sorted((max(s.start_s, start_s), min(s.end_s, end_s)) for s in spans):
        if right > max(left, reached):
            total += right - max(left, reached)
            reached = right
    return total
