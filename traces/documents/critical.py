"""The spans on the critical path of a timeline."""

from collections import defaultdict

from traces.documents.timeline import CriticalSpan, Span, Timeline

#: The start of a span and of its entry in the critical path may differ by this much: a nanosecond, finer than any timer used.
TOLERANCE_S = 1e-9


def critical_spans(timeline: Timeline) -> tuple[tuple[Span, CriticalSpan], ...]:
    """Every entry of the critical path with its span, in order of time. Entries without a span are left out."""
    by_task: defaultdict[str, list[Span]] = defaultdict(list)
    for span in timeline.spans:
        by_task[span.task].append(span)
    pairs = []
    for entry in sorted(timeline.critical_path, key=lambda entry: (entry.start_s, entry.end_s)):
        nearest = min(by_task[entry.task], key=lambda span: abs(span.start_s - entry.start_s), default=None)
        if nearest is not None and abs(nearest.start_s - entry.start_s) <= TOLERANCE_S:
            pairs.append((nearest, entry))
    return tuple(pairs)
