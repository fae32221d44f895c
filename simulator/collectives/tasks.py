"""Collectives as tasks of a plan.

Where the devices share a process and a memory a collective is spelled out as one `Copy` per move of its rounds (`rounds`), so that a plan
says all there is to run. Where a library makes collectives (`Machine.library`) it is one `Collective`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from simulator.bodies.collective import ALL_REDUCE, Collective
from simulator.bodies.copy import KERNEL, Copy
from simulator.collectives.rounds import RING, Move, rounds
from simulator.machine.machine import HOST, Machine
from simulator.plan.task import COLLECTIVE, Operand, Task
from simulator.plan.views import part


class Piece(NamedTuple):
    """Entries `first` to `end` along dimension 0 of the operand at a position; a scalar's are (0, 1)."""

    position: int
    first: int
    end: int


def chunks(operands: Sequence[Operand], count: int) -> list[tuple[Piece, ...]]:
    """`operands` one after another, cut into `count` chunks of as many bytes as whole entries of dimension 0 allow."""
    ends, total = [], 0
    for operand in operands:
        total += operand.elements
        ends.append(total)
    found: list[tuple[Piece, ...]] = []
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
        found.append(tuple(pieces))
    return found


def seen(operand: Operand, piece: Piece) -> Operand:
    """The operand's part that a piece names."""
    return part(operand, piece.first, piece.end) if operand.shape else operand


@dataclass(frozen=True)
class Group:
    """Devices that reduce together, and on which of their streams, how urgently."""

    machine: Machine
    devices: tuple[str, ...]
    algorithm: str = RING
    root: str = ""
    stream: int = 0
    priority: int = 0

    def all_reduce(self, name: str, operands: Sequence[Sequence[Operand]], at_host: Sequence[Operand] = ()) -> list[Task]:
        """The tasks after which every device holds the sum of `operands`, given device by device; in issue order.

        `at_host`: values of the host with the same shapes, for a server there.
        """
        if self.machine.library:
            # A process on a CPU is its own host: there the first device's process is the server.
            at_first = self.root == HOST and self.machine.memory_name(HOST) == self.machine.memory_name(self.devices[0])
            body = Collective(ALL_REDUCE, self.devices, self.algorithm, self.devices[0] if at_first else self.root)
            flat = tuple(operand for each in operands for operand in each)
            lane = (self.devices[0], self.stream, self.priority)
            return [Task(name, body, *lane, mutates=flat, phase=COLLECTIVE)]
        root = -1 if self.root == HOST else self.devices.index(self.root) if self.root else 0
        places = [*operands, at_host]  # the host is at -1
        cut = chunks(operands[0], len(self.devices))
        every = tuple(Piece(p, 0, o.shape[0] if o.shape else 1) for p, o in enumerate(operands[0]))
        found = []
        for number, moves in enumerate(rounds(ALL_REDUCE, self.algorithm, len(self.devices), root)):
            for move in moves:
                pieces = every if move.chunk is None else cut[move.chunk]
                if pieces:
                    found.append(self._moved(f"{name}/{number}", move, pieces, places))
        return found

    def _moved(self, name: str, move: Move, pieces: tuple[Piece, ...], places: Sequence[Sequence[Operand]]) -> Task:
        """One move, on the lane of the device that it ends at, or, into the host's memory, that it comes from."""
        source, target = (HOST if rank < 0 else self.devices[rank] for rank in (move.source, move.target))
        reads = tuple(seen(places[move.source][p.position], p) for p in pieces)
        changed = tuple(seen(places[move.target][p.position], p) for p in pieces)
        device = source if target == HOST else target
        fresh = target == HOST and not move.add
        return Task(
            f"{name}/{source}>{target}",
            Copy(source, target, move.add, KERNEL),
            device,
            self.stream,
            self.priority,
            reads,
            changed if fresh else (),
            () if fresh else changed,
            phase=COLLECTIVE,
        )
