"""The 90 % interval of a predicted step time, from the errors of the costs on its critical path.

Errors belong to **keys**: all tasks of one key are too long or too short together. The error of a guessed cost belongs to its op class,
because the efficiency table is too optimistic or too pessimistic for the whole class. Let S_k be the seconds on the critical path of key
(or class) k, and r_k the relative standard deviation of its cost. A critical path of S = Σ S_k seconds then has

    r² = Σ (r_k · S_k / S)² + common²

where `common` is the error that all costs of a prediction share (see `discrepancy`). The estimate is linear: it assumes that the path stays
critical. Errors are errors of logarithms, so the interval is step · exp(±z · r).
"""

import math
from collections import defaultdict
from collections.abc import Mapping

from simulator.costs.cost import GUESSED, Cost
from traces.timeline import CriticalSpan, Timeline

#: Distance from the median to a quartile of a normal distribution, in standard deviations.
QUARTILE = 0.6745
#: Half the width of the central 90 % of a normal distribution, in standard deviations: scipy.special.ndtri(0.95).
Z_90 = 1.6448536269514722


def relative_deviation(cost: Cost) -> float:
    """Return the relative standard deviation of a cost: the spread of its samples, and the cost model's error if it was not measured."""
    return math.hypot(cost.spread / QUARTILE, cost.error)


def step_interval(timeline: Timeline, costs_by_task: Mapping[str, Cost], common: float = 0.0) -> tuple[float, float]:
    """Return the bounds, in seconds, between which the step time lies with probability 0.9, for a timeline with a critical path.

    Spans whose task has no cost (the host's, a recorded gap) count as exact.
    """
    deviation_s: dict[str, float] = defaultdict(float)
    total_s = 0.0
    for span in timeline.critical_path:
        length_s = clipped_seconds(span, timeline.window_s)
        total_s += length_s
        cost = costs_by_task.get(span.task)
        if cost is not None:
            deviation_s[cost.op_class if cost.source == GUESSED else cost.key] += length_s * relative_deviation(cost)
    relative = math.hypot(math.hypot(*deviation_s.values()) / total_s if total_s else 0.0, common)
    reach = Z_90 * relative
    return timeline.step_s * math.exp(-reach), timeline.step_s * math.exp(reach)


def clipped_seconds(span: CriticalSpan, window_s: tuple[float, float]) -> float:
    """Return the length of the part of a span that lies in the window, in seconds."""
    return max(0.0, min(span.end_s, window_s[1]) - max(span.start_s, window_s[0]))
