"""The host's time to issue a task that was not measured, from a profile's other tasks."""

import math
import statistics
from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

from simulator.engine.costs.relatives import family
from traces.documents.profile import Profile

#: Op classes whose tasks are issued by one call, however many launches they have.
SINGLE_CALL = frozenset({"scan.linear"})


class Issue(NamedTuple):
    """The host's time to issue a task that was estimated from others, and one standard deviation of its logarithm; None: unknown."""

    seconds: float | None
    error: float

    @staticmethod
    def of(samples_s: Sequence[float]) -> "Issue":
        """The median of some positive times, and the root mean square of their logarithms' distances from it."""
        middle_s = statistics.median(samples_s)
        logs = [math.log(sample / middle_s) for sample in samples_s if sample and middle_s]
        return Issue(middle_s, math.sqrt(statistics.fmean(x * x for x in logs)) if logs else 0.0)


#: Nothing is known of a task's issue time.
UNKNOWN = Issue(None, 0.0)


class IssueTimes:
    """The issue times of a profile. Without a profile none is known."""

    def __init__(self, profile: Profile | None):
        self._profile = profile
        self._made: dict[tuple[str, str], Issue] = {}

    def per_launch(self, key: str, op_class: str) -> Issue:
        """Issue time per launch: the median over the profile's keys of the same family, else of the class, else of all keys."""
        name = (family(key), op_class)
        if name not in self._made:
            by_family, by_class, every = self._measured
            samples = by_family.get(name[0]) or by_class.get(op_class) or every
            self._made[name] = Issue.of(samples) if samples else UNKNOWN
        return self._made[name]

    @cached_property
    def _measured(self) -> tuple[dict[str, list[float]], dict[str, list[float]], list[float]]:
        """The profile's issue times per launch: by family, by op class, and all of them."""
        by_family: dict[str, list[float]] = {}
        by_class: dict[str, list[float]] = {}
        every: list[float] = []
        for key, cost in self._profile.costs.items() if self._profile is not None else ():
            if cost.issue_s is not None:
                for samples in (by_family.setdefault(family(key), []), by_class.setdefault(cost.op_class, []), every):
                    samples.append(cost.issue_s / (1 if cost.op_class in SINGLE_CALL else cost.launches))
        return by_family, by_class, every
