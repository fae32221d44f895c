"""What pictures and charts of memory have in common: one row per device with its panels, unit, peak and limit."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from simulator.engine.memory.kinds import STACKED
from simulator.machine.machine import HOST
from traces import units
from traces.documents.memory_use import HeldByKind
from traces.documents.timeline import Timeline

#: Devices drawn at most. Replicas look alike, so the first ones stand for all.
MOST_DEVICES = 8
#: A limit more than this many times as high as the peak is named in the heading instead of drawn: a line would flatten the rest.
LIMIT_IN_SIGHT = 2.5
#: The kind of all bytes of a device, where a timeline does not say what they are.
IN_USE = "in use"


@dataclass(frozen=True)
class Panel:
    """One device in one timeline.

    `times_ms`: instants from the start of the training step; the last is its end. `held`: bytes at these instants by kind of value, in
    stacking order. `peak_bytes`: the most bytes held at any time of the timeline, from the same task times as `held`, so at least as many.
    `allocator_bytes`: the allocator's own figure, measured in another run (on a CPU one task at a time); 0 if unknown or predicted.
    """

    device: str
    times_ms: tuple[float, ...]
    held: dict[str, tuple[int, ...]]
    peak_bytes: int
    allocator_bytes: int = 0

    @property
    def highest_bytes(self) -> int:
        """The most bytes held at once within the step."""
        return max(map(sum, zip(*self.held.values(), strict=True)), default=0)


@dataclass(frozen=True)
class Row:
    """The panels of one device, one per timeline (None if the timeline does not know the device), with one unit and one axis.

    `limit_bytes`: the device's memory limit, 0 unless it is near enough to be drawn. `top`: upper end of the axis, in `unit`s.
    """

    panels: tuple[Panel | None, ...]
    headings: tuple[str, ...]
    limit_bytes: int
    unit_bytes: int
    unit: str
    top: float


def rows(timelines: Sequence[Timeline]) -> tuple[Row, ...]:
    """One row per device whose memory is known in any of the timelines, of which the first has the limits."""
    known = (device for timeline in timelines for device in (*timeline.memory_kinds, *timeline.memory))
    devices = dict.fromkeys(device for device in known if device != HOST)
    return tuple(_row(timelines, device) for device in tuple(devices)[:MOST_DEVICES])


def _row(timelines: Sequence[Timeline], device: str) -> Row:
    panels = tuple(panel(timeline, device) for timeline in timelines)
    highest = max(each.peak_bytes for each in panels if each is not None)
    limit = timelines[0].limits_bytes.get(device)
    drawn = bool(limit) and limit <= LIMIT_IN_SIGHT * highest
    headings = tuple(
        heading(timeline, each, None if drawn else limit) if each is not None else ""
        for timeline, each in zip(timelines, panels, strict=True)
    )
    unit_bytes, unit = units.memory_unit(highest)
    top = max(highest, limit if drawn else 0) / unit_bytes * 1.1
    return Row(panels, headings, limit if drawn else 0, unit_bytes, unit, top or 1.0)


def panel(timeline: Timeline, device: str) -> Panel | None:
    """A timeline's panel of a device. Bytes whose kind the timeline does not say are IN_USE; None if it says nothing of the device."""
    kinds = timeline.memory_kinds.get(device) or _in_use(timeline, device)
    if kinds is None:
        return None
    start, end = timeline.window_s
    times_ms = (*((time_s - start) * 1e3 for time_s in kinds.time_s), (end - start) * 1e3)
    held = {kind: kinds.held_bytes[kind] for kind in (*STACKED, IN_USE) if any(kinds.held_bytes.get(kind, ()))}
    shown = Panel(device, times_ms, {kind: (*counts, counts[-1]) for kind, counts in held.items()}, 0)
    peak = max((held_bytes for _, held_bytes in timeline.memory.get(device, ())), default=0)
    stated = next((use.peak_bytes for use in timeline.devices if use.name == device), 0)
    measured = timeline.kind == "measured"
    return replace(shown, peak_bytes=max(peak, shown.highest_bytes), allocator_bytes=stated if measured else 0)


def _in_use(timeline: Timeline, device: str) -> HeldByKind | None:
    """The bytes that a device holds within the step, without what they are."""
    start, end = timeline.window_s
    steps = timeline.memory.get(device, ())
    if not steps:
        return None
    before = [held for time_s, held in steps if time_s <= start]
    inside = [(start, before[-1] if before else 0), *((time_s, held) for time_s, held in steps if start < time_s < end)]
    times_s, held = zip(*inside, strict=True)
    return HeldByKind(times_s, {IN_USE: held})


def kinds_shown(device_rows: Sequence[Row]) -> tuple[str, ...]:
    """The kinds of values in any of the panels, in stacking order."""
    panels = [each for row in device_rows for each in row.panels if each is not None]
    return tuple(kind for kind in STACKED if any(kind in each.held for each in panels))


def heading(timeline: Timeline, shown: Panel, limit_bytes: int | None = None) -> str:
    """The heading of a panel: the device, whether it is predicted or measured, the peak, and a limit that is not drawn."""
    words = peak_words(timeline, shown, limit_bytes)
    return f"{shown.device} {timeline.kind}{', ' if shown.peak_bytes else ''}{words}"


def peak_words(timeline: Timeline, shown: Panel, limit_bytes: int | None = None) -> str:
    """The peak of a panel, and the limit of a prediction: peak 2.78 GiB of 80 GiB. Of a measurement, the allocator's own peak."""
    peak = f"peak {units.memory(shown.peak_bytes)}" if shown.peak_bytes else ""
    limit = f" of {units.memory(limit_bytes)}" if limit_bytes and peak and timeline.kind != "measured" else ""
    allocator = f"; allocator, own run: {units.memory(shown.allocator_bytes)}" if shown.allocator_bytes else ""
    return f"{peak}{limit}{allocator}"
