"""Collectives as tasks of a plan.

If the devices share a process and a memory, a collective is expanded into one `Copy` per move of its rounds (`rounds`), so that the plan
lists everything that runs. If a library runs collectives (`Machine.library`), it is one `Collective` task.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
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
)
from simulator.plan.bodies.opcall import OpCall
from simulator.plan.task import ACTIVATION, COLLECTIVE, INPUT, TRANSFER, Operand, Task
from simulator.plan.tensors import PlanTensors, part

# Copies between two devices as tasks of a plan: by which means they go, and in which lane.


#: Streams of a device. It sends to each other device on a stream of its own, from SEND on, in all directions alike.
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
    """Copies of the inputs from the host to a device. The inputs are values of the host from then on."""
    copies = []
    for value in [v for v in tensors.values.values() if v.kind == INPUT and v.device == device]:
        on_host = tensors.on_host(f"{value.name}@{HOST}@{device}", value)
        tensors.values[value.name] = replace(value, kind=ACTIVATION, source=None)
        body = Copy(HOST, device, means=means(machine, HOST, device))
        copies.append(Task(f"fetch {value.name}", body, device, reads=(on_host.operand(),), writes=(value.operand(),), phase=TRANSFER))
    return copies


@dataclass(frozen=True)
class Sender:
    """Makes the tasks that send tensors among `devices`, which give each of them its stream.

    `others`: by device, those for which it stands, as many for each.
    """

    machine: Machine
    devices: tuple[str, ...]
    others: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

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
        beside = tuple(zip(self.others.get(source, ()), self.others.get(target, ()), strict=True))
        body = Copy(source, target, add, means(self.machine, source, target, changed or bool(mutates)), beside)
        levels = self.machine.device(source).priority_levels
        return Task(
            name,
            body,
            source,
            SEND + self.devices.index(target),
            1 - levels,
            tuple(reads),
            tuple(writes),
            tuple(mutates),
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
            body = Collective(ALL_TO_ALL, self.devices, self.algorithm, listed=self.listed)
            reads, writes = (tuple(op.reads[0] for op in ops), tuple(op.writes[0] for op in ops))
            tasks = [Task(named.name, body, *self._lane(0), reads, writes, phase=COLLECTIVE)]
        else:
            make = self.all_gather if operation == "all_gather" else self.reduce_scatter
            tasks, _ = make(named.name, tensors, [op.reads[0] for op in ops], [op.writes[0] for op in ops])
        return [replace(task, layer=first.layer, microbatch=first.microbatch) for task in tasks]

    def all_gather(
        self, name: str, tensors: PlanTensors, shards: Sequence[Operand], into: Sequence[Operand] = ()
    ) -> tuple[list[Task], list[Operand]]:
        """Tasks after which every device holds the shards of all, one after another; and what they make on each device.

        `shards`: by device, contiguous, all of one shape. `into`: what they make, if that has a value already.
        """
        (length, *rest), dtype = shards[0].shape, shards[0].dtype
        shape = (length * len(self.devices), *rest)
        wholes = list(into) or [
            tensors.scratch(f"{name}@{device}", shape, dtype, device) for device, _ in zip(self.devices, shards, strict=False)
        ]
        if self.machine.library or self.listed:
            body = Collective(ALL_GATHER, self.devices, self.algorithm, listed=self.listed)
            return [Task(name, body, *self._lane(0), tuple(shards), tuple(wholes), phase=COLLECTIVE)], wholes
        tasks = []
        for rank, (device, whole) in enumerate(zip(self.devices, wholes, strict=True)):
            parts = []
            for source, shard in zip(self.devices, shards, strict=True):
                if source == device:
                    parts.append(shard)
                    continue
                parts.append(tensors.scratch(f"{name}/{source}>{device}", shard.shape, dtype, device))
                copy = Copy(source, device, means=means(self.machine, source, device))
                tasks.append(Task(f"{name}/{source}>{device}", copy, *self._lane(rank), (shard,), (parts[-1],), phase=COLLECTIVE))
            cat = OpCall("aten.cat.default", json.dumps([[{"$": i} for i in range(len(parts))]], separators=(",", ":")))
            tasks.append(Task(f"{name}@{device}", cat, *self._lane(rank), tuple(parts), (whole,), phase=COLLECTIVE))
        return tasks, wholes

    def reduce_scatter(
        self, name: str, tensors: PlanTensors, wholes: Sequence[Operand], into: Sequence[Operand] = ()
    ) -> tuple[list[Task], list[Operand]]:
        """Tasks after which each device holds the sum of its chunk of all devices' `wholes`; and what they make on each device.

        Chunks are equal parts of the first dimension. `into`: as in `all_gather`.
        """
        length, rest, dtype = wholes[0].shape[0] // len(self.devices), wholes[0].shape[1:], wholes[0].dtype
        shards = list(into) or [
            tensors.scratch(f"{name}@{device}", (length, *rest), dtype, device) for device, _ in zip(self.devices, wholes, strict=False)
        ]
        if self.machine.library or self.listed:
            body = Collective(REDUCE_SCATTER, self.devices, self.algorithm, listed=self.listed)
            return [Task(name, body, *self._lane(0), tuple(wholes), tuple(shards), phase=COLLECTIVE)], shards
        tasks = []
        for rank, (device, shard) in enumerate(zip(self.devices, shards, strict=True)):
            chunk = [part(whole, rank * length, (rank + 1) * length) for whole in wholes]
            clone = OpCall("aten.clone.default", '[{"$":0}]')
            tasks.append(Task(f"{name}@{device}", clone, *self._lane(rank), (chunk[rank],), (shard,), phase=COLLECTIVE))
            for source, addend in zip(self.devices, chunk, strict=True):
                if source != device:
                    copy = Copy(source, device, True, means(self.machine, source, device, changed=True))
                    added = Task(f"{name}/{source}>{device}", copy, *self._lane(rank), (addend,), mutates=(shard,), phase=COLLECTIVE)
                    tasks.append(added)
        return tasks, shards

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
            self.stream,
            self.priority,
            reads,
            targets if fresh else (),
            () if fresh else targets,
            phase=COLLECTIVE,
        )


# Which sums of gradients go first: those of the parameters that the next forward uses first (TurboDL's reuse distance).


#: Urgencies that sums are divided into at most; each has a stream and a priority of its own.
URGENCIES = 4


def urgencies(first_uses: Sequence[int], levels: int) -> list[int]:
    """Return the urgency of each sum, 0 the most urgent, from where in a forward its parameters are used first.

    `levels`: priority levels of the devices, one of which is left to what they compute.
    """
    ranks = {use: rank for rank, use in enumerate(sorted(set(first_uses)))}
    count = min(URGENCIES, max(1, levels - 1), len(ranks))
    return [ranks[use] * count // len(ranks) for use in first_uses]


def priority_of(urgency: int, levels: int) -> int:
    """Return the priority of sums of this urgency on devices of so many priority levels."""
    return max(1 - levels, urgency - URGENCIES)
