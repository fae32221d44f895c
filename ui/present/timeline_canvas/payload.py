"""Encodes timelines as the bytes that the script of this folder draws: a header in JSON, then arrays.

    4 bytes    "STL1"
    4 bytes    length of the header in bytes (little-endian, like all numbers)
    header     JSON: title, panels with rows, tables of names, labels, phases and groups; type, place and length of every array
    arrays     each begins at a multiple of 8 bytes, counted from the first

Times are whole ticks of `tick_ms` from the start of the step. An array holds the bars of all panels, row after row, in a row track after
track, in a track in order of start. Spans of a track do not overlap, so that the browser finds visible ones by binary search. Under the
lanes of a panel are its strips of memory (`timeline_rows.Strips`).
"""

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from traces.documents.timeline import Cause, Span, Timeline
from ui.present import labels
from ui.present.labels import headline
from ui.present.timeline_rows import X_LABEL, Bar, Strips, TimelinePanel, timeline_panel

#: Tracks of a lane at most. Spans that fit into none of them lose the part that overlaps in the last one.
MOST_TRACKS = 8


def tracks(start: np.ndarray, end: np.ndarray) -> list[list[int]]:
    """The indices of spans by track, each in order of start. Spans of a lane overlap where they are nested or a timer was inexact.

    `start`, `end`: integer ticks of each span. Those of shortened spans are changed in place.
    """
    placed: list[list[int]] = []
    reached: list[int] = []  # the end of each track
    for index in np.lexsort((-end.astype(np.int64), start)).tolist():
        begin, until = int(start[index]), int(end[index])
        number = next((number for number, last in enumerate(reached) if last <= begin), len(reached))
        if number == MOST_TRACKS:
            number -= 1
            begin = max(begin, reached[number])
            until = max(begin, until)
            start[index], end[index] = begin, until
        if number == len(reached):
            placed.append([])
            reached.append(0)
        placed[number].append(index)
        reached[number] = until
    return placed


def one_track(start: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Start and end of stretches in order of start, each without the part that an earlier one covers."""
    order = np.lexsort((end, start))
    start, end = start[order], end[order]
    reached = np.maximum.accumulate(end)
    start[1:] = np.maximum(start[1:], reached[:-1])
    return start, np.maximum(start, end)


def borders(parts: Sequence[Sequence[int]], first: int) -> list[int]:
    """Where each part begins in an array that holds all of them from place `first` on, and where the last one ends."""
    places = [first]
    for part in parts:
        places.append(places[-1] + len(part))
    return places


#: Groups with separate colors. The others share one.
MOST_GROUPS = 9
#: Parts of a path at most that name a group.
_DEEPEST = 4


def layer_groups(spans: Iterable[Span]) -> dict[str, str]:
    """The group of every layer of `spans`, longest groups first: layer1 for layer1.0.conv1. The least depth that makes two groups is taken.

    Spans without a layer belong to no group. Layers of short groups belong to "".
    """
    seconds: defaultdict[str, float] = defaultdict(float)
    for span in spans:
        if span.layer:
            seconds[span.layer] += span.end_s - span.start_s
    for depth in range(1, _DEEPEST + 1):
        group_of = {layer: ".".join(layer.split(".", depth)[:depth]) for layer in seconds}
        if len(set(group_of.values())) > 1:
            break
    else:
        group_of = {layer: layer for layer in seconds}
    totals: defaultdict[str, float] = defaultdict(float)
    for layer, group in group_of.items():
        totals[group] += seconds[layer]
    longest = sorted(totals, key=lambda group: (-totals[group], group))[:MOST_GROUPS]
    rank = {group: number for number, group in enumerate(longest)}
    named = {layer: group for layer, group in group_of.items() if group in rank}
    return dict(sorted(named.items(), key=lambda item: (rank[item[1]], item[0]))) | {layer: "" for layer in group_of if layer not in named}


MAGIC = b"STL1"
#: Phases with a separate entry in the legend. Files may have any number; the others share one.
MOST_PHASES = 24
OTHER_PHASES, OTHER_LAYERS, NO_LAYER = "other phases", "other layers", "no layer"
#: The arrays and their types. A bar has an entry in all of the first ones; stripes of the critical path and idle time have their own.
ARRAYS = {
    "start": np.uint32, "end": np.uint32, "task": np.uint32, "layer": np.uint32, "label": np.uint32, "phase": np.uint8, "group": np.uint8,
    "shade": np.uint8, "cause": np.uint8, "microbatch": np.int32, "iteration": np.int32,
    "critical_start": np.uint32, "critical_end": np.uint32, "idle_start": np.uint32, "idle_end": np.uint32,
}  # fmt: skip
_CAUSES = tuple(Cause)
_LAST_TICK = 2**32 - 1
_LARGEST_MS = 1e300  # what a damaged file says may be infinite, which JSON cannot hold


def timelines_payload(
    timelines: Sequence[Timeline],
    title: str | None = None,
    events: Sequence[str] = (),
    editable: bool = False,
    spare: Sequence[tuple[str, str]] = (),
) -> bytes:
    """One training step of each timeline, above each other on one time axis. `title`: by default, step times and error.

    `events`: what the browser reports, "selected" (the span that the user picks) and "moved". `editable`: whether spans can be dragged;
    then each has a separate bar, also in a pipeline, and the lanes of `spare` are drawn too, to drop spans on.
    """
    panels = [timeline_panel(timeline, by_action=not editable, spare=spare) for timeline in timelines]
    if title is None:
        first, *others = timelines
        title = headline(first.step_s, others[0].step_s if others else None)
    end_ms = min(_LARGEST_MS, max(panel.length_ms for panel in panels))
    writer = _Writer(tick_ms=max(end_ms / _LAST_TICK, math.ulp(0.0)), groups=layer_groups(s for t in timelines for s in t.window()))
    writer.phases = _phases(panels)
    strips = Strips(writer.ticks)
    memory = strips.of(timelines)
    header = {
        "title": title, "x_label": X_LABEL, "tick_ms": writer.tick_ms, "end_ms": end_ms,
        "panels": [writer.panel(panel) | {"memory": own} for panel, own in zip(panels, memory, strict=True)],
        "memory_kinds": strips.colors(), "limit_color": labels.LIMIT,
        "phases": [_color(phase, labels.phase_color(phase)) for phase in writer.phases], "groups": writer.group_colors(),
        "names": list(writer.names), "labels": list(writer.labels), "causes": list(map(str, _CAUSES)), "clipped": writer.clipped,
        "critical_color": labels.CRITICAL, "idle_color": labels.IDLE, "grey": labels.GREY, "events": list(events), "editable": editable,
    }  # fmt: skip
    return _packed(header, writer.arrays() | strips.arrays())


def _phases(panels: Sequence[TimelinePanel]) -> dict[str, int]:
    """The number of every phase that is drawn. The last number is that of all other phases, if there are too many."""
    phases = labels.phases_in_order({phase for panel in panels for phase in panel.bars})
    if len(phases) > MOST_PHASES:
        phases = [*phases[: MOST_PHASES - 1], OTHER_PHASES]
    return {phase: number for number, phase in enumerate(phases)}


def _color(name: str, color: str) -> dict[str, str]:
    return {"name": name, "color": color, "lighter": labels.shaded(color, 1)}


def _whole(number: int) -> int:
    """A number that fits into 32 bits."""
    return max(-(2**31), min(2**31 - 1, number))


@dataclass
class _Writer:
    """Collects the arrays and tables of all panels. `groups`: the color group of every layer."""

    tick_ms: float
    groups: dict[str, str]
    phases: dict[str, int] = field(default_factory=dict)
    names: dict[str, int] = field(default_factory=lambda: {"": 0})
    labels: dict[tuple[str, ...], int] = field(default_factory=lambda: {(): 0})
    clipped: dict[int, tuple[float, float]] = field(default_factory=dict)
    columns: dict[str, list[np.ndarray]] = field(default_factory=lambda: {name: [np.empty(0, kind)] for name, kind in ARRAYS.items()})
    bars: int = 0  # written so far
    marks: dict[str, int] = field(default_factory=lambda: {"critical": 0, "idle": 0})

    def __post_init__(self) -> None:
        self._named_groups = list(dict.fromkeys(group for group in self.groups.values() if group))
        numbers = {group: number for number, group in enumerate(self._named_groups)}
        self._group_of = {layer: numbers.get(group, len(numbers)) for layer, group in self.groups.items()}

    def panel(self, panel: TimelinePanel) -> dict[str, Any]:
        """A panel's entry in the header; its bars go into the arrays."""
        by_row: list[list[tuple[str, Bar]]] = [[] for _ in panel.rows]
        for phase, bars in panel.bars.items():
            for bar in bars:
                by_row[bar.row].append((phase, bar))
        critical: list[list[tuple[float, float]]] = [[] for _ in panel.rows]
        for bar in panel.critical:
            critical[bar.row].append((bar.start_ms, bar.length_ms))
        idle: list[list[tuple[float, float]]] = [[] for _ in panel.rows]
        for row, start_ms, length_ms in panel.idle:
            idle[row].append((start_ms, length_ms))
        rows = [
            {
                "label": label, "device": device, "lane": lane, "tracks": self._row(by_row[row]),
                "critical": self._marked("critical", critical[row]), "idle": self._marked("idle", idle[row]),
            }
            for row, (label, (device, lane)) in enumerate(zip(panel.rows, panel.places, strict=True))
        ]  # fmt: skip
        return {
            "kind": panel.kind, "step_ms": min(_LARGEST_MS, panel.step_ms), "step_label": panel.step_label, "pipeline": panel.pipeline,
            "sentence": sentence(panel), "rows": rows,
        }  # fmt: skip

    def group_colors(self) -> list[dict[str, str]]:
        """Name and colors of every group of layers; the last two are those of other layers and of none."""
        colors = list(labels.PHASE.values())
        entries = [_color(group, colors[number % len(colors)]) for number, group in enumerate(self._named_groups)]
        return [*entries, _color(OTHER_LAYERS, labels.OTHER), _color(NO_LAYER, labels.IDLE)]

    def arrays(self) -> dict[str, np.ndarray]:
        """All arrays by name."""
        return {name: np.concatenate(parts) for name, parts in self.columns.items()}

    def ticks(self, times_ms: Iterable[float]) -> np.ndarray:
        """Times as ticks, within the axis."""
        with np.errstate(over="ignore", invalid="ignore"):
            ticks = np.rint(np.nan_to_num(np.fromiter(times_ms, np.float64) / self.tick_ms))
        return np.clip(ticks, 0, _LAST_TICK).astype(np.uint32)

    def _row(self, row: list[tuple[str, Bar]]) -> list[int]:
        """Add a row's bars. Returns where its tracks begin, and where the last one ends."""
        start = self.ticks(bar.start_ms for _, bar in row)
        end = np.maximum(start, self.ticks(bar.start_ms + bar.length_ms for _, bar in row))
        exact_end = end.copy()
        parts = tracks(start, end)
        places = borders(parts, self.bars)
        order = [index for part in parts for index in part]
        drawn = [row[index] for index in order]
        for place, index in enumerate(order, start=self.bars):
            bar = row[index][1]
            duration_ms = (bar.span.end_s - bar.span.start_s) * 1e3
            if bar.offset_ms < 0 or exact_end[index] != end[index] or duration_ms > bar.length_ms * (1 + 1e-9):
                self.clipped[place] = _finite(bar.offset_ms), _finite(duration_ms)
        other_phase, no_group = len(self.phases) - 1, len(self._named_groups) + 1
        spans = [bar.span for _, bar in drawn]
        self._add("start", start[order])
        self._add("end", end[order])
        self._add("task", [self._name(span.task) for span in spans])
        self._add("layer", [self._name(span.layer) for span in spans])
        self._add("label", [self.labels.setdefault(bar.labels, len(self.labels)) for _, bar in drawn])
        self._add("phase", [self.phases.get(phase, other_phase) for phase, _ in drawn])
        self._add("group", [self._group_of.get(span.layer, no_group) for span in spans])
        self._add("shade", [bar.shade for _, bar in drawn])
        self._add("cause", [1 + _CAUSES.index(bar.cause) if bar.cause else 0 for _, bar in drawn])
        self._add("microbatch", [_whole(span.microbatch) for span in spans])
        self._add("iteration", [_whole(span.iteration) for span in spans])
        self.bars = places[-1]
        return places

    def _marked(self, kind: str, stretches: list[tuple[float, float]]) -> list[int]:
        """Add the stretches of a row, (start, length) in ms. Returns where they begin and end in their arrays."""
        start = self.ticks(start_ms for start_ms, _ in stretches)
        end = self.ticks(start_ms + length_ms for start_ms, length_ms in stretches)
        for name, values in zip(("start", "end"), one_track(start, np.maximum(start, end)), strict=True):
            self._add(f"{kind}_{name}", values)
        first = self.marks[kind]
        self.marks[kind] += len(stretches)
        return [first, self.marks[kind]]

    def _name(self, name: str) -> int:
        return self.names.setdefault(name, len(self.names))

    def _add(self, column: str, values: Sequence[int] | np.ndarray) -> None:
        self.columns[column].append(np.asarray(values, ARRAYS[column]))


def sentence(panel: TimelinePanel) -> str:
    """What a panel shows, for readers who do not see it."""
    tasks = sum(map(len, panel.bars.values()))
    busy = {phase: sum(bar.length_ms for bar in bars) for phase, bars in panel.bars.items()}
    parts = ", ".join(f"{phase} {length_ms:.3g} ms" for phase, length_ms in busy.items())
    return f"{panel.kind}: a step of {panel.step_label} with {tasks} bars on {len(panel.rows)} lanes; in bars: {parts or 'nothing'}."


def _finite(value: float) -> float:
    return min(_LARGEST_MS, max(-_LARGEST_MS, value)) if value == value else 0.0


def _packed(header: dict[str, Any], arrays: dict[str, np.ndarray]) -> bytes:
    content = bytearray()
    places = {}
    for name, values in arrays.items():
        values = np.ascontiguousarray(values, values.dtype.newbyteorder("<"))
        places[name] = [values.dtype.name, len(content), len(values)]
        content += values.tobytes()
        content += bytes(-len(content) % 8)
    text = json.dumps({**header, "arrays": places}, separators=(",", ":"), allow_nan=False).encode()
    text += b" " * (-(len(MAGIC) + 4 + len(text)) % 8)
    return MAGIC + len(text).to_bytes(4, "little") + text + bytes(content)
