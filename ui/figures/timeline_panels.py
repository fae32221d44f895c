"""What pictures and charts of timelines have in common: one panel per timeline with its lanes, bars, colors and labels."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from traces import units
from traces.critical import critical_spans
from traces.lanes import lanes
from traces.timeline import Cause, Span, Timeline
from ui.figures import palette
from ui.text.labels import lane_label

X_LABEL = "ms from the start of the training step"
CRITICAL = "critical path"
#: Characters of a row's label.
LABEL_CHARACTERS = 40
#: A panel with more spans than this has no white borders around its bars, because they would hide the bars.
BORDERED_SPANS = 500


@dataclass(frozen=True)
class Bar:
    """One span, clipped to one training step. Times are in ms from the start of the step.

    `offset_ms`: where the span starts when it is not clipped. `cause`: what the span waited for, if it is on the critical path. `labels`:
    texts for the bar, longest first.
    """

    span: Span
    row: int
    start_ms: float
    length_ms: float
    offset_ms: float
    cause: Cause | None
    labels: tuple[str, ...]

    @property
    def critical(self) -> bool:
        """Whether the span is on the critical path."""
        return self.cause is not None


@dataclass(frozen=True)
class TimelinePanel:
    """One training step of a timeline: `rows` are the labels of its lanes, top row first; `bars` are grouped by phase, in drawing order."""

    kind: str
    step_s: float
    length_ms: float
    rows: tuple[str, ...]
    bars: dict[str, tuple[Bar, ...]]

    @property
    def step_ms(self) -> float:
        """The step time in ms."""
        return self.step_s * 1e3

    @property
    def step_label(self) -> str:
        """The step time with its unit."""
        return units.duration(self.step_s)

    @property
    def critical(self) -> tuple[Bar, ...]:
        """The bars of the critical path."""
        return tuple(bar for group in self.bars.values() for bar in group if bar.critical)

    @property
    def bordered(self) -> bool:
        """Whether bars have white borders."""
        return sum(map(len, self.bars.values())) <= BORDERED_SPANS


def timeline_panel(timeline: Timeline) -> TimelinePanel:
    """The panel of a timeline's training step in its steady state."""
    begin, end = timeline.window_s
    spans = timeline.window()
    places = lanes(timeline, spans)
    row_of = {place: row for row, place in enumerate(places)}
    causes = {span: link.cause for span, link in critical_spans(timeline)}
    several_micro_batches = len({span.micro_batch for span in spans}) > 1
    bars: dict[str, list[Bar]] = defaultdict(list)
    for span in spans:
        start = max(span.start_s, begin)
        labels = (str(span.micro_batch),) if several_micro_batches else _layer_labels(span.layer)
        length_ms = (min(span.end_s, end) - start) * 1e3
        bar = Bar(
            span=span,
            row=row_of[span.device, span.lane],
            start_ms=(start - begin) * 1e3,
            length_ms=length_ms,
            offset_ms=(span.start_s - begin) * 1e3,
            cause=causes.get(span),
            labels=labels,
        )
        bars[span.phase].append(bar)
    return TimelinePanel(
        kind=timeline.kind,
        step_s=timeline.step_s,
        length_ms=max(timeline.step_s, end - begin) * 1e3,
        rows=_row_labels([lane_label(*place) for place in places]),
        bars={phase: tuple(bars[phase]) for phase in palette.phases_in_order(set(bars))},
    )


def _row_labels(labels: Sequence[str]) -> tuple[str, ...]:
    """Labels of at most LABEL_CHARACTERS, which leave room for the bars. Long ones lose their middle; a number keeps equal ones apart."""
    half = (LABEL_CHARACTERS - 5) // 2
    shortened = [label if len(label) <= LABEL_CHARACTERS else f"{label[:half]}…{label[-half:]}" for label in labels]
    return tuple(f"{label} ({row})" if shortened.count(label) > 1 else label for row, label in enumerate(shortened))


def _layer_labels(layer: str) -> tuple[str, ...]:
    """The layer's path, then shorter ends of it that start with a word: layer1.0.conv1, conv1. No label is a bare number."""
    parts = layer.split(".")
    return tuple(".".join(parts[first:]) for first in range(len(parts)) if parts[first] and not parts[first].isdigit())
