"""Quantities derived from a timeline's spans: overlap, the critical ones, the order of lanes, and a pipeline's actions as intervals."""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from traces.documents.timeline import CriticalSpan, Span, Timeline

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


def lanes(timeline: Timeline, spans: Sequence[Span]) -> tuple[tuple[str, str], ...]:
    """Every (device, lane) that `spans` of the timeline use, in drawing order."""
    rank: dict[str, int] = {}
    for name in [*(use.name for use in timeline.devices), *(span.device for span in spans)]:
        rank.setdefault(name, len(rank))
    return tuple(sorted({(span.device, span.lane) for span in spans}, key=lambda place: (rank[place[0]], natural(place[1]))))


def natural(name: str) -> list[tuple[bool, int, str]]:
    """A sort key that puts "stream 2" before "stream 10"."""
    return [(part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in re.split(r"(\d+)", name)]


#: The start of a span and of its entry in the critical path may differ by this much: a nanosecond, finer than any timer used.
TOLERANCE_S = 1e-9


def critical_spans(timeline: Timeline) -> tuple[tuple[Span, CriticalSpan], ...]:
    """Every entry of the critical path with its span, in order of time. Entries without a span are omitted."""
    by_task: defaultdict[str, list[Span]] = defaultdict(list)
    for span in timeline.spans:
        by_task[span.task].append(span)
    pairs = []
    for entry in sorted(timeline.critical_path, key=lambda entry: (entry.start_s, entry.end_s)):
        nearest = min(by_task[entry.task], key=lambda span: abs(span.start_s - entry.start_s), default=None)
        if nearest is not None and abs(nearest.start_s - entry.start_s) <= TOLERANCE_S:
            pairs.append((nearest, entry))
    return tuple(pairs)


FORWARD, BACKWARD, UPDATE, TRANSFER = "forward", "backward", "update", "transfer"


def overlapped_seconds(spans: Iterable[Span], start_s: float, end_s: float) -> float:
    """Seconds within [start_s, end_s] in which at least two of the spans run.

    A span does not include its end, so two spans that touch do not overlap.
    """
    edges = []
    for span in spans:
        left, right = max(span.start_s, start_s), min(span.end_s, end_s)
        if right > left:
            edges += [(left, 1), (right, -1)]
    total, running, reached = 0.0, 0, start_s
    for time, change in sorted(edges):
        if running >= 2:
            total += time - reached
        running += change
        reached = time
    return total


def overlapped_kernel_seconds(timeline: Timeline) -> float:
    """Seconds of the steady period in which at least two tasks that compute (forward, backward, update) run at once."""
    kernels = [span for span in timeline.window() if span.phase in (FORWARD, BACKWARD, UPDATE)]
    return overlapped_seconds(kernels, *timeline.window_s)


def phase_stretches(timeline: Timeline) -> dict[str, float]:
    """Seconds of the steady period by phase, as a clock read at the end of the last forward and of the last backward task would show them.

    `forward` begins at the end of the previous period, so it includes waiting for the host. Updates that run between forward or backward
    tasks count as that phase; `update` is what follows the last backward task. The three add up to the period.
    """
    start, end = timeline.window_s
    period = max((span.period for span in timeline.spans if span.end_s <= end), default=0)
    spans = [span for span in timeline.spans if span.period == period]
    forward_end = max((span.end_s for span in spans if span.phase == FORWARD), default=start)
    backward_end = max((span.end_s for span in spans if span.phase == BACKWARD), default=forward_end)
    return {FORWARD: forward_end - start, BACKWARD: backward_end - forward_end, UPDATE: end - backward_end}
