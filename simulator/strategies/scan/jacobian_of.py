"""The rule for the transposed Jacobian of an op, derived from its backward op in a captured graph."""

import json
from collections.abc import Callable
from math import prod
from typing import Any

from simulator.model.graph import Op, TrainingGraph
from simulator.plan.bodies.csr.mask import Mask
from simulator.plan.bodies.csr.rules import (
    AdaptiveAveragePoolRule,
    AveragePoolRule,
    ConvolutionRule,
    ElementwiseRule,
    LinearRule,
    MaxPoolRule,
    Rule,
)
from simulator.plan.bodies.csr.sparse_rule import ELEMENTWISE
from simulator.plan.task import BUFFER, PARAMETER, Operand
from traces.errors import Code, SchedcastError

#: Target of `schedcast::pruned`, the op that applies a fixed mask to a weight.
PRUNED = "schedcast.pruned.default"

#: A rule, and the operands from which the Jacobian's values are computed.
_RuleAndReads = tuple[Rule, tuple[Operand, ...]]

#: Reasons why some ops cannot have a rule, by op name.
_REASONS = {
    "native_layer_norm_backward": "layer-norm makes every element of a sample depend on all others, so its Jacobian is not sparse",
    "_fused_rms_norm_backward": "RMS norm makes every element of a row depend on all others, so its Jacobian is not sparse",
    "native_group_norm_backward": "group-norm makes every element of a group depend on all others, so its Jacobian is not sparse",
    "_log_softmax_backward_data": "a softmax makes every element depend on all others; in a loss, begin the scan behind it",
    "embedding_dense_backward": "the inputs of an embedding are indices, which have no gradient",
}


def jacobian_of(op: Op, graph: TrainingGraph) -> _RuleAndReads:
    """The rule of a backward op that computes dX, and the operands from which the Jacobian's values are computed.

    The gradient that the op reads, its first argument, must have one sample per row. Raises SchedcastError with the op, its layer and the
    reason if there is no rule.
    """
    args = json.loads(op.body.args)
    name = op.body.target.split(".")[1]
    if name in ("native_batch_norm_backward", "cudnn_batch_norm_backward"):
        training = args[7] if name.startswith("native") else True
        reason = "in training mode batch-norm couples the samples of a batch: there is no Jacobian of one sample" if training else _NO_RULE
        raise _refused(op, reason)
    rule = _elementwise if op.body.target in ELEMENTWISE else _RULES.get(op.body.target)
    if rule is None:
        raise _refused(op, _REASONS.get(name, _NO_RULE))
    try:
        return rule(op, args, graph)
    except ValueError as error:
        raise _refused(op, str(error)) from error


_NO_RULE = "no rule says what its Jacobian is"


def _refused(op: Op, reason: str) -> SchedcastError:
    return SchedcastError(f"{op.body.target} ({op.name}) in layer {op.layer!r} has no transposed Jacobian: {reason}", Code.MODEL)


def _sample(operand: Operand, graph: TrainingGraph) -> tuple[int, ...]:
    """Shape of one sample of an operand. Raises ValueError if dimension 0 is not the batch."""
    if not operand.shape or operand.shape[0] != graph.batch:
        raise ValueError(f"its operand is {operand.shape}; expected the batch of {graph.batch} as first extent")
    return operand.shape[1:]


def _elementwise(op: Op, args: list[Any], graph: TrainingGraph) -> _RuleAndReads:
    gradient = op.inputs[args[0]["$"]]
    elements = prod(_sample(gradient, graph))
    read = [item["$"] for item in args[1:] if isinstance(item, dict) and "$" in item]
    places = {position: place for place, position in enumerate(dict.fromkeys(read))}
    rest = [{"$": places[item["$"]]} if isinstance(item, dict) and "$" in item else item for item in args[1:]]
    operands = tuple(op.inputs[position] for position in places)
    if any(operand.shape != gradient.shape for operand in operands):
        raise ValueError("an operand is broadcast; expected the shape of the gradient")
    return ElementwiseRule(elements, op.body.target, json.dumps(rest, separators=(",", ":")), op.body.kwargs), operands


def _convolution(op: Op, args: list[Any], graph: TrainingGraph) -> _RuleAndReads:
    x, weight = (op.inputs[args[position]["$"]] for position in (1, 2))
    stride, padding, dilation, transposed, _, groups, wanted = args[4:11]
    if not wanted[0] or any(wanted[1:]):
        raise ValueError("this op computes gradients of weights, not dX")
    channels, *extent = _sample(x, graph)
    if transposed or len(extent) > 2:
        raise ValueError("only convolutions with one or two dimensions that are not transposed have a rule")
    pairs = (_pair(sizes, fill) for sizes, fill in ((extent, 1), (weight.shape[2:], 1), (stride, 1), (padding, 0), (dilation, 1)))
    (height, width), kernel, stride, padding, dilation = pairs
    mask = _mask(weight, graph)
    return ConvolutionRule(
        channels,
        height,
        width,
        out_channels=weight.shape[0],
        kernel=kernel,
        stride=stride,
        padding=padding,
        dilation=dilation,
        groups=groups,
        mask=mask,
    ), (weight,)


def _pair(sizes: Any, fill: int) -> tuple[int, int]:
    """(vertical, horizontal) of an argument: one number for both, one for each, or one for the only dimension (`fill` for the other)."""
    sizes = (sizes, sizes) if isinstance(sizes, int) else tuple(sizes)
    return (fill, *sizes) if len(sizes) == 1 else sizes


def _square(sizes: list[int], default: tuple[int, int]) -> tuple[int, int]:
    """(vertical, horizontal) of a pooling argument: one number is for both, an empty list for the default."""
    vertical, horizontal = (sizes * 2 if len(sizes) == 1 else sizes) or default
    return vertical, horizontal


def _mask(weight: Operand, graph: TrainingGraph) -> Mask | None:
    """The mask of a pruned weight. A weight that is read through views counts as not pruned."""
    op = _pruning_op(weight, graph)
    if op is None or weight.views:
        return None
    _, keep, seed = json.loads(op.body.args)
    return Mask(keep, seed)


def _pruning_op(weight: Operand, graph: TrainingGraph) -> Op | None:
    """The op that applies a mask to the weight; None if there is none."""
    return next((op for op in graph.ops if op.body.target == PRUNED and any(w.value == weight.value for w in op.writes)), None)


def _max_pool(op: Op, args: list[Any], graph: TrainingGraph) -> _RuleAndReads:
    x, argmax = op.inputs[args[1]["$"]], op.inputs[args[7]["$"]]
    kernel = _square(args[2], (1, 1))
    stride, padding, dilation = _square(args[3], kernel), _square(args[4], (0, 0)), _square(args[5], (1, 1))
    return MaxPoolRule(*_plane(x, graph), argmax.shape[2:], kernel, stride, padding, dilation), (argmax,)


def _average_pool(op: Op, args: list[Any], graph: TrainingGraph) -> _RuleAndReads:
    gradient, x = (op.inputs[args[position]["$"]] for position in (0, 1))
    kernel = _square(args[2], (1, 1))
    stride, padding = _square(args[3], kernel), _square(args[4], (0, 0))
    return AveragePoolRule(*_plane(x, graph), gradient.shape[2:], kernel, stride, padding, count_padding=args[6], divisor=args[7]), ()


def _adaptive(op: Op, args: list[Any], graph: TrainingGraph) -> _RuleAndReads:
    gradient, x = (op.inputs[args[position]["$"]] for position in (0, 1))
    return AdaptiveAveragePoolRule(*_plane(x, graph), gradient.shape[2:]), ()


def _plane(x: Operand, graph: TrainingGraph) -> tuple[int, int, int]:
    sample = _sample(x, graph)
    if len(sample) != 3:
        raise ValueError(f"it pools {x.shape}; expected [batch, channels, height, width]")
    return sample


def _linear(op: Op, args: list[Any], graph: TrainingGraph) -> _RuleAndReads:
    gradient, weight = (op.inputs[item["$"]] for item in args)
    is_weight = graph.values[weight.value].kind in (PARAMETER, BUFFER) or _pruning_op(weight, graph) is not None
    if op.gradient != "dX" or not is_weight:
        raise ValueError("only the product of the gradient with a weight (dX of a linear layer) has a rule")
    (cols,) = _sample(gradient, graph)
    return LinearRule(weight.shape[1], cols, _mask(weight, graph)), (weight,)


_RULES: dict[str, Callable[[Op, list[Any], TrainingGraph], _RuleAndReads]] = {
    "aten.convolution_backward.default": _convolution,
    "aten.max_pool2d_with_indices_backward.default": _max_pool,
    "aten.avg_pool2d_backward.default": _average_pool,
    "aten._adaptive_avg_pool2d_backward.default": _adaptive,
    "aten.mm.default": _linear,
}
