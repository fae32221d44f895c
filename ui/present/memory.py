"""Memory over one training step: per device, predicted next to measured, stacked by kind of value; as a static figure and as the
strips under the lanes of an interactive timeline.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from simulator.engine.memory.contents import KIND_NAMES, STACKED
from simulator.machine.machine import HOST
from traces import units
from traces.documents.timeline import HeldByKind, Timeline
from ui.present import palette
from ui.present.charts import finished
from ui.present.labels import PEAK, plotly_escaped
from ui.present.pictures import INK, LETTER, WIDTH, text_width
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


#: Pixels per row, and between rows; and the room between predicted and measured, as a share of the width.
ROW_PX, BETWEEN_PX, GAP = 175, 45, 0.05


def memory_figure(predicted: Timeline, measured: Timeline | None = None, title: str = "") -> go.Figure | None:
    """What every device's memory holds, predicted beside measured, for a static picture. None if no timeline says so."""
    timelines = [timeline for timeline in (predicted, measured) if timeline is not None and timeline.memory_kinds]
    device_rows = rows(timelines)
    if not device_rows:
        return None
    drawn_px = len(device_rows) * (ROW_PX + BETWEEN_PX) - BETWEEN_PX
    figure = make_subplots(
        len(device_rows), len(timelines), vertical_spacing=BETWEEN_PX / drawn_px, horizontal_spacing=GAP, shared_yaxes=True
    )
    end_ms = max(timeline.window_s[1] - timeline.window_s[0] for timeline in timelines) * 1e3
    for number, row in enumerate(device_rows, start=1):
        for column, panel in enumerate(row.panels, start=1):
            if panel is not None:
                _draw(figure, panel, row, {"row": number, "col": column}, row.headings[column - 1], 0.9 * WIDTH / len(timelines))
        figure.update_yaxes(range=[0, row.top], row=number)
        figure.update_yaxes(title_text=f"allocated, {row.unit}", row=number, col=1)
    for kind in kinds_shown(device_rows):
        _name(figure, KIND_NAMES[kind], mode="markers", marker={"color": palette.KIND[kind], "symbol": "square", "size": 12})
    _name(figure, PEAK, mode="lines", line=PEAK_LINE)
    if any(row.limit_bytes for row in device_rows):
        _name(figure, "limit", mode="lines", line=LIMIT_LINE)
    figure.update_xaxes(range=[0, end_ms * 1.002], showticklabels=False)
    figure.update_xaxes(title_text=X_LABEL, showticklabels=True, row=len(device_rows))
    return finished(figure, f"{title}: memory" if title else "memory", drawn_px)


PEAK_LINE, LIMIT_LINE = {"color": INK, "width": 1.4, "dash": "dash"}, {"color": palette.LIMIT, "width": 2}


def _draw(figure: go.Figure, panel: Panel, row: Row, place: dict[str, int], words: str, room_px: float) -> None:
    """Add the heading of a panel and its stacked areas, the highest first and lower ones over it; the peak, and the limit."""
    stacked = np.cumsum(list(panel.held.values()), axis=0) / row.unit_bytes
    for kind, top in reversed(list(zip(panel.held, stacked, strict=True))):
        figure.add_scatter(
            x=panel.times_ms, y=top, fill="tozeroy", fillcolor=palette.KIND[kind], mode="lines", line={"width": 0, "shape": "hv"},
            showlegend=False, **place,
        )  # fmt: skip
    for drawn_bytes, line in ((panel.peak_bytes, PEAK_LINE), (row.limit_bytes, LIMIT_LINE)):
        if drawn_bytes:
            figure.add_hline(drawn_bytes / row.unit_bytes, line=line, **place)
    figure.add_annotation(
        text=f"<b>{plotly_escaped(words)}</b>", xref="x domain", yref="y domain", x=0, y=1, xanchor="left", yanchor="bottom",
        showarrow=False, font={"size": min(LETTER, room_px / text_width(words, 1))}, **place,
    )  # fmt: skip


def _name(figure: go.Figure, name: str, **look) -> None:
    """Add an entry of the legend."""
    figure.add_scatter(x=[None], y=[None], name=name, **look)
