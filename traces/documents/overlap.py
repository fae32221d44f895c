"""How much work overlaps: the time in which at least two spans run, the time of transfers, and the time of each phase of a step."""

from collections.abc import Iterable

from traces.documents.timeline import Span, Timeline

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


def transfer_seconds(timeline: Timeline) -> float:
    """Seconds of all transfers of the steady period, each counted from its start to its end."""
    start, end = timeline.window_s
    return sum(min(span.end_s, end) - max(span.start_s, start) for span in timeline.window() if span.phase == TRANSFER)


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
