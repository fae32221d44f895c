"""What a library's collectives take between processes: all call together, and the slowest counts."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from calibrate.collective_fit import store_collective
from executors.distributed.backend import DistributedBackend, DistributedProgram
from executors.measured import Measured
from simulator.bodies.collective import Collective
from simulator.plan.plan import Plan
from simulator.plan.task import BUFFER, Segment, Task
from traces.collectives import law_name
from traces.profile import Profile, Stats

#: Calls per visit: the first comes out of a barrier, which the processes do not leave at one moment.
CALLS = 3


def unmeasured(plans: Iterable[Plan], library: str, profile: Profile) -> dict["Shape", tuple[Plan, Task]]:
    """The collectives of `plans` that the profile has no point of, each with the first task that makes one."""
    found: dict[Shape, tuple[Plan, Task]] = {}
    for plan in plans:
        for shape, task in _collectives(plan).items():
            law = profile.collectives.get(law_name(shape.operation, library, shape.ranks))
            if law is None or shape.bytes not in dict(law.points):
                found.setdefault(shape, (plan, task))
    return found


@dataclass(frozen=True)
class Shape:
    """What decides how long a collective takes. `bytes`: of one device's operands."""

    operation: str
    ranks: int
    bytes: int

    @staticmethod
    def of(task: Task) -> "Shape":
        """The shape of a collective."""
        return Shape(task.body.name, len(task.body.devices), task.body.payload_bytes(task))


def _collectives(plan: Plan) -> dict[Shape, Task]:
    found: dict[Shape, Task] = {}
    for task in plan.tasks:
        if isinstance(task.body, Collective):
            found.setdefault(Shape.of(task), task)
    return found


@dataclass
class CollectiveSampler:
    """Collectives as programs of one task each, loaded in all processes; `visit` times every one of them."""

    backend: DistributedBackend
    samples: dict[Shape, list[list[float]]] = field(default_factory=dict)  # by round
    _programs: dict[Shape, DistributedProgram] = field(default_factory=dict)

    def add(self, plan: Plan) -> None:
        """The plan's collectives; those already known are skipped."""
        for shape, task in _collectives(plan).items():
            self.add_one(shape, plan, task)

    def add_one(self, shape: Shape, plan: Plan, task: Task) -> None:
        """One of them."""
        if shape not in self._programs:
            self._programs[shape], self.samples[shape] = self.backend.load(_alone(plan, task), {}), []

    def visit(self) -> None:
        """Time every collective once more."""
        for shape, program in self._programs.items():
            chunk = program.run(CALLS)
            self.samples[shape].append(_longest_s(chunk.times) if chunk.times else list(chunk.steps_s))

    def store(self, profile: Profile, rounds: Sequence[int]) -> None:
        """Put what was measured in the given rounds into the profile."""
        for shape, found in self.samples.items():
            seconds = [s for r in rounds for s in found[r]]
            if seconds:
                mean_s = Stats.of(seconds).mean_s
                store_collective(profile, shape.operation, self.backend.loaded.library, shape.ranks, [(shape.bytes, mean_s)])


def _longest_s(times: Sequence[Measured]) -> list[float]:
    """Of each call but the first, the seconds of the process that it took longest."""
    by_call: dict[int, list[float]] = {}
    for item in times:
        by_call.setdefault(item.period, []).append(item.end_s - item.start_s)
    return [max(taken) for _, taken in sorted(by_call.items())][1:]


def _alone(plan: Plan, task: Task) -> Plan:
    """A plan of the collective by itself, on buffers of its own: they begin as zeros, so that sums over many calls stay finite."""
    values = {name: replace(plan.values[name], kind=BUFFER, source=None) for name in dict.fromkeys(o.value for o in task.mutates)}
    storages = {value.storage: plan.storages[value.storage] for value in values.values()}
    return Plan("collective", (Segment((replace(task, after=(), lag=0),)),), values, storages)
