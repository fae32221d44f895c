"""Brings any box of a value to any device: nothing moves if it is there; otherwise, it is assembled from pieces on other devices."""

import json
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from simulator.engine.collectives.tasks import COMPUTE, Sender, means
from simulator.plan.bodies.copy import ALIAS, LINK
from simulator.plan.bodies.opcall import OpCall
from simulator.plan.task import ACTIVATION, CARRIED_KINDS, FORWARD, INPUT, SCRATCH, Operand, Task, Value
from simulator.plan.tensors import Box, PlanTensors, covers
from simulator.plan.views import NotABoxError, dense, with_views
from simulator.strategies.sharding.boxes import cut, elements, overlap, shape_of, whole, within, without

# A value of the graph in pieces on several devices.


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
    of `complete`: gradients of overlapping parts, and sums over parts of what is summed. Where there is no piece, a gradient is 0.
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
        """What a box is assembled from on a device: disjoint boxes of complete pieces, and of contributions to all the rest.

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


class Fetcher:
    """Makes the tasks that bring values to devices, and appends them to `tasks`.

    `phase` and `layer` are those of the op that the next fetches serve. `names` are all that are taken.
    """

    def __init__(self, sender: Sender, tensors: PlanTensors, tasks: list[Task]):
        self.sender, self.tensors, self.tasks = sender, tensors, tasks
        self.phase, self.layer = FORWARD, ""
        #: Copies with padding around the value, by value, device, box and what lies beyond; and those without gaps.
        self._copies: dict[tuple[str, str, Box, object], Operand] = {}
        self._named: set[str] = set()

    def fetch(self, value: Distributed, device: str, box: Box, fill: float = 0.0, changed: bool = False) -> Operand:
        """An operand on `device` with the elements of a box. Beyond the value it has `fill`.

        `changed`: the value is changed in place later, so that no two devices can share its memory.
        """
        inner = overlap(box, whole(value.value.shape))
        if inner == box:
            piece = value.on(device, box)
            if piece is not None:
                return _part(piece, box)
            operand = self._put_together(value, device, box, changed)
            value.complete.append(Piece(device, box, operand))
            return operand
        key = (value.value.name, device, box, fill)
        if key not in self._copies:
            operand = self._copies[key] = self._padded(value, device, box, inner, fill, changed)
            if inner is not None and value.on(device, inner) is None:
                value.complete.append(Piece(device, inner, cut(operand, within(inner, box))))
        return self._copies[key]

    def viewed(self, base: Operand, local: Operand, like: Sequence[int]) -> Operand:
        """`base`, fetched for an op, with the view steps of `local`, which a base without gaps has been given.

        `like`: strides with the order of the base's dimensions. A base with gaps that cannot be viewed so is copied.
        """
        if not local.views:
            return base
        expected = dense(base.shape, like)
        gaps = any(a != b for a, b, extent in zip(base.strides, expected, base.shape, strict=True) if extent > 1)
        if gaps:
            try:
                return with_views(base, local.views)
            except NotABoxError:
                base = self._without_gaps(base, expected)
        elif base.views and local.views[0].target == "aten.as_strided.default":  # it sees the whole storage
            base = self._without_gaps(base, expected)
        return Operand(base.value, local.shape, local.strides, local.dtype, (*base.views, *local.views))

    def _without_gaps(self, base: Operand, strides: tuple[int, ...]) -> Operand:
        key = (base.value, "", (), base.views)
        if key not in self._copies:
            value = self.tensors.values[base.value]
            copy = self._new(f"{base.value}#dense", base.shape, strides, value, value.device)
            self.call("aten.clone.default", '[{"$":0}]', (base,), (copy,))
            self._copies[key] = copy
        return self._copies[key]

    # --- putting a box together

    def _put_together(self, value: Distributed, device: str, box: Box, changed: bool) -> Operand:
        """A box within the value that no complete piece on the device has."""
        taken, added = value.sources(device, box)
        base = next((i for i, (piece, part) in enumerate((*taken, *added)) if part == box and (i < len(taken) or not taken)), None)
        if base is None:
            return self._padded(value, device, box, box, 0.0, changed)
        piece, _ = (*taken, *added)[base]
        rest = [each for each in added if each[0] is not piece]
        operand = _part(piece, box)
        if piece.device != device:
            if not rest:
                value.complete.append(Piece(piece.device, box, operand))
            operand = self._brought(value, piece.device, device, operand, changed or bool(rest))
        for other, part in rest:
            self._put(value, device, operand, box, other, part, add=True)
        return operand

    def _padded(self, value: Distributed, device: str, box: Box, inner: Box | None, fill: float, changed: bool) -> Operand:
        """A new tensor for a box, with `fill` beyond the value and where nothing lies."""
        taken, added = value.sources(device, inner) if inner is not None else ([], [])
        taken, added = (sorted(each, key=lambda source: (source[0].device != device, -elements(source[1]))) for each in (taken, added))
        target = self._new(
            f"{value.value.name}@{device}#part", shape_of(box), dense(shape_of(box), value.value.strides), value.value, device
        )
        sources = [(each, False) for each in taken] + [(each, True) for each in added]
        if not sources:
            like = {"dtype": {"dtype": value.value.dtype}, "device": {"device": None}}
            arguments = json.dumps([list(target.shape), _number(fill)], separators=(",", ":"))
            self.call("aten.full.default", arguments, (), (target,), on=device, kwargs=like)
            return target
        (piece, part), _ = sources.pop(0)
        base = _part(piece, part)
        if piece.device != device:
            base = self._brought(value, piece.device, device, base, changed)
        room = [side for (low, high), (first, end) in zip(reversed(part), reversed(box), strict=True) for side in (low - first, end - high)]
        arguments = json.dumps([{"$": 0}, room, _number(fill)], separators=(",", ":"))
        self.call("aten.constant_pad_nd.default", arguments, (base,), (target,))
        for (piece, part), add in sources:
            self._put(value, device, target, box=box, piece=piece, part=part, add=add)
        return target

    def _put(self, value: Distributed, device: str, target: Operand, box: Box, piece: Piece, part: Box, add: bool) -> None:
        """Copy a part of a piece to its place in the tensor of `box`, or add that of a contribution to what is there."""
        place, source = cut(target, within(part, box)), _part(piece, part)
        if piece.device != device:
            if not add or means(self.sender.machine, piece.device, device, True) != LINK:
                self._send(piece.device, device, source, (), (place,), add=add)
                return
            source = self._brought(value, piece.device, device, source, True)
        self.call("aten.add_.Tensor" if add else "aten.copy_.default", '[{"$":1},{"$":0}]', (source,), (), (place,))

    def _brought(self, value: Distributed, source: str, device: str, operand: Operand, changed: bool) -> Operand:
        """A copy on `device` of an operand of another device."""
        shared = means(self.sender.machine, source, device, changed) == ALIAS
        strides = operand.strides if shared else dense(operand.shape, value.value.strides)
        copy = self._new(f"{value.value.name}@{device}", operand.shape, strides, value.value, device)
        self._send(source, device, operand, (copy,), (), changed=changed)
        return copy

    def _send(self, source: str, target: str, read: Operand, writes: tuple, mutates: tuple, **how) -> None:
        name = self.task_name(f"send {(*writes, *mutates)[0].value}")
        self.tasks.append(self.sender.send(name, source, target, (read,), writes, mutates, **how))

    def call(
        self,
        target: str,
        args: str,
        reads: tuple[Operand, ...],
        writes: tuple[Operand, ...],
        mutates: tuple[Operand, ...] = (),
        on: str = "",
        kwargs: dict | None = None,
        outputs: tuple[int, ...] = (0,),
    ) -> None:
        """Add the task of an op on the device of its results."""
        result = (*writes, *mutates)[0]
        device = on or self.tensors.values[result.value].device
        body = OpCall(target, args, json.dumps(kwargs or {}, separators=(",", ":")), outputs if writes else ())
        name = self.task_name(f"{result.value}/{target.split('.')[1].strip('_')}")
        self.tasks.append(
            Task(name, body, device, COMPUTE, reads=reads, writes=writes, mutates=mutates, phase=self.phase, layer=self.layer)
        )

    def task_name(self, name: str) -> str:
        """A name that no other task has."""
        name = _unused(name, self._named)
        self._named.add(name)
        return name

    def value_name(self, name: str) -> str:
        """A name that no other value has."""
        return _unused(name, self.tensors.values)

    def new(self, name: str, shape: tuple[int, ...], like: Operand, device: str) -> Operand:
        """Make a scratch value without gaps whose dimensions are in the order of those of `like`."""
        return self.tensors.add(Value(name, shape, dense(shape, like.strides), dtype=like.dtype, device=device, kind=SCRATCH)).operand()

    def _new(self, name: str, shape: tuple[int, ...], strides: tuple[int, ...], like: Value, device: str) -> Operand:
        name = self.value_name(name)
        kind = ACTIVATION if like.kind in CARRIED_KINDS or like.kind == INPUT else like.kind
        return self.tensors.add(Value(name, shape, strides, dtype=like.dtype, device=device, kind=kind)).operand()


def _part(piece: Piece, box: Box) -> Operand:
    return cut(piece.operand, within(box, piece.box))


def _number(number: float) -> object:
    return number if abs(number) != float("inf") else {"float": repr(number)}


def _unused(name: str, taken: Container[str]) -> str:
    unused, number = name, 2
    while unused in taken:
        unused, number = f"{name}#{number}", number + 1
    return unused
