"""Which forward op each backward op serves: it runs where that one runs, on the same part of its output.

A gradient is followed from the loss down: it is the gradient of the result of a forward op, or of ops that pass gradients on unchanged. A
backward op serves the first of these that matches its kind and its saved tensors.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from simulator.model.graph import Op, TrainingGraph
from simulator.plan.task import AGAIN, BACKWARD, FORWARD, PARAMETER, Operand, ViewStep
from simulator.plan.views import slice_arguments
from simulator.strategies.sharding.regions import concatenated, name_of, output_of

#: Ops that pass the gradient of their output on to their inputs.
_PASSING = frozenset({"add", "add_", "sub", "sub_", "clone"})
#: Forward ops by the name of a backward op that is not theirs with the ending `_backward`.
_FORWARD_OF = {
    "threshold_backward": ("relu", "relu_"),
    "_log_softmax_backward_data": ("_log_softmax",),
    "nll_loss_backward": ("nll_loss_forward",),
    "mm": ("addmm", "mm"),
    "div": ("mean", "div", "div_"),
    "neg": ("sub", "sub_", "neg"),
    "sum": ("addmm", "add", "add_", "sub", "mul", "mul_", "div"),
    "mul": ("mul", "mul_", "add", "add_", "sub", "div"),
    "clone": ("clone",),
}
_SUMS = frozenset({"add", "add_"})


@dataclass(frozen=True, slots=True)
class Served:
    """What a backward op serves: `forward`, the index of a forward op, or `parameter`, whose gradients it adds or copies.

    `rule`: the op makes what the op `forward` receives or, in a sum of two gradients (`sums`), the gradient of what it makes. Without a
    rule the op runs on one worker of the layer of `forward`.
    """

    forward: int
    parameter: str = ""
    sums: bool = False
    rule: bool = True


def served(graph: TrainingGraph) -> dict[int, Served]:
    """By index of a backward op, what it serves."""
    return _Follower(graph).result()


class _Follower:
    def __init__(self, graph: TrainingGraph):
        self.graph = graph
        #: By forward op and position of an input: the op that made or last changed it.
        self._makers: dict[int, list[int | None]] = {}
        #: By storage: the forward op that made or last changed it.
        self._newest: dict[str, int] = {}
        #: By storage of a copy: what it is a copy of. Ops that change what they need in backward copy it before.
        self._copied: dict[str, str] = {}
        self._last_forward = 0
        for index, op in enumerate(graph.ops):
            if op.phase != FORWARD:
                continue
            self._last_forward = index
            if name_of(op) == "clone":
                self._copied[self._storage(op.writes[0].value)] = self._storage(op.reads[0].value)
            self._makers[index] = [self._newest.get(self._storage(operand.value)) for operand in op.inputs]
            for operand in (*op.writes, *op.mutates):
                self._newest[self._storage(operand.value)] = index
        #: By storage of a gradient: the forward ops of whose results, and the parameters of which, it is the gradient.
        self._of: dict[str, frozenset[int | str]] = {}

    def result(self) -> dict[int, Served]:
        """What each backward op serves. Ops are visited in order, so that gradients are known before they are read."""
        result: dict[int, Served] = {}
        for index, op in enumerate(self.graph.ops):
            if op.phase != BACKWARD or index in self.graph.repeats:
                continue
            result[index] = what = self._served(op)
            origins = frozenset({what.forward}) if name_of(op) == "ones_like" else self._origins(what)
            for operand in (*op.writes, *op.mutates):
                self._of[self._storage(operand.value)] = origins
        return result

    def _storage(self, value: str) -> str:
        return self.graph.values[value].storage.replace(AGAIN, "")  # what is repeated is what the first forward has made

    def _served(self, op: Op) -> Served:
        operands = [o for o in op.inputs if self._storage(o.value) in self._of]
        gradients = [self._of[self._storage(o.value)] for o in operands]
        if not gradients:  # the gradient of the loss by itself
            made = [self._newest[self._storage(o.value)] for o in op.inputs if self._storage(o.value) in self._newest]
            return Served(max(made, default=self._last_forward), rule=bool(made))
        shared = frozenset.intersection(*gradients)
        if name_of(op) in (*_SUMS, "clone") and len(gradients) == len(op.inputs) and op.gradient != "dX":
            for parameter in sorted(name for name in self.graph.parameters if name in shared):
                if op.writes and op.writes[0].shape == self.graph.values[parameter].shape:
                    reader = next(i for i, each in enumerate(self.graph.ops) if any(o.value == parameter for o in each.inputs))
                    return Served(reader, parameter)
        reached = [self._reached(gradient, operand) for gradient, operand in zip(gradients, operands, strict=True)]
        if name_of(op) in _SUMS and len(gradients) == len(op.inputs) == 2:
            shapes = [operand.shape for operand in op.writes[:1]]
            common = [f for f in reached[0] if f in reached[1] and [output_of(self.graph.ops[f]).shape] == shapes]
            if common:
                return Served(max(common), sums=True)
        candidates = list(dict.fromkeys(f for ops in reached for f in ops))
        for forward in (*candidates, *self._by_saved(op, operands)):
            if self._fits(self.graph.ops[forward], op):
                return Served(forward)
        return Served(max(candidates, default=self._last_forward), rule=False)

    def _by_saved(self, op: Op, gradients: Sequence[Operand]) -> Iterator[int]:
        """Forward ops with the shape of a gradient, the latest first: if a gradient was lost track of, one of them may be served."""
        if len(gradients) < len(op.inputs):
            shapes = {operand.shape for operand in gradients}
            yield from (index for index in reversed(self._makers) if output_of(self.graph.ops[index]).shape in shapes)

    def _reached(self, origins: frozenset[int | str], operand: Operand) -> list[int]:
        """The forward ops of whose results an operand is the gradient: those of the value, and those behind ops that pass gradients on.

        The latest come first. The gradient of a concatenation is passed on in slices.
        """
        reached: list[int] = []
        slices = tuple(step for step in operand.views if step.target == "aten.slice.Tensor")
        pending = [(origin, slices) for origin in sorted((o for o in origins if isinstance(o, int)), reverse=True)]
        while pending:
            forward, slices = pending.pop(0)
            if forward in reached:
                continue
            op, makers = self.graph.ops[forward], self._makers[forward]
            if name_of(op) == "cat":
                position = _sliced(op, slices)
                if position is not None or len(makers) == 1:
                    makers, slices = (makers, slices) if position is None else (makers[position : position + 1], slices[1:])
                    pending = [(maker, slices) for maker in makers if maker is not None] + pending
                    continue
            elif name_of(op) in _PASSING:
                pending += [(maker, slices) for maker in makers if maker is not None]
            reached.append(forward)
        return reached

    def _fits(self, forward: Op, op: Op) -> bool:
        """Whether the kinds of two ops belong together, and everything that the backward op reads in addition to gradients is the forward
        op's."""
        kind = name_of(op).removesuffix("_backward")
        if name_of(forward) not in _FORWARD_OF.get(name_of(op), (kind, f"{kind}_")):
            return False
        own = {self._storage(o.value) for o in (*forward.inputs, *forward.writes)}
        saved = {self._storage(o.value) for o in op.inputs} - self._of.keys()
        return {self._copied.get(storage, storage) for storage in saved - own} <= own

    def _origins(self, what: Served) -> frozenset[int | str]:
        """What the result of a backward op may be the gradient of."""
        if what.parameter:
            return frozenset({what.parameter})
        if what.sums:
            return frozenset({what.forward})
        op = self.graph.ops[what.forward]
        makers: set[int | str] = {maker for maker in self._makers[what.forward] if maker is not None}
        if not what.rule:
            makers.add(what.forward)
        return frozenset(makers | {o.value for o in op.inputs if self.graph.values[o.value].kind == PARAMETER})


def _sliced(op: Op, slices: Sequence[ViewStep]) -> int | None:
    """The position of the input of a concatenation whose gradient the first of `slices` cuts out; None if it cuts out none."""
    if not slices:
        return None
    dim, places = concatenated(op)
    sliced, first, end, _ = slice_arguments(json.loads(slices[0].args), output_of(op).shape)
    return next((position for position, place in places if (dim, place) == (sliced, (first, end))), None)
