"""A value of the graph in pieces on several devices."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from simulator.plan.pieces import Box, covers
from simulator.plan.task import Operand, Value
from simulator.strategies.sharding.boxes import cut, overlap, within, without


@dataclass(frozen=True, slots=True)
class Piece:
    """A box of a value on a device: all elements of `operand`, whose shape is that of the box."""

    device: str
    box: Box
    operand: Operand

    def outside(self, boxes: Iterable[Box]) -> "Iterator[Piece]":
        """Yield the piece without what it has in common with `boxes`, as disjoint pieces."""
        rest = [self.box]
        for taken in boxes:
            rest = [part for each in rest for part in without(each, taken)]
        yield from (self if box == self.box else Piece(self.device, box, cut(self.operand, within(box, self.box))) for box in rest)


@dataclass
class Distributed:
    """Where the elements of a value of the graph are.

    `complete` are pieces with the value's elements; some may be copies of others. `contributions` add up to the value, outside of all boxes
    of `complete`: gradients of overlapping parts, and sums over parts of what is summed. Where nothing lies, a gradient is 0.
    """

    value: Value
    complete: list[Piece] = field(default_factory=list)
    contributions: list[Piece] = field(default_factory=list)

    def change(self, changed: Sequence[Piece]) -> None:
        """Note that `changed` have the newest content of their boxes. It is also in the pieces that these are parts of."""
        self.contributions = [piece for piece in self.contributions if any(piece.outside(each.box for each in changed))]
        others = [
            part
            for piece in self.complete
            for part in piece.outside(each.box for each in changed if each.operand.value != piece.operand.value)
        ]
        self.complete = list(dict.fromkeys((*changed, *others)))

    def on(self, device: str, box: Box) -> Piece | None:
        """A complete piece on a device that has all of a box: of those, first one that has nothing else."""
        covering = [piece for piece in self.complete if piece.device == device and covers(piece.box, box)]
        return next((piece for piece in covering if piece.box == box), covering[0] if covering else None)

    def contribution(self, device: str, box: Box) -> Piece | None:
        """The contribution of a device to exactly this box, if it is the device's only one."""
        own = [piece for piece in self.contributions if piece.device == device]
        return own[0] if len(own) == 1 and own[0].box == box else None

    def sources(self, device: str, box: Box) -> tuple[list[tuple[Piece, Box]], list[tuple[Piece, Box]]]:
        """What a box is put together from on a device: disjoint boxes of complete pieces, and of contributions to all the rest.

        Pieces on the device come first.
        """
        taken: list[tuple[Piece, Box]] = []
        rest = [box]
        for piece in sorted(self.complete, key=lambda each: each.device != device):
            uncovered: list[Box] = []
            for each in rest:
                common = overlap(piece.box, each)
                if common is None:
                    uncovered.append(each)
                else:
                    taken.append((piece, common))
                    uncovered += without(each, common)
            rest = uncovered
            if not rest:
                break
        contributing = ((piece, overlap(piece.box, each)) for each in rest for piece in self.contributions)
        added = [(piece, common) for piece, common in contributing if common is not None]
        return taken, sorted(added, key=lambda each: each[0].device != device)
