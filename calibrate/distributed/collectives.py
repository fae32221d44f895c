"""Times the collectives and messages of a library (gloo, NCCL) between processes, and fits their law: seconds by bytes.

All processes of a collective call together, and the slowest one counts. Messages go from the first process to the second; those between
other processes of a node are assumed to take as long.

A library changes its algorithm and protocol with the size of what it reduces; each of them has a latency and a time per byte. So times
follow a few lines, one per range of sizes, with jumps where the library does not switch at the best size. The fit chooses lines and borders
with the least squared relative error (dynamic programming over the points; Bellman, "On the approximation of curves by line segments using
dynamic programming", 1961), and the fewest lines that predict held-out points as well as any number, within a standard error.
"""

import statistics
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from calibrate.cpu.sampler import ROUNDS
from executors.distributed.backend import DistributedBackend
from executors.measured import Measured
from executors.program import Executable
from simulator.engine.collectives.rounds import SEND
from simulator.plan.bodies.copy import Copy
from simulator.plan.messages import between_devices
from simulator.plan.plan import Plan
from simulator.plan.task import ACTIVATION, BUFFER, TRANSFER, Operand, Resource, Storage, Task, Value
from traces.documents.collectives import CollectiveLaw, LawPiece, law_name
from traces.documents.profile import Profile, Stats
from traces.errors import SchedcastError

#: The most pieces that are tried, and the fewest points of a piece.
MOST_PIECES, LEAST_POINTS = 8, 4
#: The points are divided into this many folds; each is held out once.
FOLDS = 5

#: (bytes, seconds)
Point = tuple[float, float]


def store_collective(profile: Profile, operation: str, library: str, ranks: int, points: Iterable[Point]) -> CollectiveLaw:
    """Add measured (bytes, seconds) to the profile's points of other sizes, and fit the law again.

    Bytes are those of one rank's operands. Raises SchedcastError if there are no points, or times of 0.
    """
    name = law_name(operation, library, ranks)
    law = profile.collectives.get(name)
    merged = {**dict(law.points if law else ()), **dict(_by_size(points))}
    profile.collectives[name] = fit_collective(merged.items())
    return profile.collectives[name]


def fit_collective(points: Iterable[Point]) -> CollectiveLaw:
    """The law of (bytes, seconds). Several times of one size count as their median.

    Raises SchedcastError if there are no points, or times of 0.
    """
    medians = _by_size(points)
    if not medians or medians[0][0] < 0 or min(seconds for _, seconds in medians) <= 0:
        raise SchedcastError(f"a collective's law needs sizes of at least 0 bytes and times above 0 s; got {medians[:4]}")
    count, error = _pieces_needed(medians)
    return CollectiveLaw(pieces=_fits(medians, count)[-1], points=medians, held_out_error=error)


def _by_size(points: Iterable[Point]) -> list[Point]:
    by_size: dict[float, list[float]] = {}
    for size, seconds in points:
        by_size.setdefault(float(size), []).append(float(seconds))
    return [(size, statistics.median(by_size[size])) for size in sorted(by_size)]


def _pieces_needed(points: Sequence[Point]) -> tuple[int, float | None]:
    """The number of pieces, and their mean relative error on held-out points; 1 and None if there are too few points to tell."""
    if len(points) < 2 * LEAST_POINTS:
        return 1, None
    errors = np.full((FOLDS, MOST_PIECES), np.inf)
    for fold in range(FOLDS):
        fitted = [point for index, point in enumerate(points) if index % FOLDS != fold]
        held_out = points[fold::FOLDS]
        for number, pieces in enumerate(_fits(fitted, MOST_PIECES)):
            law = CollectiveLaw(pieces=pieces)
            errors[fold, number] = statistics.fmean(abs(law.seconds(size) / seconds - 1) for size, seconds in held_out)
    usable = errors[:, np.isfinite(errors).all(axis=0)]
    mean, uncertain = usable.mean(axis=0), usable.std(axis=0) / np.sqrt(FOLDS)
    best = int(mean.argmin())
    fewest = int((mean <= mean[best] + uncertain[best]).argmax())
    return fewest + 1, float(mean[fewest])


def _fits(points: Sequence[Point], most: int) -> list[list[LawPiece]]:
    """The best laws of 1, 2, ... pieces, up to `most` or as many as the points allow."""
    sizes, seconds = np.array(points).T
    errors, latency_s, s_per_byte = _lines(sizes, seconds)
    count = len(sizes)
    first, last = np.indices((count, count))
    errors[last - first + 1 < min(LEAST_POINTS, count)] = np.inf
    best, begins = errors[0], []
    laws = []
    for number in range(most):
        if number:
            totals = best[:-1, None] + errors[1:]  # indexed by the end of the earlier pieces, and by the end of the last piece
            begins.append(totals.argmin(axis=0) + 1)
            best = totals.min(axis=0)
        if not np.isfinite(best[-1]):
            break
        pieces, end = [], count - 1
        for begin in (*(table for table in reversed(begins)), np.zeros(count, int)):
            start = int(begin[end])
            pieces.append(LawPiece(float(sizes[end]), float(latency_s[start, end]), float(s_per_byte[start, end])))
            end = start - 1
        laws.append(pieces[::-1])
    return laws


def _lines(sizes: np.ndarray, seconds: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(squared relative error, latency, time per byte) of the line through points i to j, at [i, j]. Latency and time are at least 0."""
    unit = sizes.max() or 1.0
    x, weight = sizes / unit, seconds**-2.0

    def sums(values: np.ndarray) -> np.ndarray:
        total = np.concatenate([[0.0], np.cumsum(values)])
        return total[None, 1:] - total[:-1, None]

    one, by_x, by_xx = sums(weight), sums(weight * x), sums(weight * x * x)
    by_y, by_xy, by_yy = sums(weight * seconds), sums(weight * x * seconds), sums(weight * seconds**2)
    with np.errstate(divide="ignore", invalid="ignore"):
        spread = one * by_xx - by_x**2
        slope = np.where(spread > 1e-12 * one * by_xx, (one * by_xy - by_x * by_y) / spread, 0.0).clip(min=0.0)
        start = (by_y - slope * by_x) / one
        through_0 = start < 0.0
        slope, start = np.where(through_0, by_xy / by_xx, slope), np.where(through_0, 0.0, start)
    error = by_yy - 2 * start * by_y - 2 * slope * by_xy + start**2 * one + 2 * start * slope * by_x + slope**2 * by_xx
    ordered = np.tri(len(x), dtype=bool).T
    return np.where(ordered, error.clip(min=0.0), np.inf), start, slope / unit


#: Calls per sample. The first is discarded: it follows a barrier, which the processes do not leave at the same moment.
CALLS = 3
#: Messages of these sizes are measured in addition to those of the plans, if none were before, so that the law covers other sizes too.
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
    """The collectives and messages of a plan, each in a separate plan."""
    shapes: dict[Shape, Plan] = {}
    for task in plan.tasks:
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
                mean_s = Stats.from_samples(seconds).mean_s
                store_collective(profile, shape.operation, self.backend.loaded.library, shape.ranks, [(shape.bytes, mean_s)])


def _longest_s(times: Sequence[Measured]) -> list[float]:
    """Seconds of each call but the first, on the process that took longest."""
    by_call: dict[int, list[float]] = {}
    for item in times:
        by_call.setdefault(item.period, []).append(item.end_s - item.start_s)
    return [max(seconds) for _, seconds in sorted(by_call.items())][1:]


def _alone(plan: Plan, task: Task) -> Plan:
    """A plan with only this collective, on separate buffers. They start as zeros, so that sums over many calls stay finite."""
    if task.body.listed:
        plan, task = _on_all_devices(plan, task)
    values = {name: replace(plan.values[name], kind=BUFFER, source=None) for name in dict.fromkeys(o.value for o in task.inputs)}
    values |= {o.value: plan.values[o.value] for o in task.writes}
    storages = {value.storage: plan.storages[value.storage] for value in values.values()}
    return Plan("collective", (replace(task, after=(), lag=0),), values, storages)


def _on_all_devices(plan: Plan, task: Task) -> tuple[Plan, Task]:
    """A collective with the operands of all devices, from one with those of representative devices."""
    listed, devices = task.body.listed, task.body.devices
    values, storages = {}, {}

    def of_all(operands: Sequence[Operand]) -> tuple[Operand, ...]:
        count, every = len(operands) // listed, []
        for number, device in enumerate(devices):
            for operand in operands[number % listed * count :][:count]:
                like = plan.values[operand.value]
                name, storage = f"{like.name} of {device}", f"{like.storage} of {device}"
                values[name] = replace(like, name=name, device=device, storage=storage)
                storages[storage] = replace(plan.storages[like.storage], name=storage, device=device)
                every.append(replace(operand, value=name))
        return tuple(every)

    task = replace(
        task, body=replace(task.body, listed=0), reads=of_all(task.reads), writes=of_all(task.writes), mutates=of_all(task.mutates)
    )
    return replace(plan, values=values, storages=storages), task


def _message(size_bytes: int, devices: Sequence[str]) -> Plan:
    """A plan with only a message of this many bytes, from the first device to the second."""
    source, target = devices[:2]
    held = Value("sent", (size_bytes,), (1,), dtype="uint8", device=source, kind=BUFFER)
    arrived = replace(held, name="arrived", device=target, kind=ACTIVATION, storage="arrived")
    task = Task("message", Copy(source, target), source, reads=(held.operand(),), writes=(arrived.operand(),), phase=TRANSFER)
    values = {value.name: value for value in (held, arrived)}
    return Plan("message", (task,), values, {name: Storage(name, size_bytes, v.device) for name, v in values.items()})
