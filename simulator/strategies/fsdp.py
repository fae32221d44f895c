"""Data-parallel training with sharded parameters, gradients and optimizer state: ZeRO and PyTorch's FSDP2.

Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models" (SC 2020): each device holds a part of the
optimizer state (stage 1), of the gradients (2) and of the parameters (3). Zhao et al., "PyTorch FSDP" (VLDB 2023): the parameters of a
unit, usually a transformer's block, are gathered right before it runs, beside the block before, and freed after it; in backward again, and
the gradients of a unit are summed and scattered as soon as they are complete. In DeePa's terms, every device is the parameter server of
its part.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Literal, NamedTuple

from simulator.engine.collectives.tasks import Group
from simulator.engine.costs.cost import PlanCosts
from simulator.machine.machine import Machine
from simulator.model.division.divide import Division
from simulator.model.division.local import COLLECTIVES
from simulator.model.gradients import scale_steps, square_steps
from simulator.model.job import Job
from simulator.plan.bodies.opcall import ListedOp, OpCall, OpList
from simulator.plan.plan import Plan
from simulator.plan.task import BACKWARD, COLLECTIVE, UPDATE, Operand, Segment, Task
from simulator.plan.tensors import PlanTensors, contiguous, merged
from simulator.strategies.builder import ADD
from simulator.strategies.data_parallel import check_replicas, folded_note, folds, interleaved, replica_builders
from simulator.strategies.options import option_values
from simulator.strategies.sharding.boxes import whole
from simulator.strategies.sharding.parameters import Pieces
from simulator.strategies.sharding.units import Flat, Span, Units, Weight, by_dtype, rows, shaped, without_padding
from traces.errors import Code, SchedcastError
from traces.process import gc_paused

NAME = "fsdp"
FAMILY = "data-parallel"
ABOUT = "every device trains on its shard of the batch and holds a shard of the parameters, which are gathered where they are used"
LEAST_DEVICES = 2
#: Streams of a device.
COMPUTE, GATHER, REDUCE, TENSOR = 0, 1, 2, 3
#: A plan with more devices than this has one device for all, which do the same.
MOST_DEVICES = 8


@dataclass(frozen=True)
class Options:
    """What is sharded, and when parameters are gathered."""

    shard: Literal["0", "1", "2", "3"] = "3"
    """The stage of ZeRO: 0 shards nothing, 1 optimizer state, 2 gradients as well, 3 parameters as well."""
    hybrid: int = 0
    """Shard over groups of so many devices in a row, and keep a copy in each group (HSDP); 0: over all devices."""
    tp: int = 1
    """So many devices in a row divide each layer by heads, hidden channels and vocabulary (tensor parallelism); 1: none."""
    sp: bool = True
    """With tp, divide what lies between the products by tokens (sequence parallelism)."""
    prefetch: int = 1
    """How many units ahead of the one that runs are gathered."""
    reshard: bool = True
    """Free a unit's gathered parameters after forward, and gather them again for backward; off: keep them. Stages 1 and 2 keep them."""
    fetch: bool = True
    """Copy each device's shard of the batch from the host; off: the shard is on the device already."""
    fold: Literal["auto", "on", "off"] = "auto"
    """Plan one device for all, since they do the same: only for predictions; auto: with more than 8 devices, or 20,000 tasks."""
    gradients: Literal["freed", "kept"] = "freed"
    """With stage 1, free gradients after they are summed, or keep them from step to step, as Megatron-LM and nanotron do."""

    def __post_init__(self):
        """Raise SchedcastError for numbers that are too small, and for stages that keep no gradients."""
        if self.gradients == "kept" and self.shard not in ("0", "1"):
            raise SchedcastError(f"strategy {NAME}: gradients=kept goes with shard=0 or 1, and shard is {self.shard}; leave it out")
        for name, least in (("hybrid", 0), ("prefetch", 0), ("tp", 1)):
            if getattr(self, name) < least:
                raise SchedcastError(f"strategy {NAME}: {name} is {getattr(self, name)}; expected a number of at least {least}")


def plan(job: Job, machine: Machine, costs: PlanCosts | None, options: Options) -> Plan:
    """The training step of every device on its part of the batch.

    Raises SchedcastError if the machine has too few devices, or if the batch does not divide among them, or the devices into groups.
    """
    count = len(machine.devices)
    if count % options.tp:
        raise SchedcastError(f"strategy {NAME}: tp={options.tp} does not divide {count} devices; choose one of {_divisors(count)}")
    devices = check_replicas(NAME, job, machine, LEAST_DEVICES, options.tp)
    if job.scales_loss:
        raise SchedcastError(f"{NAME} cannot {job.needs_all_gradients}; use --precision amp", Code.MODEL)
    replicas = count // options.tp
    size = 1 if options.shard == "0" else options.hybrid or replicas
    if replicas % size:
        raise SchedcastError(f"strategy {NAME}: hybrid={size} does not divide {replicas} replicas; choose one of {_divisors(replicas)}")
    with gc_paused():
        return ShardedReplicas(job, machine, devices, size, options).plan()


def _divisors(count: int) -> str:
    return ", ".join(str(n) for n in range(1, count + 1) if count % n == 0)


def candidates(job: Job, machine: Machine) -> list[str]:
    """Option texts that a search tries: what is sharded over which groups, for each sensible time to gather."""
    names = [device.name for device in machine.devices]
    node = len(next(iter(machine.by_node(names).values())))
    sizes = [0, *(size for size in (node, 2 * node, 4 * node) if LEAST_DEVICES <= size < len(names) and len(names) % size == 0)]
    return [
        (f"hybrid={size}," if size else "") + how
        for how in ("prefetch=1", "prefetch=2", "reshard=off", "shard=1", "prefetch=0")
        for size in sizes
    ]


def held_share(job: Job, machine: Machine, options: Options) -> float | None:
    """The share of the parameters and their optimizer state that every device holds: its own of its group."""
    replicas = len(machine.devices) // options.tp
    return 1.0 / (options.tp * (1 if options.shard == "0" else options.hybrid or replicas))


class ShardedReplicas:
    """The builders of all devices, or of the first for all, and what they gather, sum and update."""

    def __init__(self, job: Job, machine: Machine, devices: tuple[str, ...], size: int, options: Options):
        """`size`: of the groups that parameters are sharded over."""
        self.job, self.machine, self.options, self.size = job, machine, options, size
        self.every, self.degree = devices, options.tp
        self.replicas = len(devices) // options.tp
        self.folded = folds(options.fold, job, machine, MOST_DEVICES, options.tp)
        self.devices = devices[:1] if self.folded else devices
        keep = options.gradients == "kept"
        self.builders = replica_builders(job, self.devices, self.replicas, keep, Division(options.tp, sequence=options.sp))
        self.graph = self.builders[0].graph
        self.units = Units(NAME, self.graph)
        self.tensors = PlanTensors()
        self.pieces = Pieces(job, self.graph, machine, self.tensors, devices[0], "all-reduce")
        self._held = [self._hold(at) for at in range(len(self.devices))]
        self._priority = 1 - min(device.priority_levels for device in machine.devices)
        self._sums: dict[str, list[Operand]] = {}  # by unit and type, what the microbatches so far sum up to, by device

    def plan(self) -> Plan:
        """The finished plan."""
        tasks = self._passes()
        if self.job.clip_norm is not None:
            tasks += self._clip(self.job.clip_norm)
        if self.options.gradients == "kept":
            tasks = [*(builder.zero_gradients() for builder in self.builders), *tasks]
        updates = self.pieces.updates()
        fetches = [builder.fetches(self.machine) for builder in self.builders] if self.options.fetch else []
        for builder in self.builders:
            builder.carry_unused(frozenset(self.graph.parameters))
        tensors = merged([*(builder.tensors for builder in self.builders), self.tensors])
        notes: dict[str, object] = {"staleness": 0, "replicas": self.replicas, "shards": self.size}
        if self.degree > 1:
            notes["divided"] = self._division()
        return Plan(
            strategy=NAME,
            segments=(Segment((*interleaved(fetches), *tasks, *updates)),),
            values=tensors.values,
            storages=tensors.storages,
            losses=tuple(name for builder in self.builders for name in builder.losses),
            gradients=self.pieces.gradients,
            options=option_values(self.options),
            semantics=notes | self.builders[0].graph_notes(several=True) | folded_note(self.devices, self.every),
        )

    def _division(self) -> str:
        """How layers are divided, and which kinds of ops with products every device runs on whole tensors, because nothing divides them."""
        flops = {op.name: op.body.flops for op in self.job.graph(self.graph.batch, self.replicas * self.job.accumulate).ops}
        whole = {op.body.target.split(".")[1] for op in self.graph.ops if op.body.flops and op.body.flops == flops.get(op.name)}
        words = f"heads, hidden channels and vocabulary over {self.degree} devices"
        words += ", and between products by tokens" if self.options.sp else ""
        return words + (f"; each of them runs all of some {', '.join(sorted(whole))}" if whole else "")

    # --- forward and backward

    @property
    def _shards(self) -> bool:
        """Whether there is something to gather and to scatter."""
        return self.size > 1

    @property
    def _accumulates(self) -> bool:
        """Whether a device adds up its own gradients of all microbatches before they are summed over devices."""
        return not self._shards or self.options.shard == "1"

    @property
    def _reshards(self) -> bool:
        return self.options.reshard and self.options.shard == "3"

    def _passes(self) -> list[Task]:
        """Forward and backward of all microbatches, with what is gathered and summed."""
        count, own = len(self.graph.ops), self.job.accumulate
        spans = self.units.spans(own, self._reshards) if self._shards else []
        issued: dict[int, list[int]] = {}  # by position, the spans whose parameters are gathered before it
        for number in range(len(spans)):
            before = number - self.options.prefetch
            issued.setdefault(spans[before].first if before >= 0 else 0, []).append(number)
        begins: dict[int, list[int]] = {}
        for number, span in enumerate(spans):
            begins.setdefault(span.first, []).append(number)
        tasks: list[Task] = []
        gathered: dict[int, dict[str, list[Operand]]] = {}
        instead: list[dict[str, Operand]] = [{} if self._shards else dict(held) for held in self._held]
        latest: list[tuple[str, ...]] = [()] * len(self.builders)
        for position in range(own * count):
            m, index = divmod(position, count)
            if m and not index and not self._accumulates:  # each microbatch has gradients of its own, which are summed in shards
                for builder in self.builders:
                    builder.first_of = dict.fromkeys(self.graph.parameters, builder.microbatches[m])
            for number in issued.get(position, ()):
                made, gathered[number] = self._gather(spans[number], f"gather {number}", latest)
                tasks += made
            for number in begins.get(position, ()):
                made, operands = self._unpack(spans[number], f"gather {number}", gathered.pop(number))
                tasks += made
                for current, own_operands in zip(instead, operands, strict=True):
                    current |= own_operands
            if index not in self.units.casts or not self._shards:
                lists = [
                    builder.ops([index], builder.microbatches[m], COMPUTE, current)
                    for builder, current in zip(self.builders, instead, strict=True)
                ]
                if self.graph.ops[index].body.target in COLLECTIVES:
                    tasks += self._together([first for first, *_ in lists])
                    lists = [own for _, *own in lists]
                tasks += interleaved(lists)
                latest = [(own_tasks[-1].name,) if own_tasks else before for own_tasks, before in zip(lists, latest, strict=True)]
            if m == own - 1 or not self._accumulates:
                reduce = self._reduce if self._shards else self._reduce_whole
                tasks += [task for unit in self.units.completed.get(index, ()) for task in reduce(unit, m)]
        return tasks

    # --- parameters

    def _hold(self, at: int) -> dict[str, Operand]:
        """The shard of each parameter that a device holds; nothing of those that have too few rows."""
        held, rank = {}, at // self.degree % self.size
        for name in self.graph.parameters:
            value = self.builders[at].graph.values[name]
            shape = value.shape
            each, extent = rows(shape, self.size), shape[0] if shape else 1
            first, end = min(extent, rank * each), min(extent, (rank + 1) * each)
            if first < end:
                box = ((first, end), *whole(shape[1:])) if shape else ()
                held[name] = self.pieces.hold(name, self.devices[at], box, value).operand
        return held

    def _groups(self, stream: int) -> list[tuple[Group, range]]:
        """The groups that parameters are sharded over, with the numbers of the devices that the plan has of each."""
        length = self.size * self.degree
        ranges = [
            range(first + rank, first + length, self.degree) for first in range(0, len(self.every), length) for rank in range(self.degree)
        ]
        return [self._group(own, stream) for own in (ranges[:1] if self.folded else ranges)]

    def _group(self, numbers: range, stream: int) -> tuple[Group, range]:
        """The devices with these numbers as a group, and the numbers of those that the plan has."""
        names = tuple(self.every[at] for at in numbers)
        return Group(self.machine, names, stream=stream, priority=self._priority, listed=int(self.folded)), numbers[: len(self.devices)]

    def _together(self, ops: Sequence[Task]) -> list[Task]:
        """The tasks of a collective of the devices that divide layers, from how it is in each device's graph."""
        groups = self._tensor_groups(TENSOR)
        return [task for group, numbers in groups for task in group.together(self.tensors, [ops[at] for at in numbers])]

    def _tensor_groups(self, stream: int) -> list[tuple[Group, range]]:
        """The groups that divide layers."""
        return [self._group(range(first, first + self.degree), stream) for first in range(0, len(self.devices), self.degree)]

    def _bundles(self, unit: str) -> list["_Bundle"]:
        """The weights of a unit, by type."""
        types = by_dtype(self.units.weights[unit])
        return [
            _Bundle(f" {dtype}" if number else "", dtype, weights, Flat(tuple(weight.shape for weight in weights), self.size))
            for number, (dtype, weights) in enumerate(types.items())
        ]

    def _gather(self, span: Span, name: str, after: Sequence[tuple[str, ...]]) -> tuple[list[Task], dict[str, list[Operand]]]:
        """The tasks that gather a unit for a span, and what they make on each device, by type."""
        tasks: list[Task] = []
        gathered: dict[str, list[Operand]] = {}
        for end, dtype, weights, flat in self._bundles(span.unit):
            label = f"{span.unit}/{name}{end}"
            for number, (group, numbers) in enumerate(self._groups(GATHER)):
                shards = []
                for at in numbers:
                    own = [self._held[at].get(weight.parameter) for weight in weights]
                    packed, shard = self._packed(own, flat, dtype, f"{label}/pack", at)
                    tasks += [replace(task, after=after[at], layer=span.unit) for task in packed]
                    shards.append(shard)
                made, wholes = group.all_gather(f"{label} of group {number}" if number else label, self.tensors, shards)
                waits = tuple(dict.fromkeys(chain.from_iterable(after[at] for at in numbers)))
                tasks += [replace(task, after=waits, layer=span.unit) for task in made]
                of_devices = gathered.setdefault(dtype, [wholes[0]] * len(self.devices))
                for at, operand in zip(numbers, wholes, strict=True):
                    of_devices[at] = operand
        return tasks, gathered

    def _unpack(self, span: Span, name: str, gathered: dict[str, list[Operand]]) -> tuple[list[Task], list[dict[str, Operand]]]:
        """The tasks that copy a unit's gathered weights to places of their own, as FSDP2 does right before the unit runs.

        Also, by device, what its ops read instead of each value of the graph.
        """
        tasks: list[Task] = []
        read: list[dict[str, Operand]] = [{} for _ in self.devices]
        for end, dtype, weights, flat in self._bundles(span.unit):
            for at, whole_ in enumerate(gathered[dtype]):
                parts = [shaped(whole_, (self.size, flat.length))]
                if len(weights) > 1:
                    unpacked, parts = self._unpacked(parts[0], flat, f"{span.unit}/{name}{end}/unpack", at)
                    tasks.append(replace(unpacked, layer=span.unit))
                for weight, part in zip(weights, parts, strict=True):
                    read[at] |= dict.fromkeys(weight.names, without_padding(part, weight.shape))
        return tasks, read

    def _packed(self, own: Sequence[Operand | None], flat: Flat, dtype: str, name: str, at: int) -> tuple[list[Task], Operand]:
        """The flat shard of a device: its parts of the tensors one after another, in the type in which they are gathered."""
        device = self.devices[at]
        if len(own) == 1 and own[0] is not None and own[0].dtype == dtype and own[0].elements == flat.length:
            return [], shaped(own[0], (flat.length,))
        steps = _Steps(f"{name}@{device}")
        held = next((operand.dtype for operand in own if operand is not None), dtype)
        parts = []
        for operand, length in zip(own, flat.lengths, strict=True):
            if operand is None:
                kwargs = json.dumps({"dtype": {"dtype": held}, "device": {"device": None}}, separators=(",", ":"))
                parts.append(steps.add("full.default", [[length], 0.0], (), (length,), held, kwargs))
            elif operand.elements < length:
                padded = steps.add(
                    "constant_pad_nd.default",
                    [{"$": 0}, [0, length - operand.elements]],
                    (shaped(operand, (operand.elements,)),),
                    (length,),
                    held,
                )
                parts.append(padded)
            else:
                parts.append(shaped(operand, (length,)))
        if len(parts) > 1:
            parts = [steps.add("cat.default", [[{"$": i} for i in range(len(parts))]], tuple(parts), (flat.length,), held)]
        if held != dtype:
            kwargs = json.dumps({"dtype": {"dtype": dtype}}, separators=(",", ":"))
            parts = [steps.add("_to_copy.default", [{"$": 0}], tuple(parts), (flat.length,), dtype, kwargs)]
        task, (result,) = steps.task(self.tensors, device, GATHER, self._priority, 1)
        return [task], result

    def _unpacked(self, gathered: Operand, flat: Flat, name: str, at: int) -> tuple[Task, list[Operand]]:
        """The task that copies each gathered tensor to a place of its own, and the copies."""
        steps = _Steps(f"{name}@{self.devices[at]}")
        for number, length in enumerate(flat.lengths):
            steps.add("clone.default", [{"$": 0}], (flat.part_of(gathered, number),), (self.size, length), gathered.dtype)
        task, copies = steps.task(self.tensors, self.devices[at], COMPUTE, 0, len(flat.lengths))
        return task, list(copies)

    # --- gradients

    def _reduce(self, unit: str, m: int) -> list[Task]:
        """The tasks that sum a unit's gradients over the devices, each of which keeps its part; the last microbatch completes them."""
        tasks: list[Task] = []
        types: dict[str, list[str]] = {}
        for parameter in self.units.parameters[unit]:
            types.setdefault(self.graph.gradients[parameter].dtype, []).append(parameter)
        for number, (dtype, parameters) in enumerate(types.items()):
            label = f"{unit}/reduce" + (f" {dtype}" if number else "") + (f" {m}" if m else "")
            flat = Flat(tuple(self.graph.values[name].shape for name in parameters), self.size)
            by_number: dict[int, Operand] = {}
            for place, (group, numbers) in enumerate(self._groups(REDUCE)):
                wholes, of_group = [], f"{label} of group {place}" if place else label
                for at in numbers:
                    own = [self.builders[at].gradient(name) for name in parameters]
                    packed, gradient = self._packed_gradients(own, flat, f"{label}/pack", at)
                    tasks += packed
                    wholes.append(gradient)
                made, shards = group.reduce_scatter(of_group, self.tensors, wholes)
                tasks += made
                by_number |= zip(numbers, shards, strict=True)
            sums = [by_number[at] for at in range(len(self.devices))]
            kept = self._sums.setdefault(f"{unit} {dtype}", sums)
            if kept is not sums:
                for device, new, old in zip(self.devices, sums, kept, strict=True):
                    lane = (device, REDUCE, self._priority)
                    tasks.append(Task(f"{label}/add@{device}", ADD, *lane, (new,), mutates=(old,), phase=BACKWARD))
            if m == self.job.accumulate - 1:
                tasks += self._over_groups(label, kept)
                self._complete(parameters, flat, kept)
        return [replace(task, layer=unit) for task in tasks]

    def _reduce_whole(self, unit: str, m: int) -> list[Task]:
        """The tasks that sum a unit's gradients over the replicas, each of which keeps all of them."""
        parameters = self.units.parameters[unit]
        own = [tuple(builder.gradient(name) for name in parameters) for builder in self.builders]
        for held, gradients in zip(self._held, own, strict=True):
            self.pieces.gradients |= {held[name].value: gradient for name, gradient in zip(parameters, gradients, strict=True)}
        if self.replicas == 1:
            return []
        tasks: list[Task] = []
        for rank in range(1 if self.folded else self.degree):
            group, numbers = self._group(range(rank, len(self.every), self.degree), REDUCE)
            tasks += group.all_reduce(f"{unit}/reduce" + (f" of rank {rank}" if rank else ""), [own[at] for at in numbers])
        return [replace(task, layer=unit) for task in tasks]

    def _packed_gradients(self, own: Sequence[Operand], flat: Flat, name: str, at: int) -> tuple[list[Task], Operand]:
        """A device's gradients as one flat tensor in which the parts of each rank lie together."""
        steps, parts, length = _Steps(f"{name}@{self.devices[at]}"), [], flat.length * self.size
        for operand, each in zip(own, flat.lengths, strict=True):
            if operand.strides != contiguous(operand.shape):
                kwargs = '{"memory_format":{"memory_format":"contiguous_format"}}'
                operand = steps.add("clone.default", [{"$": 0}], (operand,), operand.shape, operand.dtype, kwargs)
            if operand.elements < each * self.size:
                padding = [0, each * self.size - operand.elements]
                flattened = shaped(operand, (operand.elements,))
                operand = steps.add("constant_pad_nd.default", [{"$": 0}, padding], (flattened,), (each * self.size,), operand.dtype)
            parts.append(shaped(operand, (self.size, each)))
        if len(parts) > 1:
            args = [[{"$": i} for i in range(len(parts))], 1]
            parts = [steps.add("cat.default", args, tuple(parts), (self.size, flat.length), parts[0].dtype)]
        if not steps.steps:
            return [], shaped(parts[0], (length,))
        task, (result,) = steps.task(self.tensors, self.devices[at], REDUCE, self._priority, 1)
        return [task], shaped(result, (length,))

    def _over_groups(self, name: str, sums: Sequence[Operand]) -> list[Task]:
        """The tasks that sum shards over the groups that each hold all of the parameters."""
        tasks: list[Task] = []
        if self.size == self.replicas:
            return tasks
        length = self.size * self.degree
        for rank in range(1 if self.folded else length):
            group, numbers = self._group(range(rank, len(self.every), length), REDUCE)
            tasks += group.all_reduce(f"{name}/groups {rank}", [(sums[at],) for at in numbers])
        return tasks

    def _clip(self, largest: float) -> list[Task]:
        """The tasks that scale all shards of gradients to the largest global norm, whose square is summed over the devices."""
        tasks, squares = [], []
        own = [[self.pieces.gradients[operand.value] for operand in held.values()] for held in self._held]
        for at, (device, gradients) in enumerate(zip(self.devices, own, strict=True)):
            values = self.builders[at].graph.values
            cut = [g for name, g in zip(self._held[at], gradients, strict=True) if values[name].source or self.degree == 1]
            tasks.append(self._square("square", device, cut))
            squares.append(tasks[-1].writes)
            if self.degree > 1:  # all that divide layers have the other gradients, so that each adds its share of their square
                tasks.append(self._square("square of all", device, [each for each in gradients if each not in cut]))
                share = OpCall("aten.add_.Tensor", '[{"$":1},{"$":0}]', json.dumps({"alpha": 1 / self.degree}), ())
                reads, mutates = tasks[-1].writes, squares[-1]
                tasks.append(Task(f"clip/shares@{device}", share, device, COMPUTE, 0, reads, (), mutates, phase=UPDATE, layer="clip"))
        groups = self._groups(COMPUTE) if self._shards else []
        groups += self._tensor_groups(COMPUTE) if self.degree > 1 else []
        for number, (group, numbers) in enumerate(groups):
            tasks += group.all_reduce(f"clip/sum {number}@{self.devices[numbers[0]]}", [squares[at] for at in numbers])
        for device, gradients, (square,) in zip(self.devices, own, squares, strict=True):
            body = OpList(scale_steps(tuple(gradients), square, largest, f"@{device}"), "clip")
            tasks.append(Task(f"clip@{device}", body, device, COMPUTE, 0, (square,), (), tuple(gradients), phase=UPDATE, layer="clip"))
        return tasks

    def _square(self, name: str, device: str, gradients: Sequence[Operand]) -> Task:
        """The task that makes the square of the norm of a device's gradients."""
        square = self.tensors.scratch(f"clip/{name}@{device}", (1,), self.graph.gradients[self.graph.parameters[0]].dtype, device)
        body = OpList(square_steps(tuple(gradients), square, f"@{device}"), "square")
        return Task(f"clip/{name}@{device}", body, device, COMPUTE, 0, tuple(gradients), (square,), phase=UPDATE, layer="clip")

    def _complete(self, parameters: Iterable[str], flat: Flat, sums: Sequence[Operand]) -> None:
        """Say where the gradients of the devices' shards are."""
        for at, total in enumerate(sums):
            for number, name in enumerate(parameters):
                held = self._held[at].get(name)
                if held is not None:
                    own = flat.part_of(total, number)
                    self.pieces.gradients[held.value] = without_padding(own, held.shape) if held.shape else shaped(own, ())


class _Bundle(NamedTuple):
    """Weights of one type that a unit gathers together, and how they lie in what is gathered. `end`: of the names of their tasks."""

    end: str
    dtype: str
    weights: Sequence[Weight]
    flat: Flat


class _Steps:
    """Ops that run one after another as one task, whose last results are the task's."""

    def __init__(self, name: str):
        self.name = name
        self.steps: list[ListedOp] = []

    def add(self, target: str, args: list, reads: tuple[Operand, ...], shape: tuple[int, ...], dtype: str, kwargs: str = "{}") -> Operand:
        """Add an op. Returns its result, which is contiguous."""
        made = Operand(f"{self.name}:{len(self.steps)}", shape, contiguous(shape), dtype)
        body = OpCall(f"aten.{target}", json.dumps(args, separators=(",", ":")), kwargs)
        self.steps.append(ListedOp(body, reads, (made,)))
        return made

    def task(self, tensors: PlanTensors, device: str, stream: int, priority: int, results: int) -> tuple[Task, tuple[Operand, ...]]:
        """The task, and its last `results`, which are values of the plan."""
        made = tuple(step.writes[0] for step in self.steps[-results:])
        for operand in made:
            tensors.scratch(operand.value, operand.shape, operand.dtype, device)
        inner = {step.writes[0].value for step in self.steps}
        if len(self.steps) == 1:
            return Task(self.name, self.steps[0].body, device, stream, priority, self.steps[0].reads, made, phase=COLLECTIVE), made
        reads = tuple(dict.fromkeys(operand for step in self.steps for operand in step.reads if operand.value not in inner))
        body = OpList(tuple(self.steps), "shards")
        return Task(self.name, body, device, stream, priority, reads, made, phase=COLLECTIVE), made
