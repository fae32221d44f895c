"""Which spans of a timeline lie on its critical path."""

from collections import defaultdict

from traces.timeline import CriticalSpan, Span, Timeline

#: Two records of one start may differ by this much: a nanosecond, below the resolution of every timer used.
TOLERANCE_S = 1e-9


def critical_spans(timeline: Timeline) -> tuple[tuple[Span, CriticalSpan], ...]:
    """Each link of the critical path with the span it stands for, in order of time; links without a span are left out."""
    by_task: defaultdict[str, list[Span]] = defaultdict(list)
    for span in timeline.spans:
        by_task[span.task].append(span)
    found = []
    for link in sorted(timeline.critical_path, key=lambda link: (link.start_s, link.end_s)):
        nearest = min(by_task[link.task], key=lambda span: abs(span.start_s - link.start_s), default=None)
        if nearest is not None and abs(nearest.start_s - link.start_s) <= TOLERANCE_S:
            found.append((nearest, link))
    return tuple(found)
