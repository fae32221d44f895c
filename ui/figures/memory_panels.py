"""What pictures and charts of memory show alike: which devices, what kinds, and lines for peaks and limits."""

from collections.abc import Sequence
from dataclasses import dataclass

from simulator.machine.machine import HOST
from simulator.memory.kinds import STACKED
from traces import units
from traces.timeline import Timeline

#: More devices than this are not drawn: replicas look alike, and what is drawn is that of the first ones.
MOST_DEVICES = 8
#: A limit this many times as high as the peak is told, and not drawn: it would leave the rest flat.
LIMIT_IN_SIGHT = 2.5


@dataclass(frozen=True)
class Panel:
    """One device in one timeline. Times in ms from the start of the steady period, of which the last is its end; bytes by kind as stacked.

    `peak_bytes`: the timeline's figure of the device (predicted, or the allocator's); 0 where there is none.
    """

    device: str
    times_ms: tuple[float, ...]
    held: dict[str, tuple[int, ...]]
    peak_bytes: int

    @property
    def highest_bytes(self) -> int:
        """The most that is held at once in the period."""
        return max(map(sum, zip(*self.held.values(), strict=True)), default=0)


def devices_shown(timelines: Sequence[Timeline]) -> tuple[str, ...]:
    """The devices whose memory is known in any of the timelines. The host is none."""
    known = dict.fromkeys(device for timeline in timelines for device in timeline.memory_kinds if device != HOST)
    return tuple(known)[:MOST_DEVICES]


def panel(timeline: Timeline, device: str) -> Panel | None:
    """What a timeline knows of a device's memory; None for nothing."""
    known = timeline.memory_kinds.get(device)
    if known is None:
        return None
    start, end = timeline.window_s
    times_ms = (*((time_s - start) * 1e3 for time_s in known.time_s), (end - start) * 1e3)
    held = {kind: known.held_bytes[kind] for kind in STACKED if any(known.held_bytes.get(kind, ()))}
    peak = next((use.peak_bytes for use in timeline.devices if use.name == device), 0)
    return Panel(device, times_ms, {kind: (*each, each[-1]) for kind, each in held.items()}, peak)


def kinds_shown(panels: Sequence[Panel | None]) -> tuple[str, ...]:
    """The kinds in any of the panels, in the order in which they are stacked."""
    return tuple(kind for kind in STACKED if any(each is not None and kind in each.held for each in panels))


def limit_drawn(limit_bytes: int | None, highest_bytes: int) -> bool:
    """Whether a limit is near enough to be drawn."""
    return bool(limit_bytes) and limit_bytes <= LIMIT_IN_SIGHT * highest_bytes


def heading(timeline: Timeline, each: Panel, limit_bytes: int | None = None) -> str:
    """What stands above a panel: device, whose figures these are, the peak, and a limit that is not drawn."""
    peak = f", peak {units.memory(each.peak_bytes)}" if each.peak_bytes else ""
    how = " by the allocator" if peak and timeline.kind == "measured" else ""
    if how and each.highest_bytes > each.peak_bytes:  # groups of cores are counted apart from the run that the areas are of
        how += ", one task at a time"
    there = f" of {units.memory(limit_bytes)}" if limit_bytes and peak and timeline.kind == "predicted" else ""
    return f"{each.device} {timeline.kind}{peak}{how}{there}"
