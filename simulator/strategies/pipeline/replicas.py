"""Replicas of a pipeline: each works on its part of the batch, and the replicas of a stage sum their gradients before their update.

The replicas of a stage are successive devices, stage after stage. This is Megatron-LM's default order, data parallelism inside and the
pipeline outside ("Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", Narayanan et al., 2021): gradients have
many bytes and stay inside a node if possible; activations have fewer and cross nodes. With R replicas, stage p of replica r is device
number p * R + r; if T devices divide its layers, it is the T successive ones from number (p * R + r) * T on.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

from simulator.engine.collectives.tasks import COMPUTE, Group
from simulator.machine.machine import Machine
from simulator.model.division.divide import UNDIVIDED, Division
from simulator.model.division.local import COLLECTIVES, TENSOR
from simulator.model.job import Job
from simulator.plan.fusion import fused, insert
from simulator.plan.plan import Plan
from simulator.plan.task import Task
from simulator.plan.tensors import merged
from simulator.strategies.builder import Kept
from simulator.strategies.data_parallel import whole_counts
from simulator.strategies.options import AnyOptions
from simulator.strategies.pipeline.cut import Cut
from simulator.strategies.pipeline.pipeline import Pipeline
from simulator.strategies.sharding.mesh import Mesh
from simulator.strategies.sharding.shards import Shards, Sums
from simulator.strategies.sharding.units import Span, Units


class Replicas:
    """The pipelines of a plan: all replicas or, if `folded`, the first, which represents all.

    `forward`, `backward`: by stage the devices of its replicas' forwards, and of their backwards and updates. `left_out`,
    `kept`: as in `Pipeline`.
    """

    def __init__(
        self,
        job: Job,
        machine: Machine,
        cut: Cut,
        microbatches: int,
        forward: Sequence[tuple[str, ...]],
        backward: Sequence[tuple[str, ...]],
        folded: bool = False,
        division: Division = UNDIVIDED,
        left_out: int = 0,
        kept: Kept = "freed",
    ):
        """`cut`: of the graph of the first device of `division`; the devices of a replica's stage that divide its layers are successive."""
        self.job, self.machine, self.cut, self.devices, self.folded = job, machine, cut, tuple(backward), folded
        self.division, self.count, self._kept = division, len(forward[0]) // division.degree, kept
        self.forward = tuple(forward)
        others = {stage[0]: stage[1:] for stage in (*forward, *backward)} if folded else {}
        self.pipelines = [
            Pipeline(
                job,
                machine,
                self._cut_of(number % division.degree, microbatches + left_out),
                microbatches,
                [stage[number] for stage in forward],
                [stage[number] for stage in backward],
                replica=number // division.degree,
                replicas=self.count,
                others=others,
                rank=number % division.degree,
                left_out=left_out,
                kept=kept,
            )
            for number in range(1 if folded else len(forward[0]))
        ]
        self._shards: dict[int, Shards] = {}  # by stage
        #: The stream of sums of gradients, and that of the updates that wait for them during backward, or of gathered parameters.
        self._sums = self.pipelines[0].sender.streams
        self._updates, self._tensor = self._sums + 1, self._sums + 2
        self._priority = 1 - min(device.priority_levels for device in machine.devices)

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

    def _mesh(self, devices: tuple[str, ...]) -> Mesh:
        """How the devices of a stage work together."""
        return Mesh(self.machine, devices, self.division, self.count, self.folded, self._priority)

    @cached_property
    def _dividing(self) -> dict[str, Group]:
        """By device, those that divide the layers of its stages together."""
        meshes = [self._mesh(devices) for devices in dict.fromkeys((*self.forward, *self.devices))]
        groups = [(mesh, *members) for mesh in meshes for members in mesh.dividing(TENSOR, self._tensor)]
        return {mesh.names[at]: group for mesh, group, numbers in groups for at in numbers}

    def shard(self) -> dict[int, list[Task]]:
        """Let each replica of a stage store a shard of its parameters. Returns, by stage, the tasks that gather them at the start of the
        step.

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
            mesh = self._mesh(self.devices[stage])
            streams = (COMPUTE, self._updates, self._sums)
            shards = Shards(
                self.job, self.machine, builders, mesh=mesh, units=units, first_device=self.devices[0][0], streams=streams, sums=sums
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
        return whole_counts(self._mesh(next(stage for stage in self.forward if home in stage)).across(self._sums), builders)

    def zero_gradients(self, stage: int) -> list[Task]:
        """The tasks that set the gradients of a stage's parameters to zero, which last from step to step."""
        owned, name = self.cut.parameters[stage], f"zero gradients {stage}"
        return [pipeline.build.zero_gradients(owned, name) for pipeline in self.pipelines] if owned else []

    def updates(self, stage: int) -> list[Task]:
        """The optimizer's tasks of a stage, after the sum of its gradients over the replicas."""
        if stage in self._shards:
            shards = self._shards[stage]
            summed = [
                task for unit in shards.units.parameters for task in shards.reduce(unit, self.job.accumulate - 1, True, f"reduce {stage}")
            ]
            return summed + [replace(task, name=f"{task.name}/{stage}") for task in shards.pieces.updates()]
        summed = self._summed(stage, self.cut.parameters[stage], f"reduce {stage}")
        return [*summed, *(task for pipeline in self.pipelines for task in pipeline.updates(stage))]

    def with_fused_updates(self, tasks: Sequence[Task]) -> list[Task]:
        """`tasks` with the updates of backward-fusion; before them, each layer's gradients are summed during the backward."""
        if self.count == 1:
            return self.pipelines[0].build.with_fused_updates(tasks)
        tensors = merged(pipeline.build.tensors for pipeline in self.pipelines)
        last = {storage: index for index, task in enumerate(tasks) for storage in tensors.touched(task)}
        sums: list[tuple[int, Task]] = []
        for stage, owned in enumerate(self.cut.parameters):
            layers: dict[str, list[str]] = {}
            for parameter in owned:
                layers.setdefault(self.cut.graph.layers[parameter], []).append(parameter)
            for layer, parameters in layers.items():
                summed = self._summed(stage, parameters, f"{layer}/reduce {stage}")
                position = 1 + max(last[storage] for task in summed for storage in tensors.touched(task))
                sums += [(position, task) for task in summed]
        updates = [update for pipeline in self.pipelines for update in pipeline.build.fused_updates(self._updates)]
        return fused(insert(tasks, sums), updates, tensors)

    def _summed(self, stage: int, parameters: Sequence[str], name: str) -> list[Task]:
        """The tasks that sum the gradients of some parameters of a stage over the replicas."""
        if self.count == 1 or not parameters:
            return []
        tasks: list[Task] = []
        own = [pipeline.build.whole_gradients(parameters) for pipeline in self.pipelines]
        for rank, (group, numbers) in enumerate(self._mesh(self.devices[stage]).sharding(self._sums)):
            tasks += group.all_reduce(f"{name} of rank {rank}" if rank else name, [own[at] for at in numbers])
        return tasks

    def plan(self, strategy: str, tasks: Sequence[Task], options: AnyOptions) -> Plan:
        """The finished plan."""
        first, *others = self.pipelines
        shards = self._shards.values()
        gradients = {name: operand for each in shards for name, operand in each.pieces.gradients.items()}
        builders, tensors = [pipeline.build for pipeline in others], [each.tensors for each in shards]
        if self.division.degree > 1 and not gradients:
            parts = self.pipelines[: self.division.degree]
            gradients = {name: operand for pipeline in parts for name, operand in pipeline.build.gradients.items()}
        return first.build.plan(strategy, tasks, options, semantics=self._notes(), others=builders, shards=tensors, gradients=gradients)

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
            notes["folded"] = f"One pipeline on {len(set(self.devices))} devices stands for {each}, which do the same"
        return notes
