"""Along which dimensions of its tensors an op may be divided, and which of its results are then sums over the devices.

An op computes over an index space, as an einsum does: of [i, k] x [k, j] -> [i, j], a device that has a part of i or j computes that part
of the result, and a device that has a part of k computes an addend of it. One table serves forward and backward ops alike.
"""

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

from simulator.model.graph import Op, arguments_of
from simulator.plan.task import DTYPE_BYTES, Operand


class Axis(NamedTuple):
    """For each input and result of an op, the dimension that runs along the axis.

    None: it has no such dimension; then a result is a sum over the axis.
    """

    inputs: tuple[int | None, ...]
    writes: tuple[int | None, ...]


def axes(op: Op) -> list[Axis]:
    """The axes of an op; none if it runs on whole tensors only."""
    rule = _RULES.get(op.body.target.rpartition(".")[0])
    return list(rule(op)) if rule is not None else []


def is_linear(op: Op, widens: bool = False) -> bool:
    """Whether an op makes addends of its result of addends of all inputs. A sum with a number does not: every device would add it.

    `widens`: also if it casts to a wider type. If addends are to be summed soon, they are summed before: what is narrow moves faster.
    """
    name = op.body.target.rpartition(".")[0]
    if name not in _LINEAR or len(op.writes) != 1 or "float" not in op.writes[0].dtype:
        return False
    if not widens and any(DTYPE_BYTES[op.writes[0].dtype] > DTYPE_BYTES[read.dtype] for read in op.inputs):
        return False
    return name not in ("aten.add", "aten.sub") or all(isinstance(item, dict) and "$" in item for item in arguments_of(op)[:2])


def scales_by_frequency(op: Op) -> bool:
    """Whether the gradient of an embedding, or of one that is looked up, depends on how often a token occurs in all of the batch."""
    return arguments_of(op)[4 if op.body.target.startswith("aten.embedding_dense_backward.") else 3 :][:1] == [True]


def concatenated_dim(op: Op) -> int:
    """The dimension along which `cat` puts its inputs one after another."""
    return (*arguments_of(op), 0)[1] % len(op.writes[0].shape)


def _result(op: Op) -> Operand:
    return (*op.writes, *op.mutates)[0]


def _elementwise(op: Op) -> Iterator[Axis]:
    """Every dimension of the result; a shorter or a broadcast input has none there."""
    shape = _result(op).shape
    for dim, extent in enumerate(shape):
        if extent > 1:
            yield Axis(tuple(_aligned(o.shape, len(shape), dim, extent) for o in op.inputs), tuple(dim for _ in op.writes))


def _aligned(shape: tuple[int, ...], rank: int, dim: int, extent: int) -> int | None:
    """The dimension of a tensor of `shape` that meets dimension `dim` of one with `rank` dimensions in broadcasting."""
    own = dim - (rank - len(shape))
    return own if own >= 0 and shape[own] == extent else None


def _product(op: Op) -> Iterator[Axis]:
    """mm(a, b), bmm(a, b), and addmm(bias, a, b), whose sum over k the bias forbids."""
    *bias, a, b = (argument["$"] for argument in arguments_of(op)[: 3 if "addmm" in op.body.target else 2])
    batch = len(_result(op).shape) - 2
    for names in [(dim, dim, dim) for dim in range(batch)] + [(batch, None, batch), (None, batch + 1, batch + 1)]:
        inputs: list[int | None] = [None] * len(op.inputs)
        inputs[a], inputs[b] = names[:2]
        for position in bias:
            inputs[position] = _aligned(op.inputs[position].shape, batch + 2, names[2], _result(op).shape[names[2]])
        yield Axis(tuple(inputs), (names[2],))
    if not bias:
        inputs = [None] * len(op.inputs)
        inputs[a], inputs[b] = batch + 1, batch
        yield Axis(tuple(inputs), (None,))


def _leading(op: Op, normalized: int) -> Iterator[Axis]:
    """The dimensions of a norm before those that it normalizes, the last first: tokens rather than sequences."""
    rank = len(op.inputs[0].shape)
    for dim in reversed(range(rank - normalized)):
        inputs = tuple(dim if len(operand.shape) == rank else None for operand in op.inputs)
        yield Axis(inputs, tuple(dim if len(operand.shape) == rank else None for operand in op.writes))


def _norm(op: Op) -> Iterator[Axis]:
    yield from _leading(op, len(arguments_of(op)[1]))


def _norm_backward(op: Op) -> Iterator[Axis]:
    """(gradient, input, shape, statistics, ..., weight, bias, mask): gradients of weight and bias are sums over the leading dimensions."""
    yield from _leading(op, len(arguments_of(op)[2]))


def _embedding(op: Op) -> Iterator[Axis]:
    """embedding(weight, indices), and embedding_dense_backward(gradient, indices, ...), whose result is a sum over the indices."""
    backward = op.body.target.endswith("embedding_dense_backward.default")
    weight, indices = arguments_of(op)[0]["$"], arguments_of(op)[1]["$"]
    rank = len(op.inputs[indices].shape)
    for dim in () if scales_by_frequency(op) else reversed(range(rank)):
        inputs: list[int | None] = [None] * len(op.inputs)
        inputs[indices] = dim
        if backward:
            inputs[weight] = dim
        yield Axis(tuple(inputs), (None if backward else dim,))
    inputs = [None] * len(op.inputs)
    inputs[weight] = rank if backward else 1
    yield Axis(tuple(inputs), (1 if backward else rank,))


def _attention(op: Op) -> Iterator[Axis]:
    """Heads, then sequences; a mask has a dimension there unless it is the same for all. Tensors are [sequences, heads, tokens, ...]."""
    for dim in (1, 0):
        inputs = tuple(dim if len(o.shape) >= 3 and (o.shape[dim] > 1 or _result(op).shape[dim] == 1) else None for o in op.inputs)
        if all(inputs[argument["$"]] is not None for argument in arguments_of(op)[:3]):
            yield Axis(inputs, tuple(dim for _ in op.writes))


def _softmax(op: Op) -> Iterator[Axis]:
    rank = len(_result(op).shape)
    along = next(argument for argument in arguments_of(op) if isinstance(argument, int)) % rank
    yield from (axis for axis in _elementwise(op) if axis.writes != (along,))


def _concatenation(op: Op) -> Iterator[Axis]:
    """All dimensions. Along that of the concatenation, each input becomes blocks of the result."""
    rank = len(_result(op).shape)
    for dim in range(rank):
        yield Axis(tuple(dim if len(operand.shape) == rank else None for operand in op.inputs), (dim,))


def _sum(op: Op) -> Iterator[Axis]:
    """sum(x, dimensions, keep): what is summed makes addends, the rest stays."""
    arguments = (*arguments_of(op), None, None)
    rank = len(op.inputs[0].shape)
    summed = {dim % rank for dim in (arguments[1] or range(rank))}
    place = 0
    for dim in range(rank):
        yield Axis((dim,), (None if dim in summed else dim if arguments[2] else place,))
        place += dim not in summed


def _slice_backward(op: Op) -> Iterator[Axis]:
    """slice_backward(gradient, sizes, dim, ...): every dimension but the one that is filled up."""
    along = arguments_of(op)[2] % len(_result(op).shape)
    yield from (axis for axis in _elementwise(op) if axis.writes != (along,))


def _loss_backward(op: Op) -> Iterator[Axis]:
    """nll_loss_backward(gradient, scores, labels, ..., weight of all labels): the rows, of a loss that is one number."""
    scores, labels = arguments_of(op)[1]["$"], arguments_of(op)[2]["$"]
    if not op.inputs[arguments_of(op)[0]["$"]].shape:
        yield Axis(tuple(0 if at in (scores, labels) else None for at in range(len(op.inputs))), (0,))


def _rows(op: Op) -> Iterator[Axis]:
    """The first dimension of all tensors."""
    yield Axis((0,) * len(op.inputs), (0,) * len(op.writes))


def _reduced_or_gathered(op: Op) -> Iterator[Axis]:
    """A collective of another group: all dimensions but that of its parts, along which an all-gather makes blocks of its input."""
    gathers = "all_gather" in op.body.target
    for dim in range(0 if gathers else 1, len(op.inputs[0].shape)):
        yield Axis((dim,), (dim,))


_SAME = (
    "relu", "relu_", "sigmoid", "sigmoid_", "tanh", "tanh_", "silu", "silu_", "gelu", "gelu_", "clone", "_to_copy", "add", "add_", "sub",
    "mul", "mul_", "div", "div_", "neg", "exp", "pow", "rsqrt", "sqrt", "reciprocal", "cos", "sin", "hardtanh", "leaky_relu", "elu",
    "threshold_backward", "sigmoid_backward", "tanh_backward", "silu_backward", "gelu_backward", "hardtanh_backward",
    "leaky_relu_backward", "elu_backward", "native_dropout", "native_dropout_backward", "where", "masked_fill", "copy_", "lerp",
    "logaddexp",
)  # fmt: skip
_ATTENTION = ("_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention_for_cpu_backward")
_RULES: Mapping[str, Callable[[Op], Iterator[Axis]]] = MappingProxyType({
    f"aten.{name}": rule
    for names, rule in (
        (_SAME, _elementwise),
        (("mm", "bmm", "addmm"), _product),
        (("_fused_rms_norm", "native_layer_norm"), _norm),
        (("_fused_rms_norm_backward", "native_layer_norm_backward"), _norm_backward),
        (("embedding", "embedding_dense_backward"), _embedding),
        (_ATTENTION, _attention),
        (("_softmax", "_log_softmax", "_softmax_backward_data", "_log_softmax_backward_data"), _softmax),
        (("cat",), _concatenation),
        (("sum",), _sum),
        (("slice_backward",), _slice_backward),
        (("nll_loss_backward",), _loss_backward),
    )
    for name in names
} | {f"schedcast.{name}": _reduced_or_gathered for name in ("all_gather", "reduce_scatter")}
  | {f"schedcast.{name}": _rows for name in ("cross_entropy", "cross_entropy_backward")})  # fmt: skip
_LINEAR = frozenset(f"aten.{name}" for name in ("clone", "_to_copy", "add", "sub", "neg", "sum", "slice_backward"))
