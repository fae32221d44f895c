"""What an op takes on n threads together, from what it takes on one: never longer, and never less than one n-th of it.

A profile has the ops of plain PyTorch on n threads and those of the executor on one. Where it has an op in both ways, their ratio is known.
An op that was not measured on n threads has the ratio of ops of its class that take about as long on one. So its time cannot leave these
bounds, however far beyond the measured ops it lies, as a fit on the times of n threads would.
"""

import math
from bisect import bisect_left
from functools import cached_property
from statistics import median
from typing import NamedTuple

from simulator.engine.costs.cost import Z_90
from simulator.engine.costs.roofline import LEAST_KEYS
from traces.documents.profile import Profile

#: Ops of about the same time whose ratio counts.
_NEIGHBORS = 9


class Ratio(NamedTuple):
    """Seconds on n threads over seconds on one, and one standard deviation of its logarithm."""

    value: float
    error: float


class ThreadRatios:
    """The ratios that a profile knows."""

    def __init__(self, profile: Profile):
        self._profile = profile

    def ratio(self, op_class: str, one_s: float, share: str, threads: int) -> Ratio:
        """The ratio of an op that takes `one_s` seconds on one thread. `share`: what keys of `threads` threads have behind their @.

        It is the median of the nearest ops of its class, or of all classes if that has fewer than LEAST_KEYS. Without any, it is in the
        middle of the bounds. Its error is at most that of a ratio of which nothing but the bounds is known: 90 % lie within them.
        """
        known = self._known.get(share, {})
        pairs = next((own for own in (known.get(op_class, []), known.get("", [])) if len(own) >= LEAST_KEYS), None)
        if pairs is None or one_s <= 0:
            return _bounded(-math.log(threads) / 2, math.inf, threads)
        place = bisect_left(pairs, (math.log(one_s), 0.0))
        first = max(0, min(place - _NEIGHBORS // 2, len(pairs) - _NEIGHBORS))
        near = [ratio for _, ratio in pairs[first : first + _NEIGHBORS]]
        middle = median(near)
        return _bounded(middle, math.sqrt(sum((ratio - middle) ** 2 for ratio in near) / len(near)), threads)

    @cached_property
    def _known(self) -> dict[str, dict[str, list[tuple[float, float]]]]:
        """By share and op class ("": all), the logarithms of the seconds on one thread and of the ratio, the shortest op first."""
        keys = [(*key.rpartition("@")[::2], cost) for key, cost in self._profile.costs.items()]
        alone = {body: (cost.cold or cost.warm).median_s for body, share, cost in keys if share.isdecimal()}
        known: dict[str, dict[str, list[tuple[float, float]]]] = {}
        for body, share, cost in keys:
            together_s, one_s = (cost.cold or cost.warm).median_s, alone.get(body, 0.0)
            if not share.isdecimal() and one_s > 0 and together_s > 0:
                for name in (cost.op_class, ""):
                    known.setdefault(share, {}).setdefault(name, []).append((math.log(one_s), math.log(together_s / one_s)))
        return {share: {name: sorted(pairs) for name, pairs in own.items()} for share, own in known.items()}


def _bounded(log_ratio: float, error: float, threads: int) -> Ratio:
    bounded = min(0.0, max(-math.log(threads), log_ratio))
    return Ratio(math.exp(bounded), min(error, math.log(threads) / 2 / Z_90))
