"""What a part of a forward op's output needs of each of the op's inputs: halos, all channels, borders (DeePa, section 3).

One rule for each kind of op. A rule says along which dimensions of the output the op may be divided, and the box of each input that a box
of the output reads, in coordinates of the input as the op sees it, after its views. A box that goes beyond its input needs padding there.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from simulator.model.division.axes import concatenated_dim
from simulator.model.graph import Op, arguments_of
from simulator.plan import ops
from simulator.plan.ops import row
from simulator.plan.task import Operand
from simulator.plan.views import NotABoxError
from simulator.strategies.sharding.boxes import Box, broadcast, whole

_N, _C, _H, _W = range(4)


@dataclass(frozen=True)
class Rule:
    """The rule of one kind of op.

    `divided(op)`: the dimensions of `divided_shape` along which the op may be divided. `reads(op, box)`: by input, the box that it needs.
    """

    divided: Callable[[Op], frozenset[int]]
    reads: Callable[[Op, Box], Sequence[Box | None]]


def name_of(op: Op) -> str:
    """The name of an op's target without namespace and overload."""
    return ops.name_of(op.body.target)


def output_of(op: Op) -> Operand:
    """The op's main result, which is divided among workers: its first write, or what it changes in place."""
    return (*op.writes, *op.mutates)[0]


def is_linear_layer(op: Op) -> bool:
    """Whether an op is a product of two matrices, as a linear layer is."""
    return row(op.body.target).multiplies and len(output_of(op).shape) == 2


def divided_shape(op: Op) -> tuple[int, ...]:
    """The shape that is divided among workers: that of the output; of a loss, the images that it is a mean over."""
    return op.inputs[0].shape[:1] if op.body.target.startswith("aten.nll_loss_forward.") else output_of(op).shape


def rule_of(op: Op) -> Rule | None:
    """The rule of an op; None if the op runs on one worker only: if it has no rule, or one that cannot divide it."""
    rule = _RULES.get(name_of(op)) if op.body.target.startswith("aten.") else None
    return rule if rule is not None and rule.divided(op) else None


def divided_dimensions(op: Op) -> frozenset[int]:
    """The dimensions of the op's output along which it may be divided."""
    rule = rule_of(op)
    return rule.divided(op) if rule is not None else frozenset()


def needed(op: Op, box: Box) -> tuple[Box | None, ...]:
    """By input (`op.inputs`), the box that `box` of the op's output needs; None if it needs nothing of that input."""
    rule = rule_of(op)
    return tuple(rule.reads(op, box)) if rule is not None else tuple(whole(operand.shape) for operand in op.inputs)


@dataclass(frozen=True)
class Window:
    """Windows along one axis: output o covers `kernel` places, `dilation` apart, from o * `stride` - `padding` on.

    >>> Window(kernel=3, padding=1).covered((0, 16))  # the upper half of 32 rows: a row of padding, and a row of the lower half
    (-1, 17)
    """

    kernel: int
    stride: int = 1
    padding: int = 0
    dilation: int = 1

    def covered(self, part: tuple[int, int]) -> tuple[int, int]:
        """The range of the input that outputs first to end (exclusive) cover, which may go beyond the input."""
        first, end = part
        return first * self.stride - self.padding, (end - 1) * self.stride - self.padding + (self.kernel - 1) * self.dilation + 1


def windows_of(op: Op) -> tuple[Window, Window]:
    """The windows along height and width of a convolution or pooling. Raises ValueError for any other op."""
    name, arguments = name_of(op), arguments_of(op)
    if name == "_adaptive_avg_pool2d":
        sides = [(extent // out, extent // out) for extent, out in zip(op.inputs[0].shape[-2:], op.writes[0].shape[-2:], strict=True)]
        return Window(*sides[0]), Window(*sides[1])
    if name == "convolution":
        kernel, numbers = list(op.inputs[arguments[1]["$"]].shape[2:]), arguments[3:6]
    elif name in ("max_pool2d_with_indices", "avg_pool2d"):
        kernel, given = arguments[1], arguments[2 : 5 if name.startswith("max") else 4]
        numbers = [*given, *([], 0, 1)[len(given) :]]
    else:
        raise ValueError(f"{op.name} calls {name}; expected a convolution or a pooling")
    stride, padding, dilation = numbers
    height, width = (Window(*axis) for axis in zip(*map(_pair, (kernel, stride or kernel, padding, dilation)), strict=True))
    return height, width


def _pair(argument: int | list[int]) -> tuple[int, int]:
    numbers = argument if isinstance(argument, list) else [argument]
    return numbers[0], numbers[-1]


def _all(op: Op) -> frozenset[int]:
    return frozenset(range(len(output_of(op).shape)))


# --- convolution


def _convolution_dimensions(op: Op) -> frozenset[int]:
    arguments = arguments_of(op)
    return frozenset() if arguments[6] or len(output_of(op).shape) != 4 else _all(op)  # arguments[6]: transposed


def _convolution(op: Op, box: Box) -> list[Box | None]:
    arguments, (height, width) = arguments_of(op), windows_of(op)
    source, weight = op.inputs[arguments[0]["$"]], op.inputs[arguments[1]["$"]]
    groups, (first, end) = arguments[8], box[_C]
    outs, ins = weight.shape[0] // groups, weight.shape[1]  # channels of a group
    if outs % (end - first) and (first % outs or end % outs):
        raise NotABoxError(f"channels {first} to {end} are neither whole groups of {outs} nor a part of one")
    channels = (first // outs * ins, ((end - 1) // outs + 1) * ins) if groups > 1 else (0, source.shape[_C])
    boxes: list[Box | None] = [None] * len(op.inputs)
    boxes[arguments[0]["$"]] = (box[_N], channels, height.covered(box[_H]), width.covered(box[_W]))
    boxes[arguments[1]["$"]] = (box[_C], *whole(weight.shape[1:]))
    if arguments[2] is not None:
        boxes[arguments[2]["$"]] = (box[_C],)
    return boxes


# --- pooling


def _pool_dimensions(op: Op) -> frozenset[int]:
    arguments = arguments_of(op)
    if len(output_of(op).shape) != 4:
        return frozenset()
    name, across = name_of(op), {_N, _C}
    if name == "_adaptive_avg_pool2d":  # bins of equal size, or no bins
        return frozenset(across | {d for d in (_H, _W) if op.inputs[0].shape[d] % op.writes[0].shape[d] == 0})
    rounds_up = arguments[5:6] == [True] if name == "max_pool2d_with_indices" else arguments[4:5] == [True]
    windows, source = windows_of(op), op.inputs[0]
    if rounds_up:  # a last window that reaches beyond the padding counts fewer elements, or other ones
        over = {d for d, window in zip((_H, _W), windows, strict=True) if window.covered((0, op.writes[0].shape[d]))[1] > source.shape[d]}
        return frozenset({_N, _C, _H, _W} - over)
    counts_padding = name != "avg_pool2d" or (arguments[5:6] != [False] and arguments[6:7] in ([], [None]))
    return frozenset(across | {d for d, window in zip((_H, _W), windows, strict=True) if counts_padding or not window.padding})


def _pool(op: Op, box: Box) -> list[Box | None]:
    height, width = windows_of(op)
    return [(box[_N], box[_C], height.covered(box[_H]), width.covered(box[_W]))]


# --- matrices: addmm(bias, input, weight), mm(input, weight)


def _matrix_dimensions(op: Op) -> frozenset[int]:
    return frozenset({_N, _C}) if len(arguments_of(op)) in (2, 3) and op.body.kwargs == "{}" else frozenset()


def _matrix(op: Op, box: Box) -> list[Box | None]:
    *bias, source, weight = (argument["$"] for argument in arguments_of(op))
    boxes: list[Box | None] = [None] * len(op.inputs)
    boxes[source] = (box[_N], (0, op.inputs[source].shape[1]))
    boxes[weight] = ((0, op.inputs[weight].shape[0]), box[_C])
    if bias:
        boxes[bias[0]] = (box[_C],) if len(op.inputs[bias[0]].shape) == 1 else box
    return boxes


# --- element by element


def _elementwise(op: Op, box: Box) -> list[Box | None]:
    return [broadcast(operand.shape, box) for operand in op.inputs]


# --- normalization: each channel for itself


def _batch_norm(op: Op, box: Box) -> list[Box | None]:
    return [box if len(operand.shape) == len(box) else (box[_C],) for operand in op.inputs]


# --- others


def _concatenation_dimensions(op: Op) -> frozenset[int]:
    """All, but not the one along which a tensor occurs twice."""
    dim, places = concatenated(op)
    twice = len(places) > len({position for position, _ in places})
    return _all(op) - ({dim} if twice else set())


def concatenated(op: Op) -> tuple[int, list[tuple[int, tuple[int, int]]]]:
    """The dimension along which `cat` puts its inputs one after another, and the range that each of them has there, by its position.

    `cat` also takes empty tensors of one dimension, which have an empty range.
    """
    dim, rank = concatenated_dim(op), len(op.writes[0].shape)
    places, start = [], 0
    for position in (argument["$"] for argument in arguments_of(op)[0]):
        shape = op.inputs[position].shape
        end = start + (shape[dim] if len(shape) == rank else 0)
        places.append((position, (start, end)))
        start = end
    return dim, places


def _concatenation(op: Op, box: Box) -> list[Box | None]:
    dim, places = concatenated(op)
    boxes: list[Box | None] = [None] * len(op.inputs)
    for position, (start, stop) in places:
        first, end = max(box[dim][0], start) - start, min(box[dim][1], stop) - start
        if first < end:
            boxes[position] = (*box[:dim], (first, end), *box[dim + 1 :])
    return boxes


def _mean_dimensions(op: Op) -> frozenset[int]:
    """The dimensions that stay, if all of them are kept or the last ones go."""
    source, averaged = op.inputs[0], _averaged(op)
    kept = [d for d in range(len(source.shape)) if d not in averaged]
    return frozenset(kept) if kept == list(range(len(kept))) else frozenset()


def _mean(op: Op, box: Box) -> list[Box | None]:
    source, averaged = op.inputs[0], _averaged(op)
    return [tuple((0, extent) if d in averaged else box[d] for d, extent in enumerate(source.shape))]


def _averaged(op: Op) -> set[int]:
    rank = len(op.inputs[0].shape)
    dims = (*arguments_of(op), None)[1]
    return {d % rank for d in (dims if dims else range(rank))}


def _softmax_dimensions(op: Op) -> frozenset[int]:
    return _all(op) - {arguments_of(op)[1] % len(output_of(op).shape)}


def _images_of_loss(op: Op) -> frozenset[int]:
    """A mean over images, as the mean of its parts: by images, if no class weighs more."""
    arguments = arguments_of(op)
    return frozenset({_N}) if arguments[2] is None and arguments[3] == 1 and len(op.inputs[0].shape) == 2 else frozenset()


_ELEMENTWISE = (
    "relu", "relu_", "hardtanh", "hardtanh_", "sigmoid", "sigmoid_", "tanh", "tanh_", "silu", "silu_", "gelu", "leaky_relu", "leaky_relu_",
    "elu", "elu_", "hardswish", "hardswish_", "clone", "add", "add_", "sub", "mul", "mul_", "div", "neg", "native_dropout",
)  # fmt: skip
_RULES: Mapping[str, Rule] = MappingProxyType({
    "convolution": Rule(_convolution_dimensions, _convolution),
    "max_pool2d_with_indices": Rule(_pool_dimensions, _pool),
    "avg_pool2d": Rule(_pool_dimensions, _pool),
    "_adaptive_avg_pool2d": Rule(_pool_dimensions, _pool),
    "addmm": Rule(_matrix_dimensions, _matrix),
    "mm": Rule(_matrix_dimensions, _matrix),
    "native_batch_norm": Rule(_all, _batch_norm),
    "cat": Rule(_concatenation_dimensions, _concatenation),
    "mean": Rule(_mean_dimensions, _mean),
    "_log_softmax": Rule(_softmax_dimensions, _elementwise),
    "nll_loss_forward": Rule(_images_of_loss, lambda op, box: [(box[_N], (0, op.inputs[0].shape[1])), (box[_N],)]),
    **dict.fromkeys(_ELEMENTWISE, Rule(_all, _elementwise)),
})  # fmt: skip
