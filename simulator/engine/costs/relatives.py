"""The measured key that is most like one that was not measured: the same op on operands of another batch, or of another image size.

The two keys differ in extents only, all by one factor. The fits say how the time grows with that factor, and the measured key what is
special about the op, such as the algorithm that a library chose for it.
"""

import math
import re
import statistics
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from functools import cached_property
from statistics import median
from typing import NamedTuple

import numpy as np

from simulator.engine.costs.cost import Z_90
from simulator.engine.costs.roofline import LEAST_KEYS
from traces.documents.profile import Profile

_NUMBERS = re.compile(r"\d+\.?\d*")
_DIGITS = re.compile(r"[\d.]+")


def family(key: str) -> str:
    """The family of a key: the key without its numbers, shared by the same op with the same arguments at any size."""
    return _DIGITS.sub("", key.rpartition("@")[0])


class Relatives:
    """The measured keys by family."""

    def __init__(self, keys: Iterable[tuple[str, str]]):
        """`keys`: (family, key)."""
        self._keys: dict[tuple[str, str], list[str]] = {}
        for family, key in keys:
            self._keys.setdefault((family, _share(key)), []).append(key)
        self._numbers: dict[tuple[str, str], np.ndarray] = {}

    def nearest(self, family: str, key: str) -> tuple[str, float] | None:
        """The measured key that differs least from `key` on the same share of a device, and the logarithm of the factor between them.

        None if no key differs by one factor.
        """
        group = (family, _share(key))
        keys = self._keys.get(group)
        if not keys:
            return None
        if group not in self._numbers:
            self._numbers[group] = np.array([_numbers(other) for other in keys])
        table, own = self._numbers[group], np.array(_numbers(key))
        differs = table != own
        with np.errstate(divide="ignore", invalid="ignore"):
            logs = np.where(differs, np.log(own / table), np.nan)
        best: tuple[float, int] | None = None
        for row in np.flatnonzero(differs.any(axis=1)):
            factors = logs[row][differs[row]]
            if np.isfinite(factors).all() and np.ptp(factors) < 1e-9 and (best is None or abs(factors[0]) < abs(best[0])):
                best = (float(factors[0]), int(row))
        return None if best is None else (keys[best[1]], best[0])


def scaling_error(error: float, factor_log: float) -> float:
    """The error of a time scaled from a relative: that of the fit, less if the factor is small, since then little is scaled."""
    return error * min(1.0, abs(factor_log) / math.log(2))


def _share(key: str) -> str:
    """The part of a device that a key names: its SMs."""
    return key.rpartition("@")[2]


def _numbers(key: str) -> Sequence[float]:
    """The numbers of a key. Those that the two keys must share are among them, such as strides and axes."""
    return [float(number) for number in _NUMBERS.findall(key.rpartition("@")[0])]


# The host's time to issue a task that was not measured, from a profile's other tasks.


#: Op classes whose tasks are issued by one call, however many launches they have.
SINGLE_CALL = frozenset({"scan.linear"})


class Issue(NamedTuple):
    """The host's time to issue a task that was estimated from others, and one standard deviation of its logarithm; None: unknown."""

    seconds: float | None
    error: float

    @staticmethod
    def from_samples(samples_s: Sequence[float]) -> "Issue":
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
            self._made[name] = Issue.from_samples(samples) if samples else UNKNOWN
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


# What an op takes on n threads together, from what it takes on one: never longer, and never less than one n-th of it.
# A profile has the ops of plain PyTorch on n threads and those of the executor on one. Where it has an op in both ways, their ratio is
# known. An op that was not measured on n threads has the ratio of ops of its class that take about as long on one. So its time cannot leave
# these bounds, however far beyond the measured ops it lies, as a fit on the times of n threads would.


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
