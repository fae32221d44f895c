"""How sure a predicted step time is: errors of costs carried along the critical path.

An error belongs to a **key**: all tasks of one key are too long or too short together. A guessed key's error belongs to its op class: what
the table says of a class is too high or too low for all of it. With S_k the seconds of key (or class) k on the critical path and r_k the
relative standard deviation of its cost, the path of length S = Σ S_k has

    r² = Σ (r_k · S_k / S)² + common²

where `common` is the error that all costs of a prediction share (`discrepancy`). Linear: the path itself is taken to stay critical.
Errors are of logarithms, so the interval is step · exp(±z · r).
"""

import math
from collections import defaultdict
from collections.abc import Mapping

from scipy.special import ndtri

from simulator.costs.cost import GUESSED, Cost
from traces.timeline import CriticalSpan, Timeline

#: Half the distance between the quartiles of a normal distribution, in standard deviations.
QUARTILE = 0.6745


def relative_deviation(cost: Cost) -> float:
    """Relative standard deviation of one cost: the spread of its samples, and the model's error where it was not measured."""
    return math.hypot(cost.spread / QUARTILE, cost.error)


def step_interval(timeline: Timeline, costs_by_task: Mapping[str, Cost], level: float = 0.9, common: float = 0.0) -> tuple[float, float]:
    """Seconds between which the step time lies with probability `level`, for a timeline with a critical path.

    Spans whose task has no cost (the host, a recorded gap) count as exact. Raises ValueError for a level outside (0, 1).
    """
    if not 0 < level < 1:
        raise ValueError(f"level {level} is not a probability; expected a number between 0 and 1, such as 0.9")
    wrong_s: dict[str, float] = defaultdict(float)
    total = 0.0
    for span in timeline.critical_path:
        length = clipped_seconds(span, timeline.window_s)
        total += length
        cost = costs_by_task.get(span.task)
        if cost is not None:
            wrong_s[cost.op_class if cost.source == GUESSED else cost.key] += length * relative_deviation(cost)
    relative = math.hypot(math.hypot(*wrong_s.values()) / total if total else 0.0, common)
    reach = float(ndtri((1 + level) / 2)) * relative
    return timeline.step_s * math.exp(-reach), timeline.step_s * math.exp(reach)


def clipped_seconds(span: CriticalSpan, window_s: tuple[float, float]) -> float:
    """The part of a span that lies in the window, in seconds."""
    return max(0.0, min(span.end_s, window_s[1]) - max(span.start_s, window_s[0]))
