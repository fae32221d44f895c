"""Shards of parameters: how devices gather, sum and update them."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain
from typing import Literal, NamedTuple

from simulator.machine.machine import Machine
from simulator.model.division.local import EXPERTS, TENSOR
from simulator.model.gradients import scale_steps, square_steps
from simulator.model.job import Job
from simulator.plan.bodies.opcall import ListedOp, OpCall, OpList
from simulator.plan.task import BACKWARD, BUFFER, COLLECTIVE, UPDATE, Operand, Task, Value
from simulator.plan.tensors import PlanTensors, contiguous, part
from simulator.strategies.builder import ADD, COPY, PlanBuilder
from simulator.strategies.layout import Layout
from simulator.strategies.sharding.boxes import Box, cut, whole
from simulator.strategies.sharding.parameters import Pieces
from simulator.strategies.zero.packing import Packing
from simulator.strategies.zero.units import Flat, Span, Units, Weight, by_dtype, rows, shaped, without_padding

Sums = Literal["flat", "in place", "whole"]


class Shards:
    """The shards of parameters that replicas of a model, or of a part of it, store, and how they gather, sum and update them.

    A group of one stores whole parameters, and gathers nothing.
    """

    def __init__(
        self,
        job: Job,
        machine: Machine,
        builders: Sequence[PlanBuilder],
        layout: Layout,
        units: Units,
        first_device: str,
        streams: tuple[int, int, int],
        sums: Sums = "flat",
        changed: bool = False,
    ):
        """`builders`: of the layout's devices that the plan has. `units`: of the parameters in shards. `first_device`: the plan's first.

        `streams`: those of a device that compute, that gather and that sum. `sums`: in place, parameters whose parts are equal are gathered
        and summed in place, as in ZeRO's first stage, which retains all of them; flat, they are sent in one tensor, as in FSDP2; whole,
        they are gathered in one tensor, and summed in place with the other devices' parts, while nothing else runs, as in nanotron.
        `changed`: a device may change its shards before all others have gathered them: an update does not wait for all of their backward.
        """
        if sums == "whole":
            streams, layout = (streams[0],) * 3, replace(layout, priority=0)  # of what computes
        self.job, self.builders, self.layout, self.units = job, builders, layout, units
        self.devices, self._how, self._changed = layout.devices, sums, changed
        self.graph, self.tensors = builders[0].graph, PlanTensors()
        self._computing, self._gathering, self._reducing = streams
        #: How experts are sharded: among the devices with the same ones.
        self.layout_of_experts = layout.of_experts
        layouts = (layout, self.layout_of_experts)
        self._packings = {each.size: Packing(self.tensors, self.devices, each.size, *streams, layout.priority) for each in layouts}
        self.pieces = Pieces(job, self.graph, machine, self.tensors, first_device, "all-reduce")
        self.held = [self._hold(at) for at in range(len(self.devices))]
        self._sums: dict[str, list[Operand]] = {}  # by unit and type, what the microbatches so far sum up to, by device

    # --- parameters

    def _hold(self, at: int) -> dict[str, Operand]:
        """A device's shard of each parameter; nothing for parameters with too few rows."""
        held = {}
        for name in self.units.trained:
            layout, value = self._layout(self.units.unit(name)), self.builders[at].graph.values[name]
            box = self._box(name, value.shape, at // layout.division.degree % layout.size, layout.size)
            if box is not None:
                held[name] = self.pieces.hold(name, self.devices[at], box, value).operand
        return held

    def _box(self, parameter: str, shape: tuple[int, ...], rank: int, size: int) -> Box | None:
        """The part of a parameter of this shape on one of `size` devices; None for nothing."""
        blocks = self.units.blocks(parameter, size)
        if blocks:
            each = shape[1] // size
            return ((0, blocks), (rank * each, (rank + 1) * each), *whole(shape[2:]))
        each, extent = rows(shape, size), shape[0] if shape else 1
        first, end = min(extent, rank * each), min(extent, (rank + 1) * each)
        if first == end:
            return None
        return ((first, end), *whole(shape[1:])) if shape else ()

    def _layout(self, unit: str) -> Layout:
        """How a unit's parameters are sharded."""
        return self.layout_of_experts if unit in self.units.apart else self.layout

    def is_sharded(self, unit: str) -> bool:
        """Whether there is something of a unit to gather and to scatter."""
        return self._layout(unit).size > 1

    def _equal_parts(self, parameter: str) -> bool:
        """Whether a parameter is gathered and summed in place."""
        shape, size = self.graph.values[parameter].shape, self._layout(self.units.unit(parameter)).size
        return self._how != "flat" and bool(shape) and shape[0] % size == 0 and not self.units.blocks(parameter, size)

    def _bundles(self, unit: str) -> list["_Bundle"]:
        """The weights of a unit, by type, those that are gathered in place first."""
        bundles: list[_Bundle] = []
        for dtype, weights in by_dtype(self.units.weights[unit]).items():
            for in_place in (True, False):
                own = [weight for weight in weights if (self._how == "in place" and self._equal_parts(weight.parameter)) is in_place]
                if own:
                    flat = None if in_place else self.units.flat((weight.parameter for weight in own), self._layout(unit).size)
                    bundles.append(_Bundle(f" {len(bundles)}" if bundles else "", dtype, own, flat))
        return bundles

    def gather(self, span: Span, name: str, after: Sequence[tuple[str, ...]]) -> tuple[list[Task], "Gathered"]:
        """The tasks that gather a unit for a span, and what they make on each device, by bundle."""
        tasks: list[Task] = []
        gathered: Gathered = {}
        layout = self._layout(span.unit)
        for end, dtype, weights, flat in self._bundles(span.unit):
            label = f"{span.unit}/{name}{end}"
            for number, (group, numbers) in enumerate(layout.sharding(self._gathering)):
                shards = []
                for at in numbers:
                    own = [self.held[at].get(weight.parameter) for weight in weights]
                    packing, pack = self._packings[layout.size], f"{label}/pack"
                    packed, sent = packing.cast(own, dtype, pack, at) if flat is None else packing.packed(own, flat, dtype, pack, at)
                    tasks += [replace(task, after=after[at], layer=span.unit) for task in packed]
                    shards.append(sent)
                made, wholes = group.all_gather(
                    f"{label} of group {number}" if number else label, self.tensors, shards, changed=self._changed
                )
                waits = tuple(dict.fromkeys(chain.from_iterable(after[at] for at in numbers)))
                tasks += [replace(task, after=waits, layer=span.unit) for task in made]
                of_devices = gathered.setdefault(end, [wholes[0]] * len(self.devices))
                for at, operands in zip(numbers, wholes, strict=True):
                    of_devices[at] = operands
        return tasks, gathered

    def unpack(self, span: Span, name: str, gathered: "Gathered") -> tuple[list[Task], list[dict[str, Operand]]]:
        """The tasks that copy a unit's gathered weights to separate memory, as FSDP2 does right before the unit runs.

        Also, by device, what its ops read instead of each value of the graph.
        """
        tasks: list[Task] = []
        read: list[dict[str, Operand]] = [{} for _ in self.devices]
        size = self._layout(span.unit).size
        for end, _, weights, flat in self._bundles(span.unit):
            for at, wholes in enumerate(gathered[end]):
                parts = list(wholes)
                if flat is not None and self._how == "whole":
                    placed, parts = self._placed(weights, flat, parts[0], f"{span.unit}/{name}{end}", at)
                    tasks += [replace(task, layer=span.unit) for task in placed]
                elif flat is not None:
                    parts = [shaped(parts[0], (size, flat.length))]
                    if len(weights) > 1 or flat.blocks[0] > 1:
                        unpacked, parts = self._packings[size].unpacked(parts[0], flat, f"{span.unit}/{name}{end}/unpack", at)
                        tasks.append(replace(unpacked, layer=span.unit))
                for weight, own in zip(weights, parts, strict=True):
                    read[at] |= dict.fromkeys(weight.names, without_padding(own, weight.shape))
        return tasks, read

    def _placed(self, weights: Sequence[Weight], flat: Flat, gathered: Operand, name: str, at: int) -> tuple[list[Task], list[Operand]]:
        """The tasks that copy gathered weights to their permanent memory, as nanotron's ZeRO-1 does, and these weights.

        Each rank's part becomes a separate tensor (torch.distributed.all_gather), from which each weight's part is copied.
        """
        device, steps, kept = self.devices[at], list[ListedOp](), list[Operand]()
        task, parts = self._packings[flat.ranks].by_rank(gathered, flat, f"{name}/ranks", at)
        for number, weight in enumerate(weights):
            own, shape = f"{weight.parameter}::gathered {weight.dtype}@{device}", weight.shape
            kept.append(self.tensors.add(Value(own, shape, contiguous(shape), dtype=weight.dtype, device=device, kind=BUFFER)).operand())
            for rank, sent in enumerate(parts):
                box = self._box(weight.parameter, shape, rank, flat.ranks)
                if box is not None:
                    place = cut(kept[-1], box)
                    steps.append(ListedOp(COPY, (shaped(part(flat.part_of(sent, number), 0, place.elements), place.shape),), (), (place,)))
        body, lane = OpList(tuple(steps), "weights"), (device, self._computing, 0)
        return [task, Task(f"{name}/copy@{device}", body, *lane, tuple(parts), (), tuple(kept), phase=COLLECTIVE)], kept

    # --- gradients

    def reduce(self, unit: str, m: int, last: bool, name: str = "reduce") -> list[Task]:
        """The tasks that sum a unit's gradients over the devices, each of which retains its part; the last microbatch completes them."""
        tasks: list[Task] = []
        types: dict[str, list[str]] = {}
        layout = self._layout(unit)
        in_place = [parameter for parameter in self.units.parameters[unit] if self._summed_in_place(parameter)]
        if in_place:
            tasks += self._reduce_in_place(unit, in_place, f"{unit}/{name}" + (f" {m}" if m else ""))
            name = f"{name} others"
        for parameter in self.units.parameters[unit]:
            if parameter not in in_place:
                types.setdefault(self.graph.gradients[parameter].dtype, []).append(parameter)
        for number, (dtype, parameters) in enumerate(types.items()):
            label = f"{unit}/{name}" + (f" {dtype}" if number else "") + (f" {m}" if m else "")
            flat = self.units.flat(parameters, layout.size)
            by_number: dict[int, Operand] = {}
            for place, (group, numbers) in enumerate(layout.sharding(self._reducing)):
                wholes, of_group = [], f"{label} of group {place}" if place else label
                for at in numbers:
                    own = [self.builders[at].gradient(name) for name in parameters]
                    packed, gradient = self._packings[layout.size].packed_gradients(own, flat, f"{label}/pack", at)
                    tasks += packed
                    wholes.append((gradient,))
                made, shards = group.reduce_scatter(of_group, self.tensors, wholes)
                tasks += made
                by_number |= {at: shard for at, (shard,) in zip(numbers, shards, strict=True)}
            sums = [by_number[at] for at in range(len(self.devices))]
            kept = self._sums.setdefault(f"{unit} {dtype}", sums)
            if kept is not sums:
                for device, new, old in zip(self.devices, sums, kept, strict=True):
                    lane = (device, self._reducing, self.layout.priority)
                    tasks.append(Task(f"{label}/add@{device}", ADD, *lane, (new,), mutates=(old,), phase=BACKWARD))
            if last:
                tasks += self._over_groups(label, layout, [(total,) for total in kept])
                self._complete(parameters, flat, kept)
        return [replace(task, layer=unit) for task in tasks]

    def _summed_in_place(self, parameter: str) -> bool:
        """Whether a device's part of a gradient becomes the sum in place: equal parts, in separate memory."""
        if not self._equal_parts(parameter):
            return False
        own = self.builders[0].gradient(parameter)
        return not own.views and own.strides == contiguous(own.shape) and self._gradients_on[self._storage_of_gradient(parameter)] == 1

    def _storage_of_gradient(self, parameter: str) -> str:
        return self.builders[0].tensors.values[self.builders[0].gradient(parameter).value].storage

    @cached_property
    def _gradients_on(self) -> Counter[str]:
        """By storage, how many parameters' gradients are on it."""
        return Counter(map(self._storage_of_gradient, self.units.trained))

    def _reduce_in_place(self, unit: str, parameters: Sequence[str], name: str) -> list[Task]:
        """The tasks that sum gradients in place over the devices, each of which continues with its part."""
        tasks: list[Task] = []
        sums: list[tuple[Operand, ...]] = [()] * len(self.devices)
        layout = self._layout(unit)
        for place, (group, numbers) in enumerate(layout.sharding(self._reducing)):
            wholes = [[self.builders[at].gradient(parameter) for parameter in parameters] for at in numbers]
            sum_up = group.all_reduce_parts if self._how == "whole" else group.reduce_scatter_in_place
            made, of_group = sum_up(f"{name} of group {place}" if place else name, wholes)
            tasks += made
            for at, own in zip(numbers, of_group, strict=True):
                sums[at] = own
        for held, own in zip(self.held, sums, strict=True):
            self.pieces.gradients |= {held[parameter].value: operand for parameter, operand in zip(parameters, own, strict=True)}
        return tasks + self._over_groups(name, layout, sums)

    def reduce_whole(self, unit: str) -> list[Task]:
        """The tasks that sum a unit's gradients over the replicas, each of which retains all of them."""
        parameters = self.units.parameters[unit]
        own = [tuple(builder.gradient(name) for name in parameters) for builder in self.builders]
        for held, gradients in zip(self.held, own, strict=True):
            self.pieces.gradients |= {held[name].value: gradient for name, gradient in zip(parameters, gradients, strict=True)}
        layout = self._layout(unit)
        if layout.copies == 1:
            return []
        tasks: list[Task] = []
        for rank, (group, numbers) in enumerate(layout.same_shards(self._reducing)):
            tasks += group.all_reduce(f"{unit}/reduce" + (f" of rank {rank}" if rank else ""), [own[at] for at in numbers])
        return [replace(task, layer=unit) for task in tasks]

    def _over_groups(self, name: str, layout: Layout, sums: Sequence[tuple[Operand, ...]]) -> list[Task]:
        """The tasks that sum shards over the groups, each of which stores all of the parameters."""
        tasks: list[Task] = []
        if layout.size == layout.copies:
            return tasks
        for rank, (group, numbers) in enumerate(layout.same_shards(self._reducing)):
            tasks += group.all_reduce(f"{name}/groups {rank}", [sums[at] for at in numbers])
        return tasks

    def clip(self, largest: float) -> list[Task]:
        """The tasks that scale all shards of gradients to the largest global norm, whose square is summed over the devices."""
        tasks, squares, division, stream = [], [], self.layout.division, self._computing
        by_experts = division.experts > 1 and self.layout.size == 1  # else devices that share the rest have different pieces of experts
        what, degree = (EXPERTS, division.experts) if by_experts else (TENSOR, division.degree)
        own = [[self.pieces.gradients[operand.value] for operand in held.values()] for held in self.held]
        for at, (device, gradients) in enumerate(zip(self.devices, own, strict=True)):
            values = self.builders[at].graph.values
            cut = [g for name, g in zip(self.held[at], gradients, strict=True) if values[name].source or degree == 1]
            tasks.append(self._square("square", device, cut))
            squares.append(tasks[-1].writes)
            if degree > 1:  # all that divide layers, or experts, have the other gradients, so that each adds its share of their square
                tasks.append(self._square("square of all", device, [each for each in gradients if each not in cut]))
                share = OpCall("aten.add_.Tensor", '[{"$":1},{"$":0}]', json.dumps({"alpha": 1 / degree}), ())
                reads, mutates = tasks[-1].writes, squares[-1]
                tasks.append(
                    Task(f"clip/shares@{device}", share, device, stream=stream, reads=reads, mutates=mutates, phase=UPDATE, layer="clip")
                )
        groups = self.layout.sharding(self._computing) if self.layout.size > 1 else []
        groups += self.layout.dividing(what, self._computing) if degree > 1 else []
        for number, (group, numbers) in enumerate(groups):
            tasks += group.all_reduce(f"clip/sum {number}@{self.devices[numbers[0]]}", [squares[at] for at in numbers])
        for device, gradients, (square,) in zip(self.devices, own, squares, strict=True):
            body = OpList(scale_steps(tuple(gradients), square, largest, f"@{device}"), "clip")
            mutates = tuple(gradients)
            tasks.append(Task(f"clip@{device}", body, device, stream=stream, reads=(square,), mutates=mutates, phase=UPDATE, layer="clip"))
        return tasks

    def _square(self, name: str, device: str, gradients: Sequence[Operand]) -> Task:
        """The task that makes the square of the norm of a device's gradients."""
        square = self.tensors.scratch(f"clip/{name}@{device}", (1,), self.graph.gradients[self.graph.parameters[0]].dtype, device)
        body = OpList(square_steps(tuple(gradients), square, f"@{device}"), "square")
        return Task(
            f"clip/{name}@{device}",
            body,
            device,
            stream=self._computing,
            reads=tuple(gradients),
            writes=(square,),
            phase=UPDATE,
            layer="clip",
        )

    def _complete(self, parameters: Iterable[str], flat: Flat, sums: Sequence[Operand]) -> None:
        """Say where the gradients of the devices' shards are."""
        for at, total in enumerate(sums):
            for number, name in enumerate(parameters):
                held = self.held[at].get(name)
                if held is not None:
                    own = flat.part_of(total, number)
                    self.pieces.gradients[held.value] = without_padding(own, held.shape) if held.shape else shaped(own, ())


#: By the end of a bundle's names, and by device, what it gathers: each weight, or one flat tensor.
Gathered = dict[str, list[tuple[Operand, ...]]]


class _Bundle(NamedTuple):
    """Weights of one type that a unit gathers together. `end`: of the names of their tasks.

    `flat`: their layout in the flat tensor that is gathered; None if each is gathered to separate memory.
    """

    end: str
    dtype: str
    weights: Sequence[Weight]
    flat: Flat | None
