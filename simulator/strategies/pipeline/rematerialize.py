"""Re-materialization: a stage keeps what its forward reads, and repeats the forward right before the backward (GPipe, section 2.3).

What can be repeated is the same as for blocks (`simulator.model.checkpoint`), but for ops that draw random numbers: their results are kept.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

from simulator.model.checkpoint.repeats import Repeats, without_statistics
from simulator.plan.bodies.opcall import is_random
from simulator.plan.task import AGAIN, Task
from simulator.plan.task import BACKWARD as BACKWARD_PHASE
from simulator.strategies.pipeline.cut import Cut
from simulator.strategies.pipeline.pipeline import Pipeline
from simulator.strategies.pipeline.schedule import AGAIN as REPEATED
from simulator.strategies.pipeline.schedule import BACKWARD, FORWARD, Action, Schedule


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
        tasks = map(without_statistics, self.pipeline.ops(Action(stage, REPEATED, microbatch), indices, instead))
        return [replace(task, name=f"{task.name}{AGAIN}", phase=BACKWARD_PHASE) for task in tasks], instead


def repeated(cut: Cut, stage: int) -> list[int]:
    """The ops of a stage's forward that are repeated, in order; not random ones, so that masks are the same also in a CUDA graph."""
    forward = [index for index in cut.chunks[stage, FORWARD] if not is_random(cut.graph.ops[index].body.target)]
    return Repeats(cut.graph).needed(forward, cut.chunks[stage, BACKWARD])
