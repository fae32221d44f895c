"""Collectives as tasks of a plan.

If the devices share a process and a memory, a collective is expanded into one `Copy` per move of its rounds (`rounds`), so that the plan
lists everything that runs. If a library runs collectives (`Machine.library`), it is one `Collective` task.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from simulator.engine.collectives.rounds import RING, Move, rounds
from simulator.machine.machine import HOST, Machine
from simulator.plan.bodies.collective import ALL_REDUCE, Collective
from simulator.plan.bodies.copy import KERNEL, Copy
from simulator.plan.task import COLLECTIVE, Operand, Task
from simulator.plan.views import part


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
    algorithm: str = RING
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
