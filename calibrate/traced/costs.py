"""The cost of every key from its recorded kernels."""

import itertools
import statistics
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from calibrate.cuda.geometry import PROFILER, longest
from calibrate.traced.recorded_ops import ALLOCATIONS, RecordedOp, RecordedRun, common_name
from calibrate.traced.steps import Steps
from executors.cuda.driver import GpuFacts, Kernel
from simulator.machine.machine import Machine
from simulator.plan.keys import cost_key
from simulator.plan.plan import Plan
from simulator.plan.task import Task
from traces.documents.profile import KeyCost, Stats
from traces.formats.recording import Recording, by_lane

#: Half the distance of the quartiles of a time that was divided without a sign of where, as a share of it.
_UNCERTAIN = 0.35


class Sample(NamedTuple):
    """One recorded run of a task: its kernels, when the host issued it, and the share of both that is the task's."""

    works: tuple[int, ...]
    issue_s: float
    share: float = 1.0
    certain: bool = True


class KeyCosts:
    """Collects samples by key. `gap_s`: the time between two kernels of a busy stream, which counts as part of the former."""

    def __init__(self, run: RecordedRun, machine: Machine, facts: GpuFacts | None):
        self._run, self._machine, self._facts = run, machine, facts
        self.gap_s = gap_between_kernels_s(run.recording)
        self._samples: dict[str, list[Sample]] = {}
        self._tasks: dict[str, Task] = {}

    def add(self, task: Task, sample: Sample) -> None:
        key = cost_key(task, self._machine)
        self._tasks.setdefault(key, task)
        self._samples.setdefault(key, []).append(sample)

    def costs(self) -> dict[str, KeyCost]:
        """The cost of every key with samples: medians over all its occurrences in all steps."""
        return {key: self._cost(self._tasks[key], samples) for key, samples in self._samples.items()}

    def _cost(self, task: Task, samples: Sequence[Sample]) -> KeyCost:
        seconds = [sample.share * (self._run.seconds(sample.works) + len(sample.works) * self.gap_s) for sample in samples]
        warm = Stats.from_samples(seconds)
        if not all(sample.certain for sample in samples):
            warm = warm._replace(q25_s=warm.median_s * (1 - _UNCERTAIN), q75_s=warm.median_s * (1 + _UNCERTAIN))
        works = [self._run.recording.works[index] for index in samples[0].works]
        kernels = [Kernel(w.name, w.grid, w.block, w.registers, w.shared_bytes, w.duration_s) for w in works]
        geometry = longest(kernels, self._facts) if self._facts is not None else None
        work = task.body.work(task)
        issue_s = statistics.median(sample.issue_s for sample in samples)
        grid, blocks = geometry or (None, None)
        return KeyCost(
            warm, op_class=work.op_class, flops=work.flops, bytes=work.bytes, grid=grid, blocks_per_sm=blocks, issue_s=max(0.0, issue_s),
            geometry_from=PROFILER if geometry else "", launches=task.body.loop_length,
        )  # fmt: skip


def key_costs(steps: Steps, plans: Sequence[Plan], machine: Machine, facts: GpuFacts | None) -> KeyCosts:
    """The costs of the keys of plain PyTorch's plan, and of `plans`, whose backward ops may be parts of its ops."""
    costs = KeyCosts(steps.run, machine, facts)
    parts = {index: parts for plan in plans for index, parts in _parts(steps.plan, plan).items()}
    for step in steps.complete:
        for index, op in step.pairs:
            task = steps.plan.tasks[index]
            start_s, end_s = steps.run.issuing(op, task.body.target)
            whole = Sample(op.works, end_s - start_s - steps.run.blocked_s.within(start_s, end_s))
            costs.add(task, whole)
            for part, sample in zip(parts.get(index, ()), _divided(steps.run, op, whole, parts.get(index, ())), strict=False):
                costs.add(part, sample)
    by_shape: dict[object, list[Task]] = {}
    for number, plan in enumerate((steps.plan, *plans)):
        for task in plan.tasks:
            if task.body.is_update:
                by_shape.setdefault((number, task.reads[0].shape if task.body.form == "for" else ()), []).append(task)
    for tasks in by_shape.values():
        for ops in steps.update_ops(steps.complete, tasks[0]):
            works = tuple(work for op in ops for work in op.works)
            issue_s = sum(op.end_s - op.start_s - steps.run.blocked_s.within(op.start_s, op.end_s) for op in ops)
            parameters = len(tasks)
            costs.add(tasks[0], Sample(works, issue_s / parameters, 1 / parameters))
    return costs


def _parts(whole: Plan, divided: Plan) -> dict[int, tuple[Task, ...]]:
    """For the index of every op of `whole` that `divided` issues in two parts, these parts: dX, then dW and dB."""
    rest = [task for task in divided.tasks if task.body.op]
    parts: dict[int, tuple[Task, ...]] = {}
    position = 0
    for index, task in enumerate(whole.tasks):
        if not task.body.op or position >= len(rest):
            continue
        first = rest[position]
        second = rest[position + 1] if position + 1 < len(rest) else None
        position += 1
        if second is None or first.body.args == task.body.args:
            continue
        if second.body.target == task.body.target and second.reads == first.reads and second.layer == task.layer:
            parts[index] = (first, second)
            position += 1
    return parts


def _divided(run: RecordedRun, op: RecordedOp, whole: Sample, parts: Sequence[Task]) -> Iterator[Sample]:
    """The samples of the parts of an op: its kernels before and from the first one that computes dW."""
    if not parts:
        return
    cut = _first_of_weights(run, op)
    if cut is None:
        flops = [part.body.flops or 1.0 for part in parts]
        for own in flops:
            share = own / sum(flops)
            yield Sample(op.works, whole.issue_s * share, share, certain=False)
        return
    starts_s = [run.recording.calls[run.recording.works[index].call].start_s for index in op.works]
    share = (starts_s[cut] - op.start_s) / max(op.end_s - op.start_s, 1e-9)
    yield Sample(op.works[:cut], whole.issue_s * share)
    yield Sample(op.works[cut:], whole.issue_s * (1 - share))


def _first_of_weights(run: RecordedRun, op: RecordedOp) -> int | None:
    """The position of the first kernel of a convolution's backward that computes the weight's gradient, None if there is no sign of it.

    Until PyTorch 1.9, dX and dW are separate operators. Later, PyTorch allocates dW between the kernels of the two.
    """
    recording, operators = run.recording, run.operators
    inner = operators.children.get(op.operator, ())
    works = [recording.works[index] for index in op.works]
    calls = [recording.calls[work.call].start_s if work.call >= 0 else work.start_s for work in works]
    named = [index for index in inner if operators.all[index].name.endswith(("_backward_weight", "_backward_filter"))]
    allocated = [index for index in inner if common_name(operators.all[index].name) in ALLOCATIONS]
    of_weights = next((position for position, work in enumerate(works) if "wgrad" in work.name.lower()), None)
    limits = [operators.all[named[0]].start_s] if named else [operators.all[index].start_s for index in reversed(allocated)]
    for limit_s in limits:
        cut = sum(start_s < limit_s for start_s in calls)
        if 0 < cut < len(works) and (of_weights is None or cut <= of_weights):
            return cut
    return of_weights if of_weights else None


def gap_between_kernels_s(recording: Recording) -> float:
    """The median time between two kernels of a stream, if the later was launched before the earlier ended; 0 without such."""
    gaps = []
    for members in by_lane(recording.works).values():
        for first, second in itertools.pairwise(members):
            one, other = recording.works[first], recording.works[second]
            if other.call >= 0 and recording.calls[other.call].end_s < one.end_s:
                gaps.append(max(0.0, other.start_s - one.end_s))
    return statistics.median(gaps) if gaps else 0.0
