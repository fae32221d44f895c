"""What pictures and charts of timelines share: one panel per timeline with its lanes, bars, colors and labels, pipelines' actions, and the
memory of every device over the step, predicted next to measured, stacked by kind of value.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np

from simulator.engine.memory.contents import KIND_NAMES, STACKED
from simulator.machine.machine import HOST
from simulator.strategies.pipeline.schedule import AGAIN, BACKWARD, BY_INPUT, BY_WEIGHT, FORWARD, Action
from traces import units
from traces.documents.spans import LEAST_GAP, TRANSFER, critical_spans, is_pipeline, lanes, stretches
from traces.documents.timeline import Cause, HeldByKind, Span, Timeline
from ui.present import labels
from ui.present.labels import PEAK, lane_label

#: The groups of bars of gradients by the weights, where a backward is split, and of forwards that are repeated before it.
BY_WEIGHTS, REPEATED = "backward by weights", "forward again"
#: A lane whose transfers take less than this share of the step is omitted, for example if data stay in memory that two devices share.
_LEAST_TRANSFERS = 0.01


class PipelineBars:
    """The bars of a pipeline's spans in the window [`begin_s`, `end_s`]. Lanes of other spans keep a bar for each span."""

    def __init__(self, spans: Sequence[Span], begin_s: float, end_s: float):
        """`spans`: all those that overlap the window, of which some are part of actions."""
        self._length_s = end_s - begin_s
        self.groups = list(stretches(self._visible(spans), LEAST_GAP * self._length_s))
        self._actions: dict[tuple[str, str], set[Action]] = {}  # by lane
        for group in self.groups:
            action = _computed(group[0])
            if action is not None:
                self._actions.setdefault((group[0].device, group[0].lane), set()).add(action)
        actions = {action for own in self._actions.values() for action in own}
        self._by_iteration = len({action.microbatch for action in actions}) < 2

    def _visible(self, spans: Sequence[Span]) -> list[Span]:
        """The spans without those of lanes in which nothing takes time."""
        seconds: dict[tuple[str, str], float] = {}
        for span in spans:
            takes_s = span.end_s - span.start_s if span.phase == TRANSFER else self._length_s
            seconds[span.device, span.lane] = seconds.get((span.device, span.lane), 0.0) + takes_s
        return [span for span in spans if seconds[span.device, span.lane] >= _LEAST_TRANSFERS * self._length_s]

    def lane_label(self, device: str, lane: str) -> str:
        """The label of a lane: cpu:0 stages 0, 2, if it runs stages. If forwards and backwards have own lanes, it says which."""
        actions = self._actions.get((device, lane))
        if actions is None:
            return lane_label(device, lane)
        stages = sorted({action.stage for action in actions})
        halves = {action.kind == FORWARD for action in actions}
        which = "" if len(halves) > 1 else " forward" if True in halves else " backward"
        return f"{device} stage{'s' if len(stages) > 1 else ''} {', '.join(map(str, stages))}{which}"

    def group_of(self, span: Span) -> str:
        """The name that a span's bar has in the legend: its phase, the second half of a backward, or a repeated forward."""
        action = _computed(span)
        return span.phase if action is None else {BY_WEIGHT: BY_WEIGHTS, AGAIN: REPEATED}.get(action.kind, span.phase)

    def merged(self, group: Sequence[Span]) -> Span:
        """A span that represents a group; its name says what they are."""
        first = group[0]
        if len(group) == 1:
            return first
        action = Action.read(first.action)
        name = f"{len(group)} {first.phase} tasks" if action is None else f"{first.action}: {_words(action)}, {len(group)} tasks"
        layers = list(dict.fromkeys(span.layer for span in group if span.layer))
        layer = f"{layers[0]} to {layers[-1]}" if len(layers) > 1 else "".join(layers)
        return replace(first, task=name, layer=layer, end_s=max(span.end_s for span in group))

    def labels(self, span: Span) -> tuple[str, ...]:
        """Texts for a span's bar, longest first: 1F3 for stage 1 and microbatch 3, if the lane runs several stages; F3; 3.

        If there is one microbatch in a step, the number is that of the iteration.
        """
        action = _computed(span)
        if action is None:
            return ()
        number = str(self._number(span, action))
        several = len({other.stage for other in self._actions[span.device, span.lane]}) > 1
        return (*([f"{action.stage}{action.kind}{number}"] if several else []), f"{action.kind}{number}", number)

    def shade(self, span: Span) -> int:
        """0 or 1: neighbors differ, which are the stages of a lane if it runs several, and else microbatches."""
        action = _computed(span)
        if action is None:
            return 0
        stages = sorted({other.stage for other in self._actions[span.device, span.lane]})
        return (stages.index(action.stage) if len(stages) > 1 else self._number(span, action)) % 2

    def idle(self, begin_s: float, end_s: float) -> Iterator[tuple[str, str, float, float]]:
        """Yield (device, lane, start, end) of the time within a window in which a lane that runs stages is idle, in seconds."""
        reached = dict.fromkeys(self._actions, begin_s)
        for group in self.groups:
            place = group[0].device, group[0].lane
            if place in reached:
                yield from self._gap(place, reached[place], group[0].start_s)
                reached[place] = max(reached[place], *(span.end_s for span in group))
        for place, since_s in reached.items():
            yield from self._gap(place, since_s, end_s)

    def _gap(self, place: tuple[str, str], start_s: float, end_s: float) -> Iterator[tuple[str, str, float, float]]:
        if end_s - start_s > LEAST_GAP * self._length_s:
            yield *place, start_s, end_s

    def _number(self, span: Span, action: Action) -> int:
        return span.iteration if self._by_iteration else action.microbatch


def _computed(span: Span) -> Action | None:
    """The action that a span computes; None for a transfer and for a span that is part of no action."""
    return None if span.phase == TRANSFER else Action.read(span.action)


def _words(action: Action) -> str:
    kinds = {FORWARD: "forward", BACKWARD: "backward", BY_INPUT: "backward by input", BY_WEIGHT: BY_WEIGHTS, AGAIN: REPEATED}
    return f"stage {action.stage}, {kinds[action.kind]}"


IDLE = "idle"
X_LABEL = "ms from the start of the training step"
CRITICAL = "critical path"
#: Characters of a row's label.
LABEL_CHARACTERS = 40
#: A panel with more spans than this has no white borders around its bars, because they would hide the bars.
BORDERED_SPANS = 500


@dataclass(frozen=True)
class Bar:
    """One span, clipped to one training step. Times are in ms from the start of the step. In a pipeline, all spans of an action are one.

    `offset_ms`: where the span starts when it is not clipped. `cause`: what the span waited for, if it is on the critical path. `labels`:
    texts for the bar, longest first. `shade`: 0 or 1, for neighbors of one color.
    """

    span: Span
    row: int
    start_ms: float
    length_ms: float
    offset_ms: float
    cause: Cause | None
    labels: tuple[str, ...]
    shade: int = 0

    @property
    def critical(self) -> bool:
        """Whether the span is on the critical path."""
        return self.cause is not None


@dataclass(frozen=True)
class TimelinePanel:
    """One training step of a timeline: `rows` are the labels of its lanes, top row first; `bars` are grouped by phase, in drawing order.

    `step_s`: of the steady state; `drawn_s`: of the step that is drawn, and `drawn`: which one that is, in words.
    `places`: the device and the lane of every row.
    `critical`: a bar for each span of the critical path. `pipeline`: whether the bars are a pipeline's, whose labels are short. `idle`:
    row, start and length in ms of the time in which a pipeline's device waits.
    """

    kind: str
    step_s: float
    length_ms: float
    rows: tuple[str, ...]
    places: tuple[tuple[str, str], ...]
    bars: dict[str, tuple[Bar, ...]]
    drawn_s: float
    drawn: str
    critical: tuple[Bar, ...] = ()
    pipeline: bool = False
    idle: tuple[tuple[int, float, float], ...] = ()

    @property
    def step_ms(self) -> float:
        """The step time in ms."""
        return self.step_s * 1e3

    @property
    def step_label(self) -> str:
        """The step time with its unit, and which step is drawn if that one is another's length: 42.0 ms; drawn is step 5 of 12, 43.1 ms."""
        step, drawn = units.duration(self.step_s), units.duration(self.drawn_s)
        return step if step == drawn else f"{step}; drawn is {self.drawn}, {drawn}"

    @property
    def bordered(self) -> bool:
        """Whether bars have white borders."""
        return sum(map(len, self.bars.values())) <= BORDERED_SPANS


def timeline_panel(timeline: Timeline, by_action: bool = True, spare: Sequence[tuple[str, str]] = ()) -> TimelinePanel:
    """The panel of a timeline's training step in its steady state.

    `by_action`: whether a pipeline has a bar for each action, not for each task. `spare`: (device, lane) of lanes that are drawn empty.
    """
    begin, end = timeline.window_s
    spans = timeline.window()
    pipeline = PipelineBars(spans, begin, end) if by_action and is_pipeline(spans) else None
    groups = [(span,) for span in spans] if pipeline is None else pipeline.groups
    used = lanes(timeline, [group[0] for group in groups])
    devices = list(dict.fromkeys(device for device, _ in (*used, *spare)))
    places = sorted(dict.fromkeys([*used, *spare]), key=lambda place: devices.index(place[0]))
    row_of = {place: row for row, place in enumerate(places)}
    causes = {span: link.cause for span, link in critical_spans(timeline)}
    several_microbatches = len({span.microbatch for span in spans}) > 1

    def bar(span: Span, cause: Cause | None, texts: tuple[str, ...] = (), shade: int = 0) -> Bar:
        start_s, end_s = max(span.start_s, begin), min(span.end_s, end)
        start_ms, length_ms, offset_ms = (1e3 * seconds for seconds in (start_s - begin, end_s - start_s, span.start_s - begin))
        return Bar(
            span,
            row=row_of[span.device, span.lane],
            start_ms=start_ms,
            length_ms=length_ms,
            offset_ms=offset_ms,
            cause=cause,
            labels=texts,
            shade=shade,
        )

    bars: dict[str, list[Bar]] = defaultdict(list)
    for group in groups:
        first = group[0]
        cause = next((causes[span] for span in group if span in causes), None)
        if pipeline is None:
            texts = (str(first.microbatch),) if several_microbatches else _layer_labels(first.layer)
            bars[first.phase].append(bar(first, cause, texts))
        else:
            drawn = bar(pipeline.merged(group), cause, pipeline.labels(first), pipeline.shade(first))
            bars[pipeline.group_of(first)].append(drawn)
    phases = labels.phases_in_order(set(bars))
    if pipeline is None:
        critical = [each for phase in phases for each in bars[phase] if each.critical]
    else:
        critical = [bar(span, causes[span]) for group in groups for span in group if span in causes]
    return TimelinePanel(
        kind=timeline.kind,
        step_s=timeline.step_s,
        length_ms=max(timeline.step_s, end - begin) * 1e3,
        places=tuple(places),
        rows=_row_labels([(lane_label if pipeline is None else pipeline.lane_label)(*place) for place in places]),
        bars={phase: tuple(bars[phase]) for phase in phases},
        drawn_s=end - begin,
        drawn=_drawn_words(timeline, spans),
        critical=tuple(critical),
        pipeline=pipeline is not None,
        idle=tuple(_idle(pipeline, row_of, begin, end)),
    )


def _drawn_words(timeline: Timeline, window: Sequence[Span]) -> str:
    """Which of a timeline's periods its window shows: step 5 of 12."""
    periods = sorted({span.period for span in timeline.spans})
    if not window:
        return "another step"
    own, _ = Counter(span.period for span in window).most_common(1)[0]
    return f"step {periods.index(own) + 1} of {len(periods)}"


def _idle(
    pipeline: PipelineBars | None, row_of: Mapping[tuple[str, str], int], begin_s: float, end_s: float
) -> Iterator[tuple[int, float, float]]:
    """Row, start and length of the idle time of a pipeline's lanes, in ms from the start of the step."""
    for device, lane, start, end in pipeline.idle(begin_s, end_s) if pipeline is not None else ():
        yield row_of[device, lane], (start - begin_s) * 1e3, (end - start) * 1e3


def _row_labels(labels: Sequence[str]) -> tuple[str, ...]:
    """Labels of at most LABEL_CHARACTERS, which leave room for the bars. Long ones lose their middle; a number keeps equal ones apart."""
    half = (LABEL_CHARACTERS - 5) // 2
    shortened = [label if len(label) <= LABEL_CHARACTERS else f"{label[:half]}…{label[-half:]}" for label in labels]
    return tuple(f"{label} ({row})" if shortened.count(label) > 1 else label for row, label in enumerate(shortened))


@lru_cache(maxsize=65536)
def _layer_labels(layer: str) -> tuple[str, ...]:
    """The layer's path, then shorter ends of it that start with a word: layer1.0.conv1, conv1. No label is a bare number."""
    parts = layer.split(".")
    return tuple(".".join(parts[first:]) for first in range(len(parts)) if parts[first] and not parts[first].isdigit())


#: Devices drawn at most. Replicas look the same, so the first ones represent all.
MOST_DEVICES = 8
#: A limit more than this many times as high as the peak is named in the heading instead of drawn: a line would flatten the rest.
LIMIT_IN_SIGHT = 2.5
#: The kind of all bytes of a device, where a timeline does not say what they are.
IN_USE = "in use"


@dataclass(frozen=True)
class Panel:
    """One device in one timeline.

    `times_ms`: instants from the start of the training step; the last is its end. `held`: bytes at these instants by kind of value, in
    stacking order. `peak_bytes`: the most bytes allocated at any time of the timeline, from the same task times as `held`, so at least as
    many.
    `allocator_bytes`: the allocator's own figure, measured in another run (on a CPU one task at a time); 0 if unknown or predicted.
    """

    device: str
    times_ms: tuple[float, ...]
    held: dict[str, tuple[int, ...]]
    peak_bytes: int
    allocator_bytes: int = 0

    @property
    def highest_bytes(self) -> int:
        """The peak bytes within the step."""
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
    limit = timelines[0].limits_bytes.get(device, 0)
    drawn = limit if limit <= LIMIT_IN_SIGHT * highest else 0
    headings = tuple(
        heading(timeline, each, None if drawn else limit) if each is not None else ""
        for timeline, each in zip(timelines, panels, strict=True)
    )
    unit_bytes, unit = units.memory_unit(highest)
    top = max(highest, drawn) / unit_bytes * 1.1
    return Row(panels, headings, drawn, unit_bytes, unit, top or 1.0)


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
    """The bytes allocated on a device within the step, without their kinds."""
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
            [self._strip(timeline, row, panel) for row in by_device if (panel := row.panels[number]) is not None]
            for number, timeline in enumerate(timelines)
        ]

    def colors(self) -> list[dict[str, str]]:
        """Name and color of every kind."""
        return [{"name": KIND_NAMES.get(kind, kind), "color": labels.KIND.get(kind, labels.OTHER)} for kind in self.kinds]

    def arrays(self) -> dict[str, np.ndarray]:
        """The instants of all strips in ticks, and the bytes from each instant on, kind after kind."""
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
