"""The ops of a plan, and the keys of a profile, as points of a roofline: how many FLOPs they do per byte, and how many per second."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from simulator.engine.costs import efficiencies
from simulator.engine.costs.cost import MEASURED
from simulator.engine.costs.efficiencies import precision_of
from simulator.engine.costs.model import CostModel, measurable
from simulator.engine.costs.site import Site
from simulator.plan.plan import Plan
from traces.documents.profile import Profile


@dataclass(frozen=True)
class OpPoint:
    """Tasks of one cost key, or a key of a profile. `flops`, `bytes` and `seconds` (with nothing in the cache) are those of one execution.

    `count`: the tasks. `name`: the first of them, or the key. `precision`: the one whose peak applies. `source`: where the time comes from.
    """

    name: str
    op_class: str
    source: str
    flops: float
    bytes: float
    seconds: float
    count: int = 1
    phase: str = ""
    layer: str = ""
    precision: str = "fp32"

    @property
    def intensity(self) -> float:
        """FLOPs per byte."""
        return self.flops / self.bytes

    @property
    def flops_per_s(self) -> float:
        """FLOPs per second."""
        return self.flops / self.seconds

    @property
    def drawable(self) -> bool:
        """Whether the point has a place on logarithmic axes."""
        return min(self.flops, self.bytes, self.seconds) > 0


@dataclass(frozen=True)
class Roof:
    """What one task alone can reach: peak FLOP/s by precision, and bytes per second from memory. On a CPU a task has one core."""

    peaks: dict[str, float]
    bytes_per_s: float

    def at(self, intensity: float, precision: str) -> float:
        """The most FLOP/s with this many FLOPs per byte."""
        return min(efficiencies.figure(self.peaks, precision), self.bytes_per_s * intensity)

    def reached(self, point: OpPoint) -> float:
        """The share of the roof that a point reaches; above 1 if the cache supplies it, or if it does fewer FLOPs than are counted."""
        return point.flops_per_s / self.at(point.intensity, point.precision)


def roof(model: CostModel) -> Roof:
    """The roof of the first device of a machine."""
    device = model.machine.devices[0]
    memory = model.machine.memory(device.name)
    sharing = sum(other.sms for other in model.machine.devices if other.memory == device.memory)
    site = Site.of_device(device, memory, min(1.0, device.sms / sharing))
    return Roof(site.peak_flops, site.bandwidth_bytes_per_s)


def op_points(plan: Plan, model: CostModel) -> list[OpPoint]:
    """The tasks of a plan that compute, one point for each cost key, the one with the most seconds in all first."""
    points: dict[str, OpPoint] = {}
    for task, cost in zip(plan.tasks, model.resolve(plan), strict=True):
        if not measurable(task):
            continue
        known = points.get(cost.key)
        if known is None:
            work = task.body.work(task)
            moved = efficiencies.traffic(task)
            own = OpPoint(
                task.name,
                cost.op_class,
                cost.source,
                flops=work.flops,
                bytes=moved,
                seconds=cost.cold_s,
                phase=task.phase,
                layer=task.layer,
            )
            points[cost.key] = replace(own, precision=precision_of(task, work.op_class, model.precision))
        else:
            points[cost.key] = replace(known, count=known.count + 1)
    return by_time(points.values())


def by_time(points: Iterable[OpPoint]) -> list[OpPoint]:
    """The points, the one with the most seconds in all first."""
    return sorted(points, key=lambda point: -point.count * point.seconds)


def key_points(profile: Profile) -> list[OpPoint]:
    """The measured keys of a profile that have a class."""
    return by_time(
        OpPoint(key, cost.op_class, MEASURED, cost.flops, cost.bytes, (cost.cold or cost.warm).median_s)
        for key, cost in profile.costs.items()
        if cost.op_class
    )
