"""Times the collectives of a library (gloo, NCCL) between processes: all processes call together, and the slowest one counts."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from calibrate.collective_fit import store_collective
from calibrate.cpu.session import ROUNDS
from executors.distributed.backend import DistributedBackend, DistributedProgram
from executors.measured import Measured
from simulator.bodies.collective import Collective
from simulator.plan.plan import Plan
from simulator.plan.task import BUFFER, Segment, Task
from traces.collectives import law_name
from traces.profile import Profile, Stats

#: Calls per sample. The first is discarded: it follows a barrier, which the processes do not leave at the same moment.
CALLS = 3


def measure_collectives(
    plans: Iterable[Plan], backend: DistributedBackend, profile: Profile, save_to: Path | None, rounds: int = ROUNDS
) -> int:
    """Measure the collectives of `plans` that the profile has no point of, with all processes, and return their number."""
    sampler = CollectiveSampler(backend)
    for shape, (plan, task) in _unmeasured(plans, backend.loaded.library, profile).items():
        sampler.add_one(shape, plan, task)
    for _ in range(rounds if sampler.samples else 0):
        sampler.sample()
    sampler.store(profile, range(1, rounds))
    if sampler.samples and save_to is not None:
        profile.save(save_to)
    return len(sampler.samples)


def _unmeasured(plans: Iterable[Plan], library: str, profile: Profile) -> dict["Shape", tuple[Plan, Task]]:
    """The collectives of `plans` that the profile has no point of, each with the first task that has its shape."""
    unmeasured: dict[Shape, tuple[Plan, Task]] = {}
    for plan in plans:
        for shape, task in _collectives(plan).items():
            law = profile.collectives.get(law_name(shape.operation, library, shape.ranks))
            if law is None or shape.bytes not in dict(law.points):
                unmeasured.setdefault(shape, (plan, task))
    return unmeasured


@dataclass(frozen=True)
class Shape:
    """The properties of a collective that determine its time. `bytes` are those of one device's operands."""

    operation: str
    ranks: int
    bytes: int

    @staticmethod
    def of(task: Task) -> "Shape":
        """The shape of a collective task."""
        return Shape(task.body.name, len(task.body.devices), task.body.payload_bytes(task))


def _collectives(plan: Plan) -> dict[Shape, Task]:
    tasks: dict[Shape, Task] = {}
    for task in plan.tasks:
        if isinstance(task.body, Collective):
            tasks.setdefault(Shape.of(task), task)
    return tasks


@dataclass
class CollectiveSampler:
    """Times collectives, each loaded in all processes as a program of one task. `samples` are seconds by sample."""

    backend: DistributedBackend
    samples: dict[Shape, list[list[float]]] = field(default_factory=dict)
    _programs: dict[Shape, DistributedProgram] = field(default_factory=dict)

    def add(self, plan: Plan) -> None:
        """Add the plan's collectives. Shapes that were added before are skipped."""
        for shape, task in _collectives(plan).items():
            self.add_one(shape, plan, task)

    def add_one(self, shape: Shape, plan: Plan, task: Task) -> None:
        """Add one collective."""
        if shape not in self._programs:
            self._programs[shape], self.samples[shape] = self.backend.load(_alone(plan, task), {}), []

    def sample(self) -> None:
        """Take one sample of every collective."""
        for shape, program in self._programs.items():
            chunk = program.run(CALLS)
            self.samples[shape].append(_longest_s(chunk.times) if chunk.times else list(chunk.steps_s))

    def store(self, profile: Profile, numbers: Sequence[int]) -> None:
        """Write the mean times of the samples with the given numbers into the profile."""
        for shape, samples in self.samples.items():
            seconds = [s for number in numbers for s in samples[number]]
            if seconds:
                mean_s = Stats.of(seconds).mean_s
                store_collective(profile, shape.operation, self.backend.loaded.library, shape.ranks, [(shape.bytes, mean_s)])


def _longest_s(times: Sequence[Measured]) -> list[float]:
    """Seconds of each call but the first, on the process that took longest."""
    by_call: dict[int, list[float]] = {}
    for item in times:
        by_call.setdefault(item.period, []).append(item.end_s - item.start_s)
    return [max(seconds) for _, seconds in sorted(by_call.items())][1:]


def _alone(plan: Plan, task: Task) -> Plan:
    """A plan with only this collective, on buffers of its own. They start as zeros, so that sums over many calls stay finite."""
    values = {name: replace(plan.values[name], kind=BUFFER, source=None) for name in dict.fromkeys(o.value for o in task.mutates)}
    storages = {value.storage: plan.storages[value.storage] for value in values.values()}
    return Plan("collective", (Segment((replace(task, after=(), lag=0),)),), values, storages)
