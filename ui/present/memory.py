"""Memory over one training step: per device, predicted next to measured, stacked by kind of value; as a static picture and as the
strips under the lanes of an interactive timeline.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from simulator.engine.memory.contents import KIND_NAMES, STACKED
from simulator.machine.machine import HOST
from traces import units
from traces.documents.timeline import HeldByKind, Timeline
from ui.present import palette
from ui.present.canvas import INK, WIDTH_IN, add_legend, hide_frame, new_figure, save
from ui.present.labels import PEAK
from ui.present.timeline_rows import X_LABEL

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
    panels = tuple(panel_of(timeline, device) for timeline in timelines)
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


def panel_of(timeline: Timeline, device: str) -> Panel | None:
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
    """The peak of a panel, and the limit of a prediction: peak allocated 2.78 GiB of 80 GiB. Of a measurement, the allocator's own peak."""
    peak = f"{PEAK} {units.memory(shown.peak_bytes)}" if shown.peak_bytes else ""
    limit = f" of {units.memory(limit_bytes)}" if limit_bytes and peak and timeline.kind != "measured" else ""
    allocator = f"; allocator, own run: {units.memory(shown.allocator_bytes)}" if shown.allocator_bytes else ""
    return f"{peak}{limit}{allocator}"


#: More bytes than any memory has; a damaged file may say more.
_MOST_BYTES = 2**60


@dataclass
class Strips:
    """Collects the strips of all panels. `ticks` turns times in ms into ticks. `kinds`: numbers of what is drawn, by name."""

    ticks: Callable[[Iterable[float]], np.ndarray]
    kinds: dict[str, int] = field(default_factory=dict)
    times: list[np.ndarray] = field(default_factory=list)
    held: list[np.ndarray] = field(default_factory=list)

    def of(self, timelines: Sequence[Timeline]) -> list[list[dict[str, Any]]]:
        """The entries in the header, for each timeline one per device. Strips of one device have one scale."""
        by_device = rows(timelines)
        return [
            [self._strip(timeline, row, row.panels[number]) for row in by_device if row.panels[number] is not None]
            for number, timeline in enumerate(timelines)
        ]

    def colors(self) -> list[dict[str, str]]:
        """Name and color of every kind."""
        return [{"name": KIND_NAMES.get(kind, kind), "color": palette.KIND.get(kind, palette.OTHER)} for kind in self.kinds]

    def arrays(self) -> dict[str, np.ndarray]:
        """The instants of all strips in ticks, and the bytes that hold from each, kind after kind."""
        return {
            "memory_time": np.concatenate([np.empty(0, np.uint32), *self.times]),
            "memory_held": np.concatenate([np.empty(0, np.float64), *self.held]),
        }

    def _strip(self, timeline: Timeline, row: Row, panel: Panel) -> dict[str, Any]:
        times = np.maximum.accumulate(self.ticks(panel.times_ms))
        first, begin = sum(map(len, self.times)), sum(map(len, self.held))
        counts = [np.minimum(np.array(held, np.float64), _MOST_BYTES) for held in panel.held.values()]
        self.times.append(times)
        self.held += counts
        limit = timeline.limits_bytes.get(panel.device)
        return {
            "label": f"{panel.device} memory", "words": peak_words(timeline, panel, None if row.limit_bytes else limit),
            "times": [first, first + len(times)], "held": begin,
            "kinds": [self.kinds.setdefault(kind, len(self.kinds)) for kind in panel.held],
            "top_bytes": min(_MOST_BYTES, row.top * row.unit_bytes), "peak_bytes": min(_MOST_BYTES, panel.peak_bytes),
            "limit_bytes": min(_MOST_BYTES, row.limit_bytes),
        }  # fmt: skip


#: Inches per row, and above, between and under the rows.
ROW_IN, TOP_IN, BETWEEN_IN, BOTTOM_IN = 1.75, 1.25, 0.45, 0.68
#: Left and right edge of the panels, and the gap between them, as shares of the width.
LEFT, RIGHT, GAP = 0.07, 0.985, 0.025
DASHES = (0, (4, 3))
#: The size of a heading's letters, and the inches that one takes. Longer headings have smaller letters.
HEADING_POINTS, HEADING_IN = 11.0, 0.098


def memory_picture(path: Path | str, predicted: Timeline, measured: Timeline | None = None, title: str = "") -> Path | None:
    """Draw what every device's memory holds into `path` (.png or .svg). Returns None if no timeline says so; then nothing is written."""
    timelines = [timeline for timeline in (predicted, measured) if timeline is not None and timeline.memory_kinds]
    device_rows = rows(timelines)
    if not device_rows:
        return None
    count = len(device_rows)
    height_in = TOP_IN + count * ROW_IN + (count - 1) * BETWEEN_IN + BOTTOM_IN
    figure = new_figure(height_in, f"{title}: memory" if title else "memory")
    width = (RIGHT - LEFT - GAP * (len(timelines) - 1)) / len(timelines)
    end_ms = max(timeline.window_s[1] - timeline.window_s[0] for timeline in timelines) * 1e3
    for number, row in enumerate(device_rows):
        bottom_in = height_in - TOP_IN - (number + 1) * ROW_IN - number * BETWEEN_IN
        for column, panel in enumerate(row.panels):
            axes = figure.add_axes((LEFT + column * (width + GAP), bottom_in / height_in, width, ROW_IN / height_in))
            _style(axes, column == 0, number == count - 1)
            axes.set_xlim(0, end_ms * 1.002)
            axes.set_ylim(0, row.top)
            if column == 0:
                axes.set_ylabel(f"allocated, {row.unit}", fontsize=11, color=INK)
            if row.limit_bytes:
                axes.axhline(row.limit_bytes / row.unit_bytes, color=palette.LIMIT, linewidth=2.0)
            if panel is not None:
                _draw(axes, panel, row.unit_bytes)
                text = row.headings[column]
                points = HEADING_POINTS * min(1.0, width * WIDTH_IN / (HEADING_IN * len(text)))
                axes.annotate(text, (0, 1), (0, 5), xycoords="axes fraction", textcoords="offset points", fontsize=points,
                              weight="bold", color=INK, parse_math=False)  # fmt: skip
    figure.text((LEFT + RIGHT) / 2, 0.14 / height_in, X_LABEL, fontsize=11, color=INK, ha="center")
    marks: list[Artist] = [Patch(facecolor=palette.KIND[kind], label=KIND_NAMES[kind]) for kind in kinds_shown(device_rows)]
    marks.append(Line2D([], [], color=INK, linestyle=DASHES, linewidth=1.4, label=PEAK))
    if any(row.limit_bytes for row in device_rows):
        marks.append(Line2D([], [], color=palette.LIMIT, linewidth=2.0, label="limit"))
    add_legend(figure, marks, handlelength=1.3, handleheight=1.0, columnspacing=1.3)
    return save(figure, path)


def _draw(axes: Axes, panel: Panel, unit_bytes: int) -> None:
    """Draw the stacked areas, and the peak as a line."""
    stacked = [[count / unit_bytes for count in counts] for counts in panel.held.values()]
    axes.stackplot(panel.times_ms, stacked, colors=[palette.KIND[kind] for kind in panel.held], step="post", linewidth=0)
    if panel.peak_bytes:
        axes.axhline(panel.peak_bytes / unit_bytes, color=INK, linewidth=1.4, linestyle=DASHES)


def _style(axes: Axes, is_first: bool, is_last: bool) -> None:
    axes.tick_params(axis="both", colors=INK, labelsize=10, labelbottom=is_last, labelleft=is_first, length=0)
    axes.xaxis.set_major_locator(MaxNLocator(8))
    axes.yaxis.set_major_locator(MaxNLocator(5))
    hide_frame(axes, "y")
