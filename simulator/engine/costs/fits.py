"""The cost of a key that a CPU's profile did not measure, fitted on the keys that it did. GPUs have `ratios`.

The error of such a cost is estimated by excluding whole models from the fit (`left_out`). Errors of keys of one class are correlated: what
makes one convolution of a model slower than those of other models makes all of them slower.

The error depends on the op class and on how far a key lies beyond those that were fitted.

Each model of a profile is predicted from the keys of the others. A residual is the logarithm of measured over predicted seconds. Within a
model, keys count by their seconds, since the error of a step is what matters; every model has the same weight. Excluding single keys
instead would understate the error, because the keys of one model are similar to each other, but not to those of the next model.
"""

import json
import math
from bisect import bisect_left
from collections.abc import Callable, Mapping
from functools import cache, cached_property
from pathlib import Path
from typing import NamedTuple, Protocol

from simulator.engine.costs import efficiencies
from simulator.engine.costs.cost import FITTED, Z_90, Cost
from simulator.engine.costs.efficiencies import precision_of
from simulator.engine.costs.relatives import family
from simulator.engine.costs.roofline import Estimate, Fit, Point, fit, fit_scale
from simulator.engine.costs.site import Site, Sites, figure
from simulator.machine.machine import Machine
from simulator.plan.task import Task
from traces.documents.profile import KeyCost, Profile

#: With fewer models than these a profile says too little about the next one, and with fewer in a bin that bin does.
LEAST_MODELS, LEAST_IN_BIN = 4, 3
#: Upper limits of the bins of `Fit.beyond`: within the fitted keys, up to 4 and 32 times beyond, farther, and a class without keys.
LIMITS = (0.0, math.log(4), math.log(32), 1e9)
#: The row of all classes together.
EVERY = ""
#: One standard deviation of the logarithm if nothing is known: a factor of four either way in 90 of 100 cases.
WIDE = math.log(4) / Z_90
#: The most models that are excluded in turn, and the most keys of each model and class that are then predicted. More only take time.
_MOST_MODELS, _MOST_KEYS = 12, 60
SHIPPED = Path(__file__).with_name("left_out.json")


class Bin(NamedTuple):
    """The root mean square residual of some models' keys."""

    models: int
    rms: float


class LeftOut(NamedTuple):
    """The errors by op class (EVERY: all together), one `Bin` for each limit and one for classes without keys. `models`: which they are."""

    models: tuple[str, ...]
    bins: Mapping[str, tuple[Bin, ...]]

    def error(self, op_class: str, beyond: float) -> float:
        """One standard deviation of the logarithm of a cost; never less than nearer to the fitted keys."""
        last = bisect_left(LIMITS, beyond)
        return max(self._of_bin(op_class, number) for number in range(last + 1)) if last < len(LIMITS) else self._of_bin(op_class, last)

    def _of_bin(self, op_class: str, number: int) -> float:
        rows = (self.bins.get(name) for name in (op_class, op_class.partition(".")[0], EVERY))
        return next((row[number].rms for row in rows if row is not None and row[number].models >= LEAST_IN_BIN), WIDE)


class Fits(Protocol):
    """Predicts keys from others."""

    def estimate(self, key: str, cost: KeyCost) -> Estimate | None:
        """The predicted seconds of a measured key."""


def left_out(profile: Profile, without: Callable[[str], Fits]) -> LeftOut | None:
    """The errors of the profile's models. `without`: fits on all models but one. None if the profile has fewer than LEAST_MODELS."""
    models = sorted({cost.model for cost in profile.costs.values()} - {""})
    if len(models) < LEAST_MODELS:
        return None
    squares: dict[tuple[str, int], list[float]] = {}
    for model in models[:: (len(models) - 1) // _MOST_MODELS + 1]:
        fits = without(model)
        own: dict[tuple[str, int], list[tuple[float, float]]] = {}
        for key, cost in _keys_of(profile, model):
            estimate, measured_s = fits.estimate(key, cost), (cost.cold or cost.warm).median_s
            if estimate is not None and estimate.seconds > 0:
                residual = math.log(measured_s / estimate.seconds)
                for name in (cost.op_class, EVERY):
                    own.setdefault((name, bisect_left(LIMITS, estimate.beyond)), []).append((measured_s, residual**2))
        for place, weighted in own.items():
            total_s = sum(seconds for seconds, _ in weighted)
            squares.setdefault(place, []).append(sum(seconds * square for seconds, square in weighted) / total_s)
    bins = {
        name: tuple(_bin(squares.get((name, number), ())) for number in range(len(LIMITS) + 1)) for name in sorted({n for n, _ in squares})
    }
    return LeftOut(tuple(models), bins)


def _bin(squares) -> Bin:
    return Bin(len(squares), round(math.sqrt(sum(squares) / len(squares)), 3) if squares else 0.0)


def _keys_of(profile: Profile, model: str) -> list[tuple[str, KeyCost]]:
    """A model's keys that a fit can be scored on, at most _MOST_KEYS of each class, spread evenly."""
    by_class: dict[str, list[tuple[str, KeyCost]]] = {}
    for key, cost in profile.costs.items():
        if cost.model == model and cost.op_class and (cost.cold or cost.warm).median_s > 0:
            by_class.setdefault(cost.op_class, []).append((key, cost))
    return [pair for own in by_class.values() for pair in own[:: len(own) // _MOST_KEYS + 1]]


@cache
def shipped_left_out() -> LeftOut:
    """The errors of the models that `python -m tools cost-fit` measured; `left_out.json` names them."""
    document = json.loads(SHIPPED.read_text())
    return LeftOut(tuple(document["models"]), {name: tuple(Bin(*each) for each in row) for name, row in document["classes"].items()})


#: Most keys in a fit; more of them only take time.
_MOST_POINTS = 400


class _ProfileKey(NamedTuple):
    """A key of the profile that a fit can use."""

    op_class: str
    family: str
    sms: int
    precision: str
    cost: KeyCost


class ProfileFits:
    """Fits on the keys of a profile, made when a key first needs them. `precision`: as in `CostModel`."""

    def __init__(self, machine: Machine, sites: Sites, profile: Profile, precision: str):
        self._machine, self._sites, self._profile, self._precision = machine, sites, profile, precision
        self._made: dict[tuple[str, int, bool], Fit | None] = {}
        self._of_classes: dict[tuple[str, int | None, bool], Fit | None] = {}

    def cost(self, task: Task, device: str, key: str) -> Cost | None:
        """The fitted cost of a task on a device: no product is faster than the peak. None if no key of the profile can be fitted on."""
        work = task.body.work(task)
        site = self._sites.site(device)
        laws = [law for warm in (True, False) if (law := self._law(key, work.op_class, site.sms, warm)) is not None]
        if len(laws) < 2:
            return None
        precision = precision_of(task, work.op_class, self._precision)
        table = efficiencies.seconds(site, work.op_class, work.flops, work.bytes, precision, task.body.loop_length)
        points = [_point(site, work.flops, work.bytes, seconds) for seconds in (table.warm, table.cold)]
        least_s = work.flops / figure(site.peak_flops, precision) if work.op_class in efficiencies.DENSE else 0.0
        warm, cold = (law.at(point) for law, point in zip(laws, points, strict=True))
        error = max(warm.error, cold.error, self.left_out.error(work.op_class, max(warm.beyond, cold.beyond)))
        warm_s, common = max(warm.seconds, least_s), f"{work.op_class}@{key.rpartition('@')[2]}"
        return Cost(key, warm_s, max(warm_s, cold.seconds), FITTED, error=error, common=common)

    @cached_property
    def left_out(self) -> LeftOut:
        """The errors of the profile's own models, each fitted on the others; those of the shipped measurements if it has too few models."""
        return left_out(self._profile, self._without) or shipped_left_out()

    def _without(self, model: str) -> "ProfileFits":
        """Fits on the keys of the other models."""
        costs = {key: cost for key, cost in self._profile.costs.items() if cost.model != model}
        return ProfileFits(self._machine, self._sites, self._profile.model_copy(update={"costs": costs}), self._precision)

    def estimate(self, key: str, cost: KeyCost) -> Estimate | None:
        """What the fits say of a measured key with nothing in the cache. None without a law, and for a key of several threads."""
        share = key.rpartition("@")[2]
        if not share.isdecimal() or not int(share) or (law := self._law(key, cost.op_class, int(share), False)) is None:
            return None
        site = self._sites.site(self._machine.devices[0].name, int(share))
        return law.at(self._own_point(site, self._precision_of(key, cost), cost, False))

    def _law(self, key: str, op_class: str, sms: int, warm: bool) -> Fit | None:
        """The fit for a key: the better one of its family and its op class at this SM count, else that of its class at any SM count.

        If there is neither, one factor fitted on all keys of the profile scales the whole table.
        """
        key_family = family(key)
        name = (key_family, sms, warm)
        if name not in self._made:
            same_family = [item for item in self._keys if (item.op_class, item.sms, item.family) == (op_class, sms, key_family)]
            fits = [fit(self._points(same_family, warm)), self._of_class(op_class, sms, warm)]
            best = min((f for f in fits if f is not None), key=lambda f: f.error, default=None)
            self._made[name] = best or self._of_class(op_class, None, warm) or self._pooled(warm)
        return self._made[name]

    def _of_class(self, op_class: str, sms: int | None, warm: bool) -> Fit | None:
        """The fit of an op class at one SM count, or at any."""
        name = (op_class, sms, warm)
        if name not in self._of_classes:
            same = [item for item in self._keys if item.op_class == op_class and sms in (None, item.sms)]
            self._of_classes[name] = fit(self._points(same, warm))
        return self._of_classes[name]

    def _pooled(self, warm: bool) -> Fit | None:
        name = ("", 0, warm)
        if name not in self._made:
            self._made[name] = fit_scale(self._points(list(self._keys), warm))
        return self._made[name]

    @cached_property
    def _keys(self) -> tuple[_ProfileKey, ...]:
        keys = []
        for key, cost in self._profile.costs.items():
            sms = key.rpartition("@")[2]
            if cost.op_class and sms.isdecimal() and int(sms) > 0:
                keys.append(_ProfileKey(cost.op_class, family(key), int(sms), self._precision_of(key, cost), cost))
        return tuple(keys)

    def _points(self, keys: list[_ProfileKey], warm: bool) -> list[Point]:
        step, device = len(keys) // _MOST_POINTS + 1, self._machine.devices[0].name
        return [self._own_point(self._sites.site(device, item.sms), item.precision, item.cost, warm) for item in keys[::step]]

    def _precision_of(self, key: str, cost: KeyCost) -> str:
        return efficiencies.precision_of_key(key, cost.op_class, self._precision)

    def _own_point(self, site: Site, precision: str, cost: KeyCost, warm: bool) -> Point:
        """The point of a measured key."""
        table = efficiencies.seconds(site, cost.op_class, cost.flops, cost.bytes, precision, cost.launches)
        measured_s = (cost.warm if warm else cost.cold or cost.warm).median_s
        return _point(site, cost.flops, cost.bytes, table.warm if warm else table.cold, measured_s)


def _point(site: Site, flops: float, moved_bytes: float, table_s: float, measured_s: float = 0.0) -> Point:
    """A point of a task, which runs on one core, however many the device has."""
    return Point(flops, moved_bytes, table_s, measured_s)
