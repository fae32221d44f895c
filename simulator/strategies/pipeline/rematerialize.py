"""Re-materialization: a stage keeps what its forward reads, and repeats the forward right before the backward (GPipe, section 2.3).

The repeated ops write values of their own, which the backward reads in the place of the first ones, so that those can be freed after the
forward. Results of ops that draw random numbers are kept instead, so that masks are the same on every backend; so are those of ops that
change or read what is changed in place and cannot be had again. Batch-norm is repeated without its running statistics, which the first
forward has updated. Ops whose results the backward does not need are not repeated.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

from simulator.engine.collectives.tasks import COMPUTE
from simulator.model.graph import Op, TrainingGraph
from simulator.plan.bodies.opcall import is_random
from simulator.plan.task import BACKWARD as BACKWARD_PHASE
from simulator.plan.task import CARRIED_KINDS, INPUT, Task
from simulator.strategies.pipeline.cut import Cut
from simulator.strategies.pipeline.pipeline import Pipeline
from simulator.strategies.pipeline.schedule import AGAIN, BACKWARD, FORWARD, Action, Schedule

#: The op whose mutated operands, the running statistics, can be left out without changing what it returns.
_BATCH_NORM = "aten.native_batch_norm.default"


def at_once(schedule: Schedule) -> frozenset[tuple[int, int]]:
    """The (stage, microbatch) pairs whose backward directly follows the forward on their rank: repeating it would save nothing."""
    pairs = set()
    for actions in schedule.ranks:
        for first, second in pairwise(actions):
            if first.kind == FORWARD != second.kind and (first.stage, first.microbatch) == (second.stage, second.microbatch):
                pairs.add((first.stage, first.microbatch))
    return frozenset(pairs)


@dataclass(frozen=True)
class Rematerialization:
    """The repeated forwards of a pipeline's stages."""

    pipeline: Pipeline

    @cached_property
    def _repeated(self) -> list[list[int]]:
        return [repeated(self.pipeline.cut, stage) for stage in range(self.pipeline.stages)]

    def forward(self, stage: int, microbatch: int) -> tuple[list[Task], dict[str, str]]:
        """The tasks that repeat a stage's forward of a microbatch, and by value of the graph the one that the backward then reads."""
        build = self.pipeline.build
        indices, graph = self._repeated[stage], build.graph
        instead = {o.value: build.again(o.value, microbatch) for index in indices for o in graph.ops[index].writes}
        tasks = [_without_statistics(task) for task in build.ops(indices, microbatch, COMPUTE, instead)]
        action = str(Action(stage, AGAIN, microbatch))
        return [replace(task, name=f"{task.name}#again", phase=BACKWARD_PHASE, action=action) for task in tasks], instead


def repeated(cut: Cut, stage: int) -> list[int]:
    """The ops of a stage's forward that are repeated, in order."""
    graph, forward = cut.graph, cut.chunks[stage, FORWARD]
    changers: dict[str, list[int]] = {}  # by storage, the ops that write or change it
    for index, op in enumerate(graph.ops):
        for storage in _changed(graph, op):
            changers.setdefault(storage, []).append(index)
    again = {index for index in forward if not is_random(graph.ops[index].body.target)}
    lasting = {value.storage for value in graph.values.values() if value.kind in (CARRIED_KINDS | {INPUT})}
    dropped = {-1}
    while dropped:
        fresh = {s for s, ops in changers.items() if s not in lasting and again.issuperset(ops)}
        dropped = {index for index in again if not _repeatable(graph, index, fresh, changers)}
        again -= dropped
    wanted = {_storage(graph, o.value) for index in cut.chunks[stage, BACKWARD] for o in graph.ops[index].inputs}
    needed = []
    for index in reversed(forward):
        op = graph.ops[index]
        if index in again and not wanted.isdisjoint(_changed(graph, op)):
            needed.append(index)
            wanted |= {_storage(graph, o.value) for o in op.inputs}
    return needed[::-1]


def _repeatable(graph: TrainingGraph, index: int, fresh: set[str], changers: Mapping[str, Sequence[int]]) -> bool:
    """Whether an op can run again: it changes only storages that are made again, and reads no others that are changed later."""
    op = graph.ops[index]
    reads = {_storage(graph, o.value) for o in op.reads} - fresh
    return _changed(graph, op) <= fresh and all(changer < index for s in reads for changer in changers.get(s, ()))


def _changed(graph: TrainingGraph, op: Op) -> set[str]:
    """The storages that an op writes or changes, but for running statistics, which it can be repeated without."""
    changed = op.writes if op.body.target == _BATCH_NORM else (*op.writes, *op.mutates)
    return {_storage(graph, o.value) for o in changed}


def _storage(graph: TrainingGraph, value: str) -> str:
    return graph.values[value].storage


def _without_statistics(task: Task) -> Task:
    """The task, but if it is a batch-norm that updates running statistics, without them."""
    if task.body.target != _BATCH_NORM or not task.mutates:
        return task
    args = [_left_out(argument, len(task.reads)) for argument in json.loads(task.body.args)]
    return replace(task, body=replace(task.body, args=json.dumps(args, separators=(",", ":"))), mutates=())


def _left_out(argument: Any, reads: int) -> Any:
    """An argument, or None for an operand that comes after the reads."""
    return None if isinstance(argument, dict) and argument.get("$", -1) >= reads else argument
