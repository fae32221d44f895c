"""The steps of a recording, aligned with the plan of plain PyTorch: the common subsequence of ops with the largest weight.

Either side may have ops that the other lacks. Two ops can be the same if they have one name and the plan's shapes are among the recorded
ones; recorded operators may take more tensors, such as results to write into.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from calibrate.traced.recorded_ops import UPDATE, RecordedOp, RecordedRun, common_name
from simulator.plan.plan import Plan
from simulator.plan.task import Task
from traces.errors import SchedcastError
from traces.formats.recording import Shape

#: Pairs of a plan's op and a recorded one at most; more take half a gigabyte.
MOST_PAIRS = 100_000_000
#: Weights of a pair whose phases differ or agree.
_OTHER_PHASE, _SAME_PHASE = 1, 3


class Token(NamedTuple):
    """What is compared: the op's common name, the shapes of its tensors with dimensions, and its phase."""

    name: str
    shapes: tuple[Shape, ...]
    phase: str


def aligned(plan: Sequence[Token], recorded: Sequence[Token], with_shapes: bool = True) -> list[tuple[int, int]]:
    """Pairs (index in `plan`, index in `recorded`), increasing in both. Raises SchedcastError if there are too many ops."""
    if len(plan) * len(recorded) > MOST_PAIRS:
        raise SchedcastError(f"the trace has {len(recorded):,} ops in one step, too many to align with the plan's {len(plan):,}")
    weights = _weights(plan, recorded, with_shapes)
    rows, columns = weights.shape
    best = np.zeros((rows + 1, columns + 1), dtype=np.int32)
    for row in range(rows):
        here = np.where(weights[row] > 0, best[row, :-1] + weights[row], 0)
        np.maximum.accumulate(np.maximum(best[row, 1:], here), out=best[row + 1, 1:])
    pairs = []
    row, column = rows, columns
    while row and column:
        if best[row, column] == best[row - 1, column]:
            row -= 1
        elif best[row, column] == best[row, column - 1]:
            column -= 1
        else:
            row, column = row - 1, column - 1
            pairs.append((row, column))
    return pairs[::-1]


def _weights(plan: Sequence[Token], recorded: Sequence[Token], with_shapes: bool) -> np.ndarray:
    """The weight of every pair, 0 if it cannot be the same op."""
    mine, theirs = list(dict.fromkeys(plan)), list(dict.fromkeys(recorded))
    table = np.array([[_weight(a, b, with_shapes) for b in theirs] for a in mine], dtype=np.int8).reshape(len(mine), len(theirs))
    row_of, column_of = ({token: index for index, token in enumerate(tokens)} for tokens in (mine, theirs))
    rows, columns = np.array([row_of[t] for t in plan], dtype=int), np.array([column_of[t] for t in recorded], dtype=int)
    return table[np.ix_(rows, columns)]


def _weight(plan: Token, recorded: Token, with_shapes: bool) -> int:
    if plan.name != recorded.name:
        return 0
    if with_shapes and (Counter(plan.shapes) - Counter(recorded.shapes) or bool(plan.shapes) != bool(recorded.shapes)):
        return 0
    return _SAME_PHASE if plan.phase == recorded.phase else _OTHER_PHASE


#: A step counts if it has at least this share of the matched ops of the step with the most: the first and the last may be incomplete.
_COMPLETE = 0.98
#: Dimensions of a tensor of attention heads.
_HEADS = 4


@dataclass(frozen=True)
class RecordedStep:
    """One recorded step. `pairs`: (task's index in the plan, op); `others`: ops without a task; `updates`: ops of the optimizer by shape.

    With a form that updates all parameters at once, `updates` has one entry, of the shape ().
    """

    iteration: int
    pairs: tuple[tuple[int, RecordedOp], ...]
    updates: dict[Shape, tuple[RecordedOp, ...]]
    others: tuple[RecordedOp, ...]

    @property
    def matched(self) -> list[RecordedOp]:
        """The ops that have a task, in order of start."""
        return sorted([*(op for _, op in self.pairs), *(op for ops in self.updates.values() for op in ops)], key=lambda op: op.start_s)


class Steps:
    """All steps of a run, aligned with `plan`. `with_shapes`: whether ops have to agree in shapes, too."""

    def __init__(self, run: RecordedRun, plan: Plan, with_shapes: bool = True):
        self.run, self.plan = run, plan
        self.calls = [index for index, task in enumerate(plan.tasks) if task.body.op]
        self._tokens = [token_of(plan.tasks[index]) for index in self.calls]
        self._with_shapes = with_shapes
        self._known: dict[tuple[Token, ...], list[tuple[int, int]]] = {}

    @cached_property
    def by_iteration(self) -> tuple[RecordedStep, ...]:
        """Every iteration of the recording as a step."""
        members: dict[int, list[RecordedOp]] = {}
        for op in self.run.ops:
            members.setdefault(op.iteration, []).append(op)
        count = len(self.run.iterations.names)
        return tuple(self._step(number, members[number]) for number in range(count) if number in members)

    @cached_property
    def complete(self) -> tuple[RecordedStep, ...]:
        """The steps that count."""
        counts = [len(step.matched) for step in self.by_iteration]
        return tuple(step for step, count in zip(self.by_iteration, counts, strict=True) if count and count >= _COMPLETE * max(counts))

    def matched_s(self, step: RecordedStep) -> float:
        """Device time of the ops of a step that have a task."""
        return sum(self.run.seconds(op.works) for op in step.matched)

    @property
    def share(self) -> float:
        """The share of the recorded kernel time, in the steps that count, that belongs to tasks of the plan."""
        matched_s = sum(self.matched_s(step) for step in self.complete)
        other_s = sum(self.run.seconds(op.works) for step in self.complete for op in step.others)
        return matched_s / (matched_s + other_s) if matched_s else 0.0

    @cached_property
    def missing(self) -> tuple[Task, ...]:
        """Tasks of the plan without a recorded op in any step that counts."""
        with_op = {index for step in self.complete for index, _ in step.pairs}
        with_op |= {index for index, task in enumerate(self.plan.tasks) if task.body.is_update and self.update_ops(self.complete, task)}
        return tuple(task for index, task in enumerate(self.plan.tasks) if index not in with_op)

    def others_by_name(self) -> list[tuple[str, int, float]]:
        """(name, ops per step, seconds per step) of the recorded ops without a task, the longest first."""
        seconds: defaultdict[str, float] = defaultdict(float)
        counts: Counter[str] = Counter()
        for step in self.complete:
            for op in step.others:
                name = op.name if op.phase not in ("gradient", "zeroing") else f"{op.name} ({_WORDS[op.phase]})"
                seconds[name] += self.run.seconds(op.works)
                counts[name] += 1
        steps = max(1, len(self.complete))
        return [(name, round(counts[name] / steps), total / steps) for name, total in sorted(seconds.items(), key=lambda item: -item[1])]

    @staticmethod
    def update_ops(steps: Sequence[RecordedStep], task: Task) -> list[tuple[RecordedOp, ...]]:
        """By step, the ops of the optimizer for the parameters of an update, together with those of other parameters of the same shape."""
        shape = task.reads[0].shape if task.body.form == "for" else ()
        return [step.updates[shape] for step in steps if shape in step.updates]

    def _step(self, iteration: int, ops: Sequence[RecordedOp]) -> RecordedStep:
        """Align one iteration. If the optimizer's steps are not annotated, what follows backward updates parameters."""
        last_s = max((op.start_s for op in ops if op.phase == "backward"), default=float("inf"))
        updating = [op for op in ops if op.phase == UPDATE] or [op for op in ops if op.start_s > last_s and op.phase == "forward"]
        candidates = [op for op in ops if op.phase in ("forward", "backward") and op.start_s <= last_s]
        key = tuple(Token(op.name, comparable(op.name, op.shapes), op.phase) for op in candidates)
        if key not in self._known:
            self._known[key] = aligned(self._tokens, key, self._with_shapes)
        pairs = tuple((self.calls[mine], candidates[theirs]) for mine, theirs in self._known[key])
        updates = self._updates(updating)
        taken = {id(op) for _, op in pairs} | {id(op) for each in updates.values() for op in each}
        return RecordedStep(iteration, pairs, updates, tuple(op for op in ops if id(op) not in taken))

    def _updates(self, ops: Sequence[RecordedOp]) -> dict[Shape, tuple[RecordedOp, ...]]:
        tasks = [task for task in self.plan.tasks if task.body.is_update]
        if not tasks or not ops:
            return {}
        if tasks[0].body.form != "for":
            return {(): tuple(ops)}
        shapes = {task.reads[0].shape for task in tasks}
        updates: dict[Shape, list[RecordedOp]] = {}
        for op in ops:
            shape = op.shapes[0] if op.shapes else ()
            if shape in shapes:
                updates.setdefault(shape, []).append(op)
        return {shape: tuple(each) for shape, each in updates.items()}


_WORDS = {"gradient": "gradients are added to those kept from the step before", "zeroing": "gradients set to zero"}


def comparable(name: str, shapes: Sequence[Shape]) -> tuple[Shape, ...]:
    """The shapes by which an op is recognized: those with dimensions; of attention those of queries, keys and values, since every kernel
    of it saves other results."""
    attention = name.startswith("attention")
    return tuple(shape for shape in shapes if (len(shape) == _HEADS if attention else shape))


def token_of(task: Task) -> Token:
    """What a task of the plan is compared by."""
    name = common_name(task.body.target)
    return Token(name, comparable(name, [o.shape for o in task.inputs]), task.phase)
