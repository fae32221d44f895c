"""Replicas of a pipeline: each works on its part of the batch, and the replicas of a stage sum their gradients before their update."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

from simulator.engine.collectives.tasks import COMPUTE, Group
from simulator.machine.machine import Machine
from simulator.model.division.local import COLLECTIVES, TENSOR
from simulator.model.job import Job
from simulator.plan.fusion import delayed, fused, insert
from simulator.plan.plan import Plan
from simulator.plan.task import Task
from simulator.plan.tensors import PlanTensors, merged
from simulator.strategies.builder import Kept
from simulator.strategies.data_parallel import whole_counts
from simulator.strategies.layout import Layout
from simulator.strategies.options import AnyOptions
from simulator.strategies.pipeline.cut import Cut
from simulator.strategies.pipeline.pipeline import Pipeline
from simulator.strategies.zero.shards import Shards, Sums
from simulator.strategies.zero.units import Span, Units


class Replicas:
    """The pipelines of a plan: all replicas or, if `folded`, the first, which represents all.

    `forward`, `backward`: by stage the devices of its forwards, and of its backwards and updates. `left_out`, `kept`: as in `Pipeline`.
    """

    def __init__(
        self,
        job: Job,
        machine: Machine,
        cut: Cut,
        microbatches: int,
        forward: Sequence[Layout],
        backward: Sequence[Layout],
        left_out: int = 0,
        kept: Kept = "freed",
    ):
        """`cut`: of the graph of the first of the devices that divide layers."""
        self.job, self.machine, self.cut, self.forward, self.backward, self._kept = job, machine, cut, forward, backward, kept
        first = forward[0]
        self.division, self.count, self.folded = first.division, first.replicas, first.folded
        self.pipelines = [
            Pipeline(
                job,
                machine,
                self._cut_of(number % self.division.degree, microbatches + left_out),
                microbatches,
                [stage.names[number] for stage in forward],
                [stage.names[number] for stage in backward],
                replica=number // self.division.degree,
                replicas=self.count,
                rank=number % self.division.degree,
                left_out=left_out,
                kept=kept,
            )
            for number in range(len(first.devices))
        ]
        self._shards: dict[int, Shards] = {}  # by stage
        #: The stream of sums of gradients, and that of the updates that wait for them during backward, or of gathered parameters.
        self._sums = self.pipelines[0].sender.streams
        self._updates, self._tensor = self._sums + 1, self._sums + 2

    def _cut_of(self, rank: int, microbatches: int) -> Cut:
        """The graph in stages of one of the devices that divide layers."""
        if not rank:
            return self.cut
        parts = microbatches * self.count
        graph = self.job.graph(self.job.batch // parts, parts, division=replace(self.division, rank=rank))
        return Cut(graph, self.cut.placement)

    def together(self, works: Sequence[Sequence[Task]]) -> list[Task]:
        """The tasks of an action of all pipelines, in turn. Collectives of devices that divide layers become one task."""
        tasks: list[Task] = []
        degree = 1 if self.folded else self.division.degree
        for first in range(0, len(works), degree):
            own = works[first : first + degree]
            if self.division.degree == 1:
                tasks += own[0]
                continue
            for turn in zip(*own, strict=True):
                if turn[0].body.op in COLLECTIVES:
                    together = self._dividing[turn[0].device].together(self.pipelines[0].build.tensors, turn)
                    tasks += [replace(task, action=turn[0].action) for task in together]
                else:
                    tasks += turn
        return tasks

    @cached_property
    def _dividing(self) -> dict[str, Group]:
        """By device, those that divide the layers of its stages together."""
        stages = {stage.names: stage for stage in (*self.forward, *self.backward)}.values()
        groups = [(stage, *members) for stage in stages for members in stage.dividing(TENSOR, self._tensor)]
        return {stage.names[at]: group for stage, group, numbers in groups for at in numbers}

    def shard(self, changed: bool) -> dict[int, list[Task]]:
        """Let each replica of a stage store a shard of its parameters. Returns, by stage, the tasks that gather them at the start of the
        step. `changed`: as in `Shards`.

        Raises SchedcastError for parameters whose memory is not contiguous.
        """
        builders = [pipeline.build for pipeline in self.pipelines]
        tasks: dict[int, list[Task]] = {}
        for stage, owned in enumerate(self.cut.parameters):
            if not owned:
                continue
            own = frozenset(index for index, of in enumerate(self.cut.stage_of) if of == stage)
            sums: Sums = "whole" if self._kept == "held" else "in place"
            units = Units("shard=1", self.cut.graph, owned, own, whole=sums == "whole")
            streams = (COMPUTE, self._updates, self._sums)
            shards = Shards(
                self.job,
                self.machine,
                builders,
                layout=self.backward[stage],
                units=units,
                first_device=self.backward[0].names[0],
                streams=streams,
                sums=sums,
                changed=changed,
            )
            self._shards[stage], tasks[stage] = shards, []
            for unit in units.weights:
                name = f"gather {stage}"
                gather, gathered = shards.gather(Span(unit, 0, 0, False), name, [()] * len(builders))
                unpack, read = shards.unpack(Span(unit, 0, 0, False), name, gathered)
                tasks[stage] += [*gather, *unpack]
                for pipeline, weights in zip(self.pipelines, read, strict=True):
                    pipeline.weights[stage] |= weights
            for pipeline in self.pipelines:
                pipeline.left_out |= units.casts.keys()
        return tasks

    def counts(self) -> list[Task]:
        """The tasks that make the numbers that losses are divided by, of all replicas."""
        builders = [pipeline.build for pipeline in self.pipelines]
        first = builders[0]
        if not first.graph.counts:
            return []
        home = first.place.home(next(iter(first.graph.counts)))
        return whole_counts(next(stage for stage in self.forward if home in stage.names).across(self._sums), builders)

    def zero_gradients(self, stage: int) -> list[Task]:
        """The tasks that set the gradients of a stage's parameters to zero, which last from step to step."""
        owned, name = self.cut.parameters[stage], f"zero gradients {stage}"
        return [pipeline.build.zero_gradients(owned, name) for pipeline in self.pipelines] if owned else []

    def updates(self, stage: int, lag: int = 0) -> list[Task]:
        """The optimizer's tasks of a stage, with gradients of `lag` steps before, after the sum of its gradients over the replicas."""
        if stage in self._shards:
            summed = [task for tasks in self._sums_of_units(stage) for task in tasks]
            return summed + [replace(task, name=f"{task.name}/{stage}") for task in self._shards[stage].pieces.updates(lag)]
        summed = self._summed(stage, self.cut.parameters[stage], f"reduce {stage}")
        return [*summed, *(task for pipeline in self.pipelines for task in pipeline.updates(stage, lag))]

    def with_fused_updates(self, tasks: Sequence[Task], forward: bool) -> list[Task]:
        """`tasks` with an update for each layer, or unit of shards: of backward-fusion or, with `forward`, of forward-fusion.

        Its gradients are summed over the replicas during the backward:

            stage 0, two layers: F F B B2 S2 U2 B1 S1 U1    with `forward`: U1 F1 U2 F2 F B B2 S2 B1 S1
        """
        stages = range(self.cut.stages)
        sums = [each for stage in stages for each in self._sums_of_units(stage)]
        tensors = self._all_tensors
        last = {storage: index for index, task in enumerate(tasks) for storage in tensors.touched(task)}
        positions = [1 + max(last.get(storage, -1) for task in own for storage in tensors.touched(task)) for own in sums]
        tasks = insert(tasks, [(position, task) for position, own in zip(positions, sums, strict=True) for task in own])
        if not self._shards:
            stream = COMPUTE if forward or self.count == 1 else self._updates
            updates = [each for pipeline in self.pipelines for each in pipeline.build.updates_of_layers(stream, lag=int(forward))]
        else:
            stream = self._updates if forward else self._sums
            updates = [
                replace(task, name=f"{task.name}/{stage}")
                for stage, shards in self._shards.items()
                for task in shards.pieces.updates_of(shards.units.unit_of, int(forward), stream)
            ]
        return (delayed if forward else fused)(tasks, updates, self._all_tensors)

    @property
    def _all_tensors(self) -> PlanTensors:
        """Those of all pipelines and shards, as far as they are made."""
        return merged([*(pipeline.build.tensors for pipeline in self.pipelines), *(each.tensors for each in self._shards.values())])

    def _sums_of_units(self, stage: int) -> list[list[Task]]:
        """By layer of a stage, or unit of shards, the tasks that sum its gradients over the replicas."""
        name = f"reduce {stage}"
        if stage in self._shards:
            shards = self._shards[stage]
            return [shards.reduce(unit, self.job.accumulate - 1, True, name) for unit in shards.units.parameters]
        layers: dict[str, list[str]] = {}
        for parameter in self.cut.parameters[stage] if self.count > 1 else ():
            layers.setdefault(self.cut.graph.layers[parameter], []).append(parameter)
        return [self._summed(stage, parameters, f"{layer}/{name}") for layer, parameters in layers.items()]

    def _summed(self, stage: int, parameters: Sequence[str], name: str) -> list[Task]:
        """The tasks that sum the gradients of some parameters of a stage over the replicas."""
        if self.count == 1 or not parameters:
            return []
        tasks: list[Task] = []
        own = [pipeline.build.whole_gradients(parameters) for pipeline in self.pipelines]
        for rank, (group, numbers) in enumerate(self.backward[stage].sharding(self._sums)):
            tasks += group.all_reduce(f"{name} of rank {rank}" if rank else name, [own[at] for at in numbers])
        return tasks

    def plan(self, strategy: str, tasks: Sequence[Task], options: AnyOptions, notes: dict[str, object]) -> Plan:
        """The finished plan. `notes`: what its semantics say about updates."""
        first, *others = self.pipelines
        shards = self._shards.values()
        gradients = {name: operand for each in shards for name, operand in each.pieces.gradients.items()}
        builders, tensors = [pipeline.build for pipeline in others], [each.tensors for each in shards]
        if self.division.degree > 1 and not gradients:
            parts = self.pipelines[: self.division.degree]
            gradients = {name: operand for pipeline in parts for name, operand in pipeline.build.gradients.items()}
        classes = {each.device: each for stage in (*self.forward, *self.backward) for each in stage.classes}
        return first.build.plan(
            strategy,
            tasks,
            options,
            semantics=notes | self._notes(),
            others=builders,
            shards=tensors,
            gradients=gradients,
            classes=tuple(classes.values()),
        )

    def _notes(self) -> dict[str, object]:
        """What the plan's semantics say about the stages and their replicas."""
        notes = self.pipelines[0].notes
        if self.count > 1:
            notes["replicas"] = self.count
        if self._shards:
            notes["shards"] = self.count
        if self.division.degree > 1:
            notes["divided"] = ", and ".join(self.division.words)
        if self.folded:
            each = self.count * self.division.degree
            notes["folded"] = (
                f"One pipeline on {len({stage.names for stage in self.backward})} devices stands for {each}, which do the same"
            )
        return notes
