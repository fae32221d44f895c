"""Collectives as tasks of a plan.

If the devices share a process and a memory, a collective is expanded into one `Copy` per move of its rounds (`rounds`), so that the plan
lists everything that runs. If a library runs collectives (`Machine.library`), it is one `Collective` task.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from simulator.engine.collectives.rounds import RING, Move, rounds
from simulator.machine.machine import HOST, Machine
from simulator.plan.bodies.copy import ALIAS, ALL_REDUCE, KERNEL, LINK, Algorithm, Collective, Copy, Means
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
    """Devices that reduce together; `root`: the device that serves, or the host; `stream` and `priority`: of the tasks."""

    machine: Machine
    devices: tuple[str, ...]
    algorithm: Algorithm = RING
    root: str = ""
    stream: int = 0
    priority: int = 0

    def all_reduce(self, name: str, operands: Sequence[Sequence[Operand]], at_host: Sequence[Operand] = ()) -> list[Task]:
        """Tasks, in issue order, after which every device holds the sum. `operands`: one sequence per device.

        `at_host`: values of the same shapes on the host, needed if the host serves.
        """
        if self.machine.library:
            # A process on a CPU is its own host, so the first device's process serves in its place.
            at_first = self.root == HOST and self.machine.memory_name(HOST) == self.machine.memory_name(self.devices[0])
            body = Collective(ALL_REDUCE, self.devices, self.algorithm, self.devices[0] if at_first else self.root)
            flat = tuple(operand for own in operands for operand in own)
            lane = (self.devices[0], self.stream, self.priority)
            return [Task(name, body, *lane, mutates=flat, phase=COLLECTIVE)]
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
