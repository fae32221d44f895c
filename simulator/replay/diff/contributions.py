"""What contributes to a term: kernels by name and phase, host time by call, or by what it precedes.

A term's durations go from those of the first run to those of the second in small steps, once with all other terms of the first run and once
with those of the second. A node contributes its change wherever it is on the critical path of the counted steps. What two nodes cause only
together, or in the company of other terms, is no one's; it is left as the rest.
"""

from collections import defaultdict
from collections.abc import Sequence

from simulator.replay.diff.hybrid import Hybrid
from traces.documents.diff_result import Contribution

#: Where between the two runs the critical path is looked at.
PLACES = (0.1, 0.3, 0.5, 0.7, 0.9)


def contributions(hybrid: Hybrid, term: str, terms: Sequence[str]) -> list[Contribution]:
    """Return what contributes to `term`. `terms`: all in which the runs differ."""
    members = [
        index for index, own in enumerate(hybrid.term) if own == term and _seconds(hybrid.in_a[index]) != _seconds(hybrid.in_b[index])
    ]
    gains: dict[str, float] = defaultdict(float)
    if not members:
        return []
    contexts = [(), [other for other in terms if other != term]]
    for context in contexts:
        seconds = hybrid.seconds(context)
        for place in PLACES:
            for index in members:
                before_s, after_s = _seconds(hybrid.in_a[index]), _seconds(hybrid.in_b[index])
                seconds[index] = before_s + place * (after_s - before_s)
            on_path = hybrid.on_path(context, seconds)
            for index in members:
                change_s = _seconds(hybrid.in_b[index]) - _seconds(hybrid.in_a[index])
                gains[_label(hybrid, index)] += change_s * on_path[index] / (len(PLACES) * len(contexts) * hybrid.counted)
    totals: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for index, own in enumerate(hybrid.term):
        if own == term and _label(hybrid, index) in gains:
            total = totals[_label(hybrid, index)]
            total[0] += _seconds(hybrid.in_a[index]) / hybrid.steps
            total[1] += _seconds(hybrid.in_b[index]) / hybrid.steps
    return [Contribution(label=label, seconds=gain, a_s=totals[label][0], b_s=totals[label][1]) for label, gain in gains.items()]


def _seconds(node) -> float:
    return 0.0 if node is None else node.seconds


def _label(hybrid: Hybrid, index: int) -> str:
    """What a node is called: by the first run, and by the second if another kernel took its place."""
    a, b = hybrid.in_a[index], hybrid.in_b[index]
    if a is None or b is None:
        return f"{(a or b).label} (only in {'B' if a is None else 'A'})"
    return a.label if a.label == b.label or not a.on_device else f"{a.label} as {b.label}"
