"""Shards of parameters: what their holders gather, sum and update."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain
from typing import NamedTuple

from simulator.machine.machine import Machine
from simulator.model.division.local import TENSOR
from simulator.model.gradients import scale_steps, square_steps
from simulator.model.job import Job
from simulator.plan.bodies.opcall import OpCall, OpList
from simulator.plan.task import BACKWARD, UPDATE, Operand, Task
from simulator.plan.tensors import PlanTensors
from simulator.strategies.builder import ADD, PlanBuilder
from simulator.strategies.sharding.boxes import whole
from simulator.strategies.sharding.mesh import Mesh
from simulator.strategies.sharding.packing import Packing
from simulator.strategies.sharding.parameters import Pieces
from simulator.strategies.sharding.units import Flat, Span, Units, Weight, blocks_of, by_dtype, rows, shaped, without_padding


class Shards:
    """The shards of parameters that replicas of a model or of a part of it hold, and what they gather, sum and update.

    A group of one holds whole parameters, of which nothing is gathered.
    """

    def __init__(
        self,
        job: Job,
        machine: Machine,
        builders: Sequence[PlanBuilder],
        mesh: Mesh,
        units: Units,
        first_device: str,
        streams: tuple[int, int, int],
    ):
        """`builders`: of the mesh's devices that the plan has. `units`: of the parameters in shards. `first_device`: the first of the plan.

        `streams`: those of a device that compute, that gather and that sum.
        """
        self.job, self.builders, self.mesh, self.units = job, builders, mesh, units
        self.size, self.devices = mesh.size, mesh.devices
        self.graph, self.tensors = builders[0].graph, PlanTensors()
        self._computing, self._gathering, self._reducing = streams
        self.packing = Packing(self.tensors, self.devices, mesh.size, *streams, mesh.priority)
        self.pieces = Pieces(job, self.graph, machine, self.tensors, first_device, "all-reduce")
        self.held = [self._hold(at) for at in range(len(self.devices))]
        self._sums: dict[str, list[Operand]] = {}  # by unit and type, what the microbatches so far sum up to, by device

    # --- parameters

    def _hold(self, at: int) -> dict[str, Operand]:
        """The shard of each parameter that a device holds; nothing of those that have too few rows."""
        held, rank = {}, at // self.mesh.division.degree % self.size
        for name in self.units.trained:
            value = self.builders[at].graph.values[name]
            shape, blocks = value.shape, blocks_of(value, self.size)
            if blocks > 1:
                each = shape[1] // self.size
                box = ((0, blocks), (rank * each, (rank + 1) * each), *whole(shape[2:]))
                held[name] = self.pieces.hold(name, self.devices[at], box, value).operand
                continue
            each, extent = rows(shape, self.size), shape[0] if shape else 1
            first, end = min(extent, rank * each), min(extent, (rank + 1) * each)
            if first < end:
                box = ((first, end), *whole(shape[1:])) if shape else ()
                held[name] = self.pieces.hold(name, self.devices[at], box, value).operand
        return held

    def _bundles(self, unit: str) -> list["_Bundle"]:
        """The weights of a unit, by type."""
        bundles = []
        for number, (dtype, weights) in enumerate(by_dtype(self.units.weights[unit]).items()):
            flat = Flat.of((self.graph.values[weight.parameter] for weight in weights), self.size)
            bundles.append(_Bundle(f" {dtype}" if number else "", dtype, weights, flat))
        return bundles

    def gather(self, span: Span, name: str, after: Sequence[tuple[str, ...]]) -> tuple[list[Task], dict[str, list[Operand]]]:
        """The tasks that gather a unit for a span, and what they make on each device, by type."""
        tasks: list[Task] = []
        gathered: dict[str, list[Operand]] = {}
        for end, dtype, weights, flat in self._bundles(span.unit):
            label = f"{span.unit}/{name}{end}"
            for number, (group, numbers) in enumerate(self.mesh.sharding(self._gathering)):
                shards = []
                for at in numbers:
                    own = [self.held[at].get(weight.parameter) for weight in weights]
                    packed, shard = self.packing.packed(own, flat, dtype, f"{label}/pack", at)
                    tasks += [replace(task, after=after[at], layer=span.unit) for task in packed]
                    shards.append(shard)
                made, wholes = group.all_gather(f"{label} of group {number}" if number else label, self.tensors, shards)
                waits = tuple(dict.fromkeys(chain.from_iterable(after[at] for at in numbers)))
                tasks += [replace(task, after=waits, layer=span.unit) for task in made]
                of_devices = gathered.setdefault(dtype, [wholes[0]] * len(self.devices))
                for at, operand in zip(numbers, wholes, strict=True):
                    of_devices[at] = operand
        return tasks, gathered

    def unpack(self, span: Span, name: str, gathered: dict[str, list[Operand]]) -> tuple[list[Task], list[dict[str, Operand]]]:
        """The tasks that copy a unit's gathered weights to places of their own, as FSDP2 does right before the unit runs.

        Also, by device, what its ops read instead of each value of the graph.
        """
        tasks: list[Task] = []
        read: list[dict[str, Operand]] = [{} for _ in self.devices]
        for end, dtype, weights, flat in self._bundles(span.unit):
            for at, whole_ in enumerate(gathered[dtype]):
                parts = [shaped(whole_, (self.size, flat.length))]
                if len(weights) > 1 or flat.blocks[0] > 1:
                    unpacked, parts = self.packing.unpacked(parts[0], flat, f"{span.unit}/{name}{end}/unpack", at)
                    tasks.append(replace(unpacked, layer=span.unit))
                for weight, part in zip(weights, parts, strict=True):
                    read[at] |= dict.fromkeys(weight.names, without_padding(part, weight.shape))
        return tasks, read

    # --- gradients

    def reduce(self, unit: str, m: int, last: bool, name: str = "reduce") -> list[Task]:
        """The tasks that sum a unit's gradients over the devices, each of which keeps its part; the last microbatch completes them."""
        tasks: list[Task] = []
        types: dict[str, list[str]] = {}
        for parameter in self.units.parameters[unit]:
            types.setdefault(self.graph.gradients[parameter].dtype, []).append(parameter)
        for number, (dtype, parameters) in enumerate(types.items()):
            label = f"{unit}/{name}" + (f" {dtype}" if number else "") + (f" {m}" if m else "")
            flat = Flat.of((self.graph.values[name] for name in parameters), self.size)
            by_number: dict[int, Operand] = {}
            for place, (group, numbers) in enumerate(self.mesh.sharding(self._reducing)):
                wholes, of_group = [], f"{label} of group {place}" if place else label
                for at in numbers:
                    own = [self.builders[at].gradient(name) for name in parameters]
                    packed, gradient = self.packing.packed_gradients(own, flat, f"{label}/pack", at)
                    tasks += packed
                    wholes.append(gradient)
                made, shards = group.reduce_scatter(of_group, self.tensors, wholes)
                tasks += made
                by_number |= zip(numbers, shards, strict=True)
            sums = [by_number[at] for at in range(len(self.devices))]
            kept = self._sums.setdefault(f"{unit} {dtype}", sums)
            if kept is not sums:
                for device, new, old in zip(self.devices, sums, kept, strict=True):
                    lane = (device, self._reducing, self.mesh.priority)
                    tasks.append(Task(f"{label}/add@{device}", ADD, *lane, (new,), mutates=(old,), phase=BACKWARD))
            if last:
                tasks += self._over_groups(label, kept)
                self._complete(parameters, flat, kept)
        return [replace(task, layer=unit) for task in tasks]

    def reduce_whole(self, unit: str) -> list[Task]:
        """The tasks that sum a unit's gradients over the replicas, each of which keeps all of them."""
        parameters = self.units.parameters[unit]
        own = [tuple(builder.gradient(name) for name in parameters) for builder in self.builders]
        for held, gradients in zip(self.held, own, strict=True):
            self.pieces.gradients |= {held[name].value: gradient for name, gradient in zip(parameters, gradients, strict=True)}
        if self.mesh.copies == 1:
            return []
        tasks: list[Task] = []
        for rank, (group, numbers) in enumerate(self.mesh.same_shards(self._reducing)):
            tasks += group.all_reduce(f"{unit}/reduce" + (f" of rank {rank}" if rank else ""), [own[at] for at in numbers])
        return [replace(task, layer=unit) for task in tasks]

    def _over_groups(self, name: str, sums: Sequence[Operand]) -> list[Task]:
        """The tasks that sum shards over the groups that each hold all of the parameters."""
        tasks: list[Task] = []
        if self.size == self.mesh.copies:
            return tasks
        for rank, (group, numbers) in enumerate(self.mesh.same_shards(self._reducing)):
            tasks += group.all_reduce(f"{name}/groups {rank}", [(sums[at],) for at in numbers])
        return tasks

    def clip(self, largest: float) -> list[Task]:
        """The tasks that scale all shards of gradients to the largest global norm, whose square is summed over the devices."""
        tasks, squares, degree, lane = [], [], self.mesh.division.degree, (self._computing, 0)
        own = [[self.pieces.gradients[operand.value] for operand in held.values()] for held in self.held]
        for at, (device, gradients) in enumerate(zip(self.devices, own, strict=True)):
            values = self.builders[at].graph.values
            cut = [g for name, g in zip(self.held[at], gradients, strict=True) if values[name].source or degree == 1]
            tasks.append(self._square("square", device, cut))
            squares.append(tasks[-1].writes)
            if degree > 1:  # all that divide layers have the other gradients, so that each adds its share of their square
                tasks.append(self._square("square of all", device, [each for each in gradients if each not in cut]))
                share = OpCall("aten.add_.Tensor", '[{"$":1},{"$":0}]', json.dumps({"alpha": 1 / degree}), ())
                reads, mutates = tasks[-1].writes, squares[-1]
                tasks.append(Task(f"clip/shares@{device}", share, device, *lane, reads, (), mutates, phase=UPDATE, layer="clip"))
        groups = self.mesh.sharding(self._computing) if self.size > 1 else []
        groups += self.mesh.dividing(TENSOR, self._computing) if degree > 1 else []
        for number, (group, numbers) in enumerate(groups):
            tasks += group.all_reduce(f"clip/sum {number}@{self.devices[numbers[0]]}", [squares[at] for at in numbers])
        for device, gradients, (square,) in zip(self.devices, own, squares, strict=True):
            body = OpList(scale_steps(tuple(gradients), square, largest, f"@{device}"), "clip")
            tasks.append(Task(f"clip@{device}", body, device, *lane, (square,), (), tuple(gradients), phase=UPDATE, layer="clip"))
        return tasks

    def _square(self, name: str, device: str, gradients: Sequence[Operand]) -> Task:
        """The task that makes the square of the norm of a device's gradients."""
        square = self.tensors.scratch(f"clip/{name}@{device}", (1,), self.graph.gradients[self.graph.parameters[0]].dtype, device)
        body = OpList(square_steps(tuple(gradients), square, f"@{device}"), "square")
        return Task(f"clip/{name}@{device}", body, device, self._computing, 0, tuple(gradients), (square,), phase=UPDATE, layer="clip")

    def _complete(self, parameters: Iterable[str], flat: Flat, sums: Sequence[Operand]) -> None:
        """Say where the gradients of the devices' shards are."""
        for at, total in enumerate(sums):
            for number, name in enumerate(parameters):
                held = self.held[at].get(name)
                if held is not None:
                    own = flat.part_of(total, number)
                    self.pieces.gradients[held.value] = without_padding(own, held.shape) if held.shape else shaped(own, ())


class _Bundle(NamedTuple):
    """Weights of one type that a unit gathers together, and how they lie in what is gathered. `end`: of the names of their tasks."""

    end: str
    dtype: str
    weights: Sequence[Weight]
    flat: Flat
