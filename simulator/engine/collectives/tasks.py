"""Collectives as tasks of a plan.

If the devices share a process, a collective is expanded into one `Copy` per move of its rounds (`rounds`), so that the plan lists
everything that runs. If a library runs collectives (`Machine.library`), it is one `Collective` task.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import NamedTuple

from simulator.engine.collectives.rounds import RING, Move, rounds
from simulator.machine.machine import HOST, Machine
from simulator.plan.bodies.copy import (
    ALIAS,
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    KERNEL,
    LINK,
    REDUCE_SCATTER,
    Algorithm,
    Collective,
    Copy,
    Means,
    Operation,
)
from simulator.plan.bodies.opcall import OpCall
from simulator.plan.plan import Plan
from simulator.plan.task import ACTIVATION, COLLECTIVE, INPUT, SCRATCH, TRANSFER, Operand, Storage, Task, Value
from simulator.plan.tensors import PlanTensors, part
from simulator.plan.views import dense

# Copies between two devices as tasks of a plan: by which means they go, and in which lane.


#: Streams of a device. It sends to each other device on a separate stream, numbered from SEND on.
COMPUTE, SEND = 0, 1


def means(machine: Machine, source: str, target: str, changed: bool = False) -> Means:
    """How a value gets from one device, or the host, to another: see `Copy`.

    In one memory it may stay where it is, unless it is `changed` later on either side. With a library every device is a process, and
    processes share no memory.
    """
    apart = machine.library and HOST not in (source, target)
    if apart or machine.memory_name(source) != machine.memory_name(target):
        return LINK
    return KERNEL if changed or machine.link_between(source, target) else ALIAS


def fetches(machine: Machine, tensors: PlanTensors, device: str) -> list[Task]:
    """Copies of the inputs from the host to a device. From then on, the inputs are values on the host."""
    copies = []
    for value in [v for v in tensors.values.values() if v.kind == INPUT and v.device == device]:
        on_host = tensors.on_host(f"{value.name}@{HOST}@{device}", value)
        tensors.values[value.name] = replace(value, kind=ACTIVATION, source=None)
        body = Copy(HOST, device, means=means(machine, HOST, device))
        copies.append(Task(f"fetch {value.name}", body, device, reads=(on_host.operand(),), writes=(value.operand(),), phase=TRANSFER))
    return copies


def over_links(plan: Plan, machine: Machine) -> Plan:
    """The plan of one process with what its copies between memories of several GPUs are made of.

    No kernel reads another GPU's memory: bytes go over the links. What is added on the target arrives in memory of its own first, on the
    same lane, and a kernel of the target adds it there.
    """
    if machine.library or len({device.memory for device in machine.devices}) == 1:
        return plan
    return plan.each(lambda own: _over_links(own, machine))


def _over_links(plan: Plan, machine: Machine) -> Plan:
    values, storages = dict(plan.values), dict(plan.storages)

    def moved(task: Task) -> list[Task]:
        body = task.body
        if not isinstance(body, Copy) or HOST in body.ends or machine.memory_name(body.source) == machine.memory_name(body.target):
            return [task]
        if not body.add:
            return [replace(task, body=replace(body, means=LINK))]
        arrived = []
        for number, read in enumerate(task.reads):
            name = f"{task.name}#{number}"
            value = Value(name, read.shape, dense(read.shape, read.strides), dtype=read.dtype, device=body.target, kind=SCRATCH)
            values[name], storages[name] = value, Storage(name, read.bytes, body.target)
            arrived.append(value.operand())
        arrival = replace(task, name=f"{task.name}#", body=Copy(body.source, body.target), writes=tuple(arrived), mutates=())
        added = replace(task, body=Copy(body.target, body.target, True, KERNEL), device=body.target, reads=tuple(arrived), after=())
        return [arrival, added]

    tasks = tuple(chain.from_iterable(map(moved, plan.tasks)))
    return replace(plan, tasks=tasks, values=values, storages=storages)


@dataclass(frozen=True)
class Sender:
    """Makes the tasks that send tensors among `devices`, which give each of them its stream."""

    machine: Machine
    devices: tuple[str, ...]

    @property
    def streams(self) -> int:
        """The number of streams that computing and sending take, from 0 on."""
        return SEND + len(self.devices)

    def send(
        self,
        name: str,
        source: str,
        target: str,
        reads: Sequence[Operand],
        writes: Sequence[Operand] = (),
        mutates: Sequence[Operand] = (),
        add: bool = False,
        changed: bool = False,
        microbatch: int = 0,
    ) -> Task:
        """The task that puts `reads`, on device `source`, into fresh values or, with `mutates`, into parts of values on `target`."""
        body = Copy(source, target, add, means(self.machine, source, target, changed or bool(mutates)))
        levels = self.machine.device(source).priority_levels
        return Task(
            name,
            body,
            source,
            stream=SEND + self.devices.index(target),
            priority=1 - levels,
            reads=tuple(reads),
            writes=tuple(writes),
            mutates=tuple(mutates),
            phase=TRANSFER,
            microbatch=microbatch,
        )


class Piece(NamedTuple):
    """Entries `first` to `end` (exclusive) along dimension 0 of operand number `position`; (0, 1) for a scalar."""

    position: int
    first: int
    end: int


def chunks(operands: Sequence[Operand], count: int) -> list[tuple[Piece, ...]]:
    """`operands` in sequence, cut into `count` chunks as equal as whole entries of dimension 0 allow."""
    ends, total = [], 0
    for operand in operands:
        total += operand.elements
        ends.append(total)
    cut: list[tuple[Piece, ...]] = []
    for chunk in range(count):
        low, high = total * chunk // count, total * (chunk + 1) // count
        pieces = []
        for position, (operand, end) in enumerate(zip(operands, ends, strict=True)):
            rows = operand.shape[0] if operand.shape else 1
            start, row = end - operand.elements, operand.elements // rows if rows else 0
            if row:
                first, last = (min(rows, max(0, -((start - border) // row))) for border in (low, high))
                if first < last:
                    pieces.append(Piece(position, first, last))
        cut.append(tuple(pieces))
    return cut


def entries(operand: Operand, piece: Piece) -> Operand:
    """The entries of `operand` that a piece names."""
    return part(operand, piece.first, piece.end) if operand.shape else operand


@dataclass(frozen=True)
class Group:
    """Devices that reduce or gather together; `root`: the device that serves, or the host; `stream` and `priority`: of the tasks.

    `listed`: as in `Collective`.
    """

    machine: Machine
    devices: tuple[str, ...]
    algorithm: Algorithm = RING
    root: str = ""
    stream: int = 0
    priority: int = 0
    listed: int = 0

    def all_reduce(self, name: str, operands: Sequence[Sequence[Operand]], at_host: Sequence[Operand] = ()) -> list[Task]:
        """Tasks, in issue order, after which every device holds the sum. `operands`: one sequence per device.

        `at_host`: values of the same shapes on the host, needed if the host serves.
        """
        if self.machine.library or self.listed:
            # A process on a CPU is its own host, so the first device's process serves in its place.
            at_first = self.root == HOST and self.machine.memory_name(HOST) == self.machine.memory_name(self.devices[0])
            body = Collective(ALL_REDUCE, self.devices, self.algorithm, self.devices[0] if at_first else self.root, self.listed)
            flat = tuple(operand for own in operands for operand in own)
            return [Task(name, body, *self._lane(0), mutates=flat, phase=COLLECTIVE)]
        root = -1 if self.root == HOST else self.devices.index(self.root) if self.root else 0
        places = [*operands, at_host]  # the host is at -1
        pieces_of = chunks(operands[0], len(self.devices))
        whole = tuple(Piece(p, 0, o.shape[0] if o.shape else 1) for p, o in enumerate(operands[0]))
        tasks = []
        for number, moves in enumerate(rounds(ALL_REDUCE, self.algorithm, len(self.devices), root)):
            for move in moves:
                pieces = whole if move.chunk is None else pieces_of[move.chunk]
                if pieces:
                    tasks.append(self._move(f"{name}/{number}", move, pieces, places))
        return tasks

    def together(self, tensors: PlanTensors, ops: Sequence[Task]) -> list[Task]:
        """The tasks of a collective of a divided graph (`simulator.model.division`). `ops`: as each device's graph has it."""
        first = ops[0]
        named = replace(first, name=first.name.removesuffix(f"@{first.device}"))
        operation = first.body.target.split(".")[1]
        if operation == "all_reduce":
            tasks = self.all_reduce(named.name, [op.mutates for op in ops])
        elif operation == "all_to_all":
            tasks = [self._collective(named.name, ALL_TO_ALL, [op.reads for op in ops], [op.writes for op in ops])]
        else:
            make = self.all_gather if operation == "all_gather" else self.reduce_scatter
            tasks, _ = make(named.name, tensors, [op.reads for op in ops], [op.writes for op in ops])
        return [replace(task, layer=first.layer, microbatch=first.microbatch) for task in tasks]

    def all_gather(
        self,
        name: str,
        tensors: PlanTensors,
        shards: Sequence[Sequence[Operand]],
        into: Sequence[Sequence[Operand]] = (),
        changed: bool = False,
    ) -> tuple[list[Task], list[tuple[Operand, ...]]]:
        """Tasks after which every device holds the shards of all, one after another; and what they make on each device.

        `shards`: by device, contiguous, of the same shapes on each. `into`: what they make, if that has values already. `changed`: as of
        `means`.
        """
        wholes = [tuple(own) for own in into] or [
            self._made(name, tensors, device, [(shard.shape[0] * len(self.devices), *shard.shape[1:]) for shard in own], own)
            for device, own in zip(self.devices, shards, strict=False)
        ]
        if self.machine.library or self.listed:
            return [self._collective(name, ALL_GATHER, shards, wholes)], wholes
        tasks = []
        for rank, (device, own) in enumerate(zip(self.devices, wholes, strict=True)):
            parts = []
            for source, sent in zip(self.devices, shards, strict=True):
                if source == device:
                    parts.append(tuple(sent))
                    continue
                arrow = f"{name}/{source}>{device}"
                parts.append(self._made(arrow, tensors, "", [shard.shape for shard in sent], sent, device))
                copy = Copy(source, device, means=means(self.machine, source, device, changed))
                tasks.append(Task(arrow, copy, *self._lane(rank), tuple(sent), parts[-1], phase=COLLECTIVE))
            cat = OpCall("aten.cat.default", json.dumps([[{"$": i} for i in range(len(parts))]], separators=(",", ":")))
            for number, (whole, *of_whole) in enumerate(zip(own, *parts, strict=True)):
                end = f" {number}" if number else ""
                tasks.append(Task(f"{name}@{device}{end}", cat, *self._lane(rank), tuple(of_whole), (whole,), phase=COLLECTIVE))
        return tasks, wholes

    def reduce_scatter(
        self, name: str, tensors: PlanTensors, wholes: Sequence[Sequence[Operand]], into: Sequence[Sequence[Operand]] = ()
    ) -> tuple[list[Task], list[tuple[Operand, ...]]]:
        """Tasks after which each device holds the sum of its chunk of all devices' `wholes`; and what they make on each device.

        Chunks are equal parts of the first dimension. `into`: as in `all_gather`.
        """
        shards = [tuple(own) for own in into] or [
            self._made(name, tensors, device, [(whole.shape[0] // len(self.devices), *whole.shape[1:]) for whole in own], own)
            for device, own in zip(self.devices, wholes, strict=False)
        ]
        if self.machine.library or self.listed:
            return [self._collective(name, REDUCE_SCATTER, wholes, shards)], shards
        tasks = []
        for rank, (device, own) in enumerate(zip(self.devices, shards, strict=True)):
            clone = OpCall("aten.clone.default", '[{"$":0}]')
            for number, (read, shard) in enumerate(zip(self._chunks(wholes[rank], rank), own, strict=True)):
                end = f" {number}" if number else ""
                tasks.append(Task(f"{name}@{device}{end}", clone, *self._lane(rank), (read,), (shard,), phase=COLLECTIVE))
            tasks += self._added(name, rank, wholes, own)
        return tasks, shards

    def reduce_scatter_in_place(self, name: str, wholes: Sequence[Sequence[Operand]]) -> tuple[list[Task], list[tuple[Operand, ...]]]:
        """The same without new memory: each device's own chunk becomes the sum, and its other chunks become invalid.

        Also returns the chunks.
        """
        sums = [self._chunks(own, rank) for rank, own in enumerate(wholes)]
        if self.machine.library or self.listed:
            body = Collective(REDUCE_SCATTER, self.devices, self.algorithm, listed=self.listed)
            return [Task(name, body, *self._lane(0), mutates=tuple(chain.from_iterable(wholes)), phase=COLLECTIVE)], sums
        return [task for rank, own in enumerate(sums) for task in self._added(name, rank, wholes, own)], sums

    def all_reduce_parts(self, name: str, wholes: Sequence[Sequence[Operand]]) -> tuple[list[Task], list[tuple[Operand, ...]]]:
        """An all-reduce after which each device uses only its own chunk. Also returns the chunks."""
        return self.all_reduce(name, [tuple(own) for own in wholes]), [self._chunks(own, rank) for rank, own in enumerate(wholes)]

    def _added(self, name: str, rank: int, wholes: Sequence[Sequence[Operand]], sums: Sequence[Operand]) -> list[Task]:
        """The tasks that add the other devices' chunks to a rank's own."""
        tasks = []
        for source, own in zip(self.devices, wholes, strict=True):
            if source != (device := self.devices[rank]):
                copy = Copy(source, device, True, means(self.machine, source, device, changed=True))
                reads = self._chunks(own, rank)
                tasks.append(Task(f"{name}/{source}>{device}", copy, *self._lane(rank), reads, mutates=tuple(sums), phase=COLLECTIVE))
        return tasks

    def _chunks(self, wholes: Iterable[Operand], rank: int) -> tuple[Operand, ...]:
        """A rank's chunk of each."""
        lengths = [(whole, whole.shape[0] // len(self.devices)) for whole in wholes]
        return tuple(part(whole, rank * length, (rank + 1) * length) for whole, length in lengths)

    def _made(
        self, name: str, tensors: PlanTensors, at: str, shapes: Sequence[tuple[int, ...]], like: Sequence[Operand], device: str = ""
    ) -> tuple[Operand, ...]:
        """New values of these shapes. `at`: the end of their names, usually their device."""
        names = [f"{name}{f'@{at}' if at else ''}{f' {number}' if number else ''}" for number in range(len(shapes))]
        return tuple(tensors.scratch(each, shape, own.dtype, device or at) for each, shape, own in zip(names, shapes, like, strict=True))

    def _collective(self, name: str, operation: Operation, reads: Sequence[Sequence[Operand]], writes: Sequence[Sequence[Operand]]) -> Task:
        """The one task of a library's collective."""
        body = Collective(operation, self.devices, self.algorithm, listed=self.listed)
        return Task(name, body, *self._lane(0), tuple(chain.from_iterable(reads)), tuple(chain.from_iterable(writes)), phase=COLLECTIVE)

    def _lane(self, rank: int) -> tuple[str, int, int]:
        """Device, stream and priority of the tasks of a rank."""
        return self.devices[rank], self.stream, self.priority

    def _move(self, name: str, move: Move, pieces: tuple[Piece, ...], places: Sequence[Sequence[Operand]]) -> Task:
        """The task of one move. It runs on the target device's lane, or on the source's if the target is the host."""
        source, target = (HOST if rank < 0 else self.devices[rank] for rank in (move.source, move.target))
        reads = tuple(entries(places[move.source][p.position], p) for p in pieces)
        targets = tuple(entries(places[move.target][p.position], p) for p in pieces)
        device = source if target == HOST else target
        fresh = target == HOST and not move.add
        return Task(
            f"{name}/{source}>{target}",
            Copy(source, target, move.add, KERNEL),
            device,
            stream=self.stream,
            priority=self.priority,
            reads=reads,
            writes=targets if fresh else (),
            mutates=() if fresh else targets,
            phase=COLLECTIVE,
        )


# Which sums of gradients go first: those of the parameters that the next forward uses first (TurboDL's reuse distance).


#: The maximum number of urgencies that sums are divided into; each has its own stream and priority.
URGENCIES = 4


def urgencies(first_uses: Sequence[int], levels: int) -> list[int]:
    """Return the urgency of each sum, 0 the most urgent, from where in a forward its parameters are used first.

    `levels`: priority levels of the devices, one of which is left to what they compute.
    """
    ranks = {use: rank for rank, use in enumerate(sorted(set(first_uses)))}
    count = min(URGENCIES, max(1, levels - 1), len(ranks))
    return [ranks[use] * count // len(ranks) for use in first_uses]


def priority_of(urgency: int, levels: int) -> int:
    """Return the priority of sums of this urgency on devices with `levels` priority levels."""
    return max(1 - levels, urgency - URGENCIES)
