"""How a worker runs an op on a part: a forward op that makes a part of its output, and then, by rules, the backward ops that serve it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from simulator.model.graph import Op, arguments_of
from simulator.plan.task import Operand
from simulator.plan.views import NotABoxError
from simulator.strategies.sharding.boxes import Box, broadcast, shape_of, whole
from simulator.strategies.sharding.regions import name_of, needed, output_of, windows_of


@dataclass
class LocalForward:
    """How a forward op runs on a part: by input the box that it sees, the new arguments, and what lies beyond an input."""

    boxes: list[Box | None]
    arguments: dict[int, object]
    fill: float = 0.0

    def seen(self, position: int) -> Box:
        """The box that the op sees of an input. Raises NotABoxError if the part needs nothing of it."""
        if (box := self.boxes[position]) is None:
            raise NotABoxError(f"a part needs nothing of input {position}")
        return box


def local_forward(op: Op, part: Box) -> LocalForward:
    """How a forward op makes `part` of its output."""
    local = LocalForward(list(needed(op, part)), {})
    name = name_of(op)
    if name in ("convolution", "max_pool2d_with_indices", "avg_pool2d"):
        _pad(op, part, local)
    if name == "convolution":
        arguments = arguments_of(op)
        weight, groups = op.inputs[arguments[1]["$"]].shape, arguments[8]
        (first, end), outs = part[1], weight[0] // groups
        local.arguments[8] = max(1, (end - first) // outs)
    elif name == "_adaptive_avg_pool2d":
        source, out = op.inputs[0].shape, op.writes[0].shape
        seen = list(local.seen(0))
        for dim in (2, 3):
            if part[dim] == (0, out[dim]):
                seen[dim] = (0, source[dim])
        local.boxes[0] = tuple(seen)
        local.arguments[1] = list(shape_of(part)[2:])
    return local


def _pad(op: Op, part: Box, local: LocalForward) -> None:
    """Decide for each axis of a window whether the op pads by itself, or reads a copy that is padded already."""
    name, arguments = name_of(op), arguments_of(op)
    at = 0 if name != "convolution" else arguments[0]["$"]
    source, out, seen = op.inputs[at].shape, output_of(op).shape, list(local.seen(at))
    paddings = []
    for dim, window in zip((2, 3), windows_of(op), strict=True):
        first, end = seen[dim]
        below, above = max(0, -first), max(0, end - source[dim])
        if part[dim] == (0, out[dim]):
            below, seen[dim] = window.padding, (0, source[dim])
        elif below == above:
            seen[dim] = (first + below, end - above)
        else:
            below = 0
        paddings.append(below)
    local.boxes[at] = tuple(seen)
    local.fill = float("-inf") if name.startswith("max") else 0.0
    if name == "convolution":
        local.arguments[4] = paddings
    elif paddings != [window.padding for window in windows_of(op)]:
        local.arguments[3] = paddings


@dataclass(frozen=True)
class BackwardOp:
    """A backward op, the forward op that it serves, the worker's part of its output, and how the worker ran it."""

    op: Op
    forward: Op
    part: Box
    local: LocalForward


_Boxes = tuple[Sequence[Box | None], list[Box], dict[int, object], float]


def rule_of_elements(op: Op, box: Box) -> tuple[list[Box], list[Box]]:
    """The boxes of an op that makes each element from those at the same place. Raises NotABoxError if its shapes are others."""
    shape = op.writes[0].shape if op.writes else op.mutates[0].shape
    if len(shape) != len(box) or any(end > extent for (_, end), extent in zip(box, shape, strict=True)):
        raise NotABoxError(f"{op.name} makes {shape}, of which {box} is no part")

    def read_box(operand: Operand) -> Box:
        kept = box[len(box) - len(operand.shape) :]
        if len(operand.shape) > len(box) or any(e not in (1, n) for e, n in zip(operand.shape, shape[len(box) - len(kept) :], strict=True)):
            raise NotABoxError(f"{op.name} reads {operand.shape}")
        return broadcast(operand.shape, box)

    return [read_box(operand) for operand in op.inputs], [box for _ in op.writes]


def _elements(b: BackwardOp) -> _Boxes:
    """Element by element: on the part of the output, or of a mean on the input that it is made of."""
    box = b.local.seen(0) if name_of(b.forward) == "mean" else b.part
    expected = b.forward.inputs[0].shape if name_of(b.forward) == "mean" else output_of(b.forward).shape
    if b.op.writes[0].shape != expected:
        raise NotABoxError(f"{b.op.name} makes {b.op.writes[0].shape}, not {expected}")
    return *rule_of_elements(b.op, box), {}, 0.0


def _sum(b: BackwardOp) -> _Boxes:
    """A sum of the output's gradient over whole dimensions."""
    (source,) = b.op.inputs
    if source.shape != output_of(b.forward).shape:
        raise NotABoxError(f"{b.op.name} sums {source.shape}")
    arguments = arguments_of(b.op)
    summed = {d % len(source.shape) for d in arguments[1]}
    kept = len(arguments) > 2 and arguments[2]
    box = [(0, 1) if d in summed else part for d, part in enumerate(b.part) if kept or d not in summed]
    return [b.part], [tuple(box)], {}, 0.0


def _matrix(b: BackwardOp) -> _Boxes:
    """One product of the gradient of a product [images, channels] with what the other factor was, for the first or the second factor."""
    *_, source, weight = (argument["$"] for argument in arguments_of(b.forward))
    images, channels = b.part
    inputs = (0, b.forward.inputs[source].shape[1])
    left, right = (argument["$"] for argument in arguments_of(b.op))
    saved = [position for position in (left, right) if b.op.inputs[position].value in {b.forward.inputs[p].value for p in (source, weight)}]
    if len(saved) != 1:
        raise NotABoxError(f"{b.op.name} is no product with a gradient")
    by_source = b.op.inputs[saved[0]].value == b.forward.inputs[source].value
    inner, outer = (images, channels) if by_source else (channels, images)
    gradient_is_left = saved[0] == right
    reads: list[Box | None] = [None, None]
    reads[left], reads[right] = ((outer, inner), (inner, inputs)) if gradient_is_left else ((inputs, inner), (inner, outer))
    made = (outer, inputs) if gradient_is_left else (inputs, outer)
    extents = {"images": b.forward.inputs[source].shape[0], "channels": output_of(b.forward).shape[1]}
    full = extents["channels" if by_source else "images"]
    if sorted(b.op.writes[0].shape) != sorted((full, inputs[1])):
        raise NotABoxError(f"{b.op.name} makes {b.op.writes[0].shape}")
    return reads, [made], {}, 0.0


def _convolution(b: BackwardOp) -> _Boxes:
    """convolution_backward(gradient, input, weight, ...)."""
    arguments, forward = arguments_of(b.op), arguments_of(b.forward)
    places = [forward[0]["$"], forward[1]["$"]]
    source, weight = map(b.local.seen, places)
    reads: list[Box | None] = [None] * len(b.op.inputs)
    for argument, box in zip(arguments[:3], (b.part, source, weight), strict=True):
        reads[argument["$"]] = box
    made = {0: source, 1: weight, 2: (b.part[1],)}
    changes = {5: b.local.arguments[4], 9: b.local.arguments[8]}
    if arguments[3] not in (None, [0]):
        changes[3] = [b.part[1][1] - b.part[1][0]]
    return reads, [made[output] for output in b.op.body.outputs], changes, b.local.fill


def _pooling(at: int) -> Callable[[BackwardOp], _Boxes]:
    """The backward of a pooling (gradient, input, ...) whose padding is argument `at`."""

    def rule(b: BackwardOp) -> _Boxes:
        source = b.local.seen(0)
        reads: list[Box | None] = [b.part] * len(b.op.inputs)
        reads[arguments_of(b.op)[1]["$"]] = source
        changes = {at: b.local.arguments[3]} if 3 in b.local.arguments else {}
        return reads, [source], changes, b.local.fill

    return rule


def _batch_norm(b: BackwardOp) -> _Boxes:
    def part_of(operand: Operand) -> Box:
        return b.part if len(operand.shape) == len(b.part) else (b.part[1],)

    return [part_of(operand) for operand in b.op.inputs], [part_of(operand) for operand in b.op.writes], {}, 0.0


def _loss(b: BackwardOp) -> _Boxes:
    """nll_loss_backward(gradient, input, target, ..., total weight): by images."""
    images = b.part[0]
    reads: list[Box | None] = [(images, *whole(operand.shape[1:])) if operand.shape else () for operand in b.op.inputs]
    return reads, [(images, *whole(b.op.writes[0].shape[1:]))], {}, 0.0


_ELEMENTWISE = (
    "threshold_backward", "hardtanh_backward", "sigmoid_backward", "tanh_backward", "silu_backward", "gelu_backward", "leaky_relu_backward",
    "elu_backward", "hardswish_backward", "native_dropout_backward", "_log_softmax_backward_data", "add", "add_", "sub", "mul", "div",
    "neg", "clone",
)  # fmt: skip
BACKWARD: dict[str, Callable[[BackwardOp], _Boxes]] = {
    **dict.fromkeys(_ELEMENTWISE, _elements),
    "nll_loss_backward": _loss,
    "sum": _sum,
    "mm": _matrix,
    "convolution_backward": _convolution,
    "native_batch_norm_backward": _batch_norm,
    "max_pool2d_with_indices_backward": _pooling(4),
    "avg_pool2d_backward": _pooling(4),
    "_adaptive_avg_pool2d_backward": _pooling(-1),
}
