"""Pipelines in a timeline: the spans of one action as one stretch of time."""

from collections.abc import Iterable, Iterator

from traces.documents.timeline import Span

#: The phase of spans that move data: they run beside the actions that they belong to.
TRANSFER = "transfer"
#: Two spans of an action are one stretch if they are apart by at most this share of a step; the device counts as idle in a longer gap.
LEAST_GAP = 0.005


def is_pipeline(spans: Iterable[Span]) -> bool:
    """Whether some of the spans are part of a pipeline's actions."""
    return any(span.action for span in spans)


def stretches(spans: Iterable[Span], most_idle_s: float) -> Iterator[tuple[Span, ...]]:
    """Yield the spans in groups: those that follow each other on a lane, belong to one action and phase, and leave at most `most_idle_s`
    seconds between each other. A span that is part of no action, such as an update, forms a group with its neighbors of the same phase.

    Groups of a lane come in order of time.
    """
    by_lane: dict[tuple[str, str], list[Span]] = {}
    for span in sorted(spans, key=lambda span: (span.start_s, span.end_s)):
        by_lane.setdefault((span.device, span.lane), []).append(span)
    for own in by_lane.values():
        group: list[Span] = []
        end_s = 0.0
        for span in own:
            if group and (_which(span) != _which(group[0]) or span.start_s - end_s > most_idle_s):
                yield tuple(group)
                group = []
            end_s = max(end_s, span.end_s) if group else span.end_s
            group.append(span)
        if group:
            yield tuple(group)


def _which(span: Span) -> tuple[str, str, int]:
    return span.action, span.phase, span.iteration
