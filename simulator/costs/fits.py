"""The cost of a key that a profile did not measure, fitted on the keys that it did."""

from functools import cached_property
from typing import NamedTuple

from simulator.costs import efficiencies
from simulator.costs.cost import FITTED, Cost
from simulator.costs.efficiencies import Site, precision_of
from simulator.costs.relatives import Relatives, family, scaling_error
from simulator.costs.roofline import Fit, Point, fit, fit_scale
from simulator.costs.sites import Sites
from simulator.machine.machine import Machine
from simulator.plan.task import Task
from traces.profile import KeyCost, Profile

#: Most keys in a fit; more of them only take time.
_MOST_POINTS = 400


class _ProfileKey(NamedTuple):
    """A key of the profile that a fit can use."""

    op_class: str
    family: str
    sms: int
    cost: KeyCost


class ProfileFits:
    """Fits on the keys of a profile, made when a key first needs them. `precision`: as in `CostModel`."""

    def __init__(self, machine: Machine, sites: Sites, profile: Profile, precision: str):
        self._machine, self._sites, self._profile, self._precision = machine, sites, profile, precision
        self._made: dict[tuple[str, int, bool], Fit | None] = {}

    def cost(self, task: Task, device: str, key: str) -> Cost | None:
        """The fitted cost of a task on a device. None if no key of the profile can be fitted on."""
        work = task.body.work(task)
        site = self._sites.of(device)
        laws = [self._law(key, work.op_class, site.sms, warm) for warm in (True, False)]
        if laws[0] is None or laws[1] is None:
            return None
        precision = precision_of(task, work.op_class, self._precision)
        table = efficiencies.seconds(site, work.op_class, work.flops, work.bytes, precision, task.body.loop_length)
        points = [_point(site, work.flops, work.bytes, seconds) for seconds in (table.warm, table.cold)]
        relative = self._relatives.nearest(family(key), key) if site.kind == "gpu" else None
        if relative is None:
            (warm_s, warm_error), (cold_s, cold_error) = (law.at(point) for law, point in zip(laws, points, strict=True))
            error = max(warm_error, cold_error)
        else:
            name, factor_log = relative
            measured = self._profile.costs[name]
            others = [self._own_point(site, measured, warm) for warm in (True, False)]
            ratios = [law.ratio(*pair) for law, *pair in zip(laws, points, others, strict=True)]
            warm_s, cold_s = (other.seconds * ratio for other, (ratio, _) in zip(others, ratios, strict=True))
            error = max(scaling_error(max(error for _, error in ratios), factor_log), measured.warm.spread)
        grid, blocks = efficiencies.geometry(task, site)
        return Cost(key, warm_s, max(warm_s, cold_s), FITTED, grid, blocks, error=error)

    def _law(self, key: str, op_class: str, sms: int, warm: bool) -> Fit | None:
        """The fit for a key: the better one of its family and its op class at this SM count, else that of its class at any SM count.

        If there is neither, one factor fitted on all keys of the profile scales the whole table.
        """
        key_family = family(key)
        name = (key_family, sms, warm)
        if name not in self._made:
            same_class = [item for item in self._keys if item.op_class == op_class]
            same_sms = [item for item in same_class if item.sms == sms]
            same_family = [item for item in same_sms if item.family == key_family]
            fits = [fit(self._points(items, warm)) for items in (same_family, same_sms)]
            best = min((f for f in fits if f is not None), key=lambda f: f.error, default=None)
            self._made[name] = best or fit(self._points(same_class, warm)) or self._pooled(warm)
        return self._made[name]

    def _pooled(self, warm: bool) -> Fit | None:
        name = ("", 0, warm)
        if name not in self._made:
            self._made[name] = fit_scale(self._points(list(self._keys), warm))
        return self._made[name]

    @cached_property
    def _keys(self) -> tuple[_ProfileKey, ...]:
        keys, threads = [], {d.share_name for d in self._machine.devices if d.threads > 1}  # costs on several threads say little of one
        for key, cost in self._profile.costs.items():
            share = key.rpartition("@")[2]
            sms = share if not threads else "1" if share in threads else ""
            if cost.op_class and sms.isdecimal() and int(sms) > 0:
                keys.append(_ProfileKey(cost.op_class, family(key), int(sms), cost))
        return tuple(keys)

    def _points(self, keys: list[_ProfileKey], warm: bool) -> list[Point]:
        step, device = len(keys) // _MOST_POINTS + 1, self._machine.devices[0].name
        return [self._own_point(self._sites.of(device, item.sms), item.cost, warm) for item in keys[::step]]

    def _own_point(self, site: Site, cost: KeyCost, warm: bool) -> Point:
        """The point of a measured key."""
        precision = self._precision if cost.op_class in efficiencies.DENSE else "fp32"
        table = efficiencies.seconds(site, cost.op_class, cost.flops, cost.bytes, precision, cost.launches)
        measured_s = (cost.warm if warm else cost.cold or cost.warm).median_s
        return _point(site, cost.flops, cost.bytes, table.warm if warm else table.cold, measured_s)

    @cached_property
    def _relatives(self) -> Relatives:
        """The keys with a time."""
        costs = self._profile.costs.items()
        return Relatives((family(key), key) for key, cost in costs if cost.op_class and cost.warm.median_s > 0)


def _point(site: Site, flops: float, moved_bytes: float, table_s: float, measured_s: float = 0.0) -> Point:
    """A point with FLOPs per SM. On a CPU a task runs on one core, however many the device has."""
    return Point(flops / (site.sms if site.kind == "gpu" else 1), moved_bytes, table_s, measured_s)
