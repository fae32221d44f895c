"""Times the collectives and messages of a library (gloo, NCCL) between processes.

All processes of a collective call together, and the slowest one counts. Messages go from the first process to the second; those between
other processes of a node are assumed to take as long.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from calibrate.collective_fit import store_collective
from calibrate.cpu.session import ROUNDS
from executors.distributed.backend import DistributedBackend
from executors.measured import Measured
from executors.run import Executable
from simulator.engine.collectives.laws import SEND
from simulator.plan.bodies.copy import Copy
from simulator.plan.messages import between_devices
from simulator.plan.plan import Plan
from simulator.plan.task import ACTIVATION, BUFFER, TRANSFER, Resource, Segment, Storage, Task, Value
from traces.documents.collectives import law_name
from traces.documents.profile import Profile, Stats

#: Calls per sample. The first is discarded: it follows a barrier, which the processes do not leave at the same moment.
CALLS = 3
#: Messages of these sizes are measured besides those of the plans, if none were before, so that the law knows other sizes too.
MESSAGE_BYTES = (1 << 10, 1 << 14, 1 << 18, 1 << 20, 1 << 22, 1 << 24)


def measure_collectives(
    plans: Iterable[Plan], backend: DistributedBackend, profile: Profile, save_to: Path | None, rounds: int = ROUNDS
) -> int:
    """Measure the collectives and messages of `plans` that the profile has no point of, with all processes, and return their number."""
    sampler = CollectiveSampler(backend)
    for shape, alone in _unmeasured(plans, backend, profile).items():
        sampler.add_one(shape, alone)
    for number in range(rounds):
        sampler.sample(sampler.samples, number)
    sampler.store(profile, range(1, rounds))
    if sampler.samples and save_to is not None:
        profile.save(save_to)
    return len(sampler.samples)


def _unmeasured(plans: Iterable[Plan], backend: DistributedBackend, profile: Profile) -> dict["Shape", Plan]:
    """The collectives and messages of `plans` that the profile has no point of, each alone in a plan."""
    library = backend.loaded.library
    unmeasured: dict[Shape, Plan] = {}
    for plan in plans:
        for shape, alone in _shapes(plan, backend).items():
            law = profile.collectives.get(shape.law(library))
            if law is None or shape.bytes not in dict(law.points):
                unmeasured.setdefault(shape, alone)
            if law is None and shape.operation == SEND:
                unmeasured |= {Shape(SEND, 2, size): _message(size, backend.names) for size in MESSAGE_BYTES}
    return unmeasured


@dataclass(frozen=True)
class Shape:
    """The properties of a collective or message that determine its time. `bytes` are those of one device's operands."""

    operation: str
    ranks: int
    bytes: int

    def law(self, library: str) -> str:
        """The name of its law in a profile."""
        return law_name(self.operation, library, self.ranks)


def _shapes(plan: Plan, backend: DistributedBackend) -> dict[Shape, Plan]:
    """The collectives and messages of a plan, each alone in a plan of its own."""
    shapes: dict[Shape, Plan] = {}
    for task in plan.every_task:
        if task.body.resource is Resource.COLLECTIVE:
            shape = Shape(task.body.name, len(task.body.devices), task.body.payload_bytes(task))
            if shape not in shapes:
                shapes[shape] = _alone(plan, task)
        elif between_devices(task) and not task.body.aliases:
            shape = Shape(SEND, 2, task.body.moved_bytes(task))
            if shape not in shapes:
                shapes[shape] = _message(shape.bytes, backend.names)
    return shapes


@dataclass
class CollectiveSampler:
    """Times collectives and messages, each loaded in all processes as a program of one task. `samples`: seconds by number of the sample."""

    backend: DistributedBackend
    samples: dict[Shape, dict[int, list[float]]] = field(default_factory=dict)
    _programs: dict[Shape, Executable] = field(default_factory=dict)
    _plans: dict[int, tuple[Plan, tuple[Shape, ...]]] = field(default_factory=dict)  # by identity: plans are large, and not hashable

    def add(self, plan: Plan) -> tuple[Shape, ...]:
        """Add the plan's collectives and messages, and return them. Shapes that were added before are skipped."""
        if id(plan) not in self._plans:
            shapes = _shapes(plan, self.backend)
            for shape, alone in shapes.items():
                self.add_one(shape, alone)
            self._plans[id(plan)] = plan, tuple(shapes)
        return self._plans[id(plan)][1]

    def add_one(self, shape: Shape, alone: Plan) -> None:
        """Add one collective or message, alone in a plan."""
        if shape not in self._programs:
            self._programs[shape], self.samples[shape] = self.backend.load(alone, {}), {}

    def sample(self, shapes: Iterable[Shape], number: int) -> None:
        """Take sample `number` of each of these collectives and messages."""
        for shape in dict.fromkeys(shapes):
            chunk = self._programs[shape].run(CALLS)
            self.samples[shape][number] = _longest_s(chunk.times) if chunk.times else list(chunk.steps_s)

    def store(self, profile: Profile, numbers: Collection[int]) -> None:
        """Write the mean times of the samples with the given numbers into the profile."""
        for shape, samples in self.samples.items():
            seconds = [s for number in numbers for s in samples.get(number, ())]
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


def _message(size_bytes: int, devices: Sequence[str]) -> Plan:
    """A plan with only a message of this many bytes, from the first device to the second."""
    source, target = devices[:2]
    held = Value("sent", (size_bytes,), (1,), "uint8", source, BUFFER, "sent")
    arrived = replace(held, name="arrived", device=target, kind=ACTIVATION, storage="arrived")
    task = Task("message", Copy(source, target), source, reads=(held.operand(),), writes=(arrived.operand(),), phase=TRANSFER)
    values = {value.name: value for value in (held, arrived)}
    return Plan("message", (Segment((task,)),), values, {name: Storage(name, size_bytes, v.device) for name, v in values.items()})
