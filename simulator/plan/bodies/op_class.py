"""Classes of aten ops that reach similar shares of a device's peak, for the roofline of unmeasured ops.

A class with a dot is a subclass of the one before the dot, and a table that lacks the subclass uses the class.
"""

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from simulator.plan.task import HasOperands, Work

# Backward ops whose `output_mask`, their last argument, selects the results: a kernel computes dX, and another one dW and dB.
# Each kernel reads what it needs by itself, so that an op with both reads the gradient twice.


class Kernels(NamedTuple):
    """By position, the tensor arguments that the kernel of dX reads, and those that the kernel of the other results reads."""

    of_input: tuple[int, ...]
    of_parameters: tuple[int, ...]


#: convolution_backward(gradient, input, weight, ...), native_layer_norm_backward(gradient, input, shape, mean, rstd, weight, bias, ...),
#: native_group_norm_backward(gradient, input, mean, rstd, weight, ...) and _fused_rms_norm_backward(gradient, input, shape, rstd, weight,
#: ...).
KERNELS: Mapping[str, Kernels] = MappingProxyType(
    {
        "aten.convolution_backward.default": Kernels((0, 2), (0, 1)),
        "aten.native_layer_norm_backward.default": Kernels((0, 1, 3, 4, 5), (0, 1, 3, 4)),
        "aten.native_group_norm_backward.default": Kernels((0, 1, 2, 3, 4), (0, 1, 2, 3)),
        "aten._fused_rms_norm_backward.default": Kernels((0, 1, 3, 4), (0, 1, 3)),
    }
)


#: Ops that read only the indexed elements of the argument at this position.
_TABLES = {
    **dict.fromkeys(("embedding", "index_select", "gather", "index", "_unsafe_index", "nll_loss_forward", "nll_loss2d_forward"), 0),
    **dict.fromkeys(("nll_loss_backward", "nll_loss2d_backward"), 1),
}


def kernels(target: str, args: str) -> int:
    """How many kernels an op runs with the arguments `args` (JSON): 1 for ops without such a mask."""
    return len(_running(target, json.loads(args))) if target in KERNELS else 1


def reads(task: HasOperands, target: str, args: str) -> tuple[float, ...]:
    """How often an op's kernels read each of the task's inputs: once, unless it is one of KERNELS; of a table, the share that they read."""
    name = target.split(".")[1]
    if target not in KERNELS and name not in _TABLES:
        return (1,) * len(task.inputs)
    arguments = json.loads(args)
    if name in _TABLES:
        table = arguments[_TABLES[name]]["$"]
        share = _looked_up(task, name, arguments) / max(1, task.inputs[table].elements)
        return tuple(min(1.0, share) if number == table else 1 for number in range(len(task.inputs)))
    counts = [0] * len(task.inputs)
    for positions in _running(target, arguments):
        for position in positions:
            if isinstance(arguments[position], dict):
                counts[arguments[position]["$"]] += 1
    return tuple(counts)


def _looked_up(task: HasOperands, name: str, arguments: list) -> int:
    """The elements of its table that an op reads: as many as it returns; of the scores in a loss one by label, and none in backward."""
    if not name.startswith("nll_loss"):
        return task.writes[0].elements
    return 0 if name.endswith("backward") else task.inputs[arguments[1]["$"]].elements


def _running(target: str, arguments: list) -> list[tuple[int, ...]]:
    """What each kernel that runs reads."""
    first, *others = arguments[-1]
    return [own for own, runs in zip(KERNELS[target], (first, any(others)), strict=True) if runs]


_BY_NAME = {
    "conv": ("convolution", "convolution_backward", "_slow_conv2d_forward", "mkldnn_convolution"),
    "matmul": ("mm", "add_mm", "_grouped_mm", "addmm", "bmm", "baddbmm", "addmv", "mv", "dot"),
    "matmul.attention": ("_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention_for_cpu_backward"),
    "norm": ("native_batch_norm", "native_batch_norm_backward", "native_group_norm", "native_group_norm_backward"),
    "norm.layer": ("native_layer_norm", "native_layer_norm_backward", "_fused_rms_norm", "_fused_rms_norm_backward"),
    "norm.softmax": (
        "_log_softmax", "_log_softmax_backward_data", "_softmax", "_safe_softmax", "_softmax_backward_data", "cross_entropy",
        "cross_entropy_backward",
    ),
    "pool": (
        "max_pool2d_with_indices", "avg_pool2d", "avg_pool3d", "_adaptive_avg_pool2d", "upsample_nearest2d", "upsample_bilinear2d",
    ),
    "pool.backward": (
        "max_pool2d_with_indices_backward", "avg_pool2d_backward", "avg_pool3d_backward", "_adaptive_avg_pool2d_backward",
        "upsample_nearest2d_backward", "upsample_bilinear2d_backward",
    ),
    "reduction": ("sum", "mean", "amax", "amin", "max", "argmax", "var", "var_mean", "linalg_vector_norm", "nll_loss_forward", "norm"),
    "gather": (
        "embedding", "embedding_dense_backward", "_embedding_bag", "_embedding_bag_backward", "index", "index_add", "index_add_",
        "index_copy", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index", "_unsafe_index_put", "index_select", "gather",
        "scatter", "scatter_", "scatter_add", "scatter_add_", "scatter_reduce", "nll_loss_backward",
    ),
    "recurrent": ("rnn", "rnn_backward", "gru", "gru_backward", "lstm", "lstm_backward"),
    "random": ("native_dropout", "bernoulli", "bernoulli_"),
}  # fmt: skip
#: A product of groups of rows, each with its own matrix; a product; and one that is added to what the task changes.
GROUPED_PRODUCT, PRODUCT, ADDED_PRODUCT = "aten._grouped_mm.default", "aten.mm.default", "schedcast.add_mm.default"
_CLASS = {name: op_class for op_class, names in _BY_NAME.items() for name in names}
#: The classes of ops that run matrix products of cuBLAS, also within other kernels.
WITH_PRODUCTS = frozenset({"matmul", "recurrent"})
#: A grouped convolution with at least this many channels per group is as fast as a plain one with equally many FLOPs. Measured on one core
#: of an EPYC (Zen 4), 3x3 from 128 to 128 channels: equal from 128 per group down to 16, three quarters of the speed at 8, a third and less
#: below. Not measured on a GPU.
_WIDE_GROUP = 16
#: Fewer channels leave a Winograd kernel without work to share; libraries run the first layer of a network directly.
_WINOGRAD_CHANNELS = 16


def op_class(target: str, narrow_groups: bool = False) -> str:
    """The class of `aten.NAME.OVERLOAD`: "elementwise" if the name is not listed, "grouped-conv" for convolutions in narrow groups."""
    name = target.split(".")[1] if "." in target else target
    listed = _CLASS.get(name, "elementwise")
    return "grouped-conv" if listed == "conv" and narrow_groups else listed


def time_steps(task: HasOperands) -> int:
    """The time steps of a recurrent layer's op; 0 for other ops. Its first result has the states or the gates of all steps."""
    target = task.body.op
    if op_class(target) != "recurrent":
        return 0
    rows = task.writes[0].shape[0]
    return rows if "_backward" in target else rows - 1  # the states begin with the initial one


def work_of(task: HasOperands, target: str, args: str, flops: float) -> Work:
    """The work of an aten op on the operands of `task`: `flops` (at least one per output element), and the bytes that its kernels move."""
    read = sum(times * operand.bytes for times, operand in zip(reads(task, target, args), task.inputs, strict=True))
    moved = read + sum(o.bytes for o in (*task.mutates, *task.writes))
    elements = sum(o.elements for o in (*task.writes, *task.mutates))
    return Work(op_class(target, _narrow_groups(task, target, args)), max(flops, float(elements)), float(moved))


def _narrow_groups(task: HasOperands, target: str, args: str) -> bool:
    if not target.startswith("aten.convolution"):
        return False
    arguments = json.loads(args)
    weight, groups = (1, 8) if target.startswith("aten.convolution.") else (2, 9)
    if len(arguments) <= groups or arguments[groups] == 1:
        return False
    return task.inputs[arguments[weight]["$"]].shape[1] < _WIDE_GROUP


def winograd(task: HasOperands, target: str, args: str) -> bool:
    """Whether a convolution may run a Winograd kernel: 3x3, stride 1, not dilated, not transposed, one group and enough channels."""
    if not target.startswith("aten.convolution"):
        return False
    arguments = json.loads(args)
    first = 1 if target.startswith("aten.convolution.") else 2
    weight = task.inputs[arguments[first]["$"]].shape
    strides, _, dilation, transposed, _, groups = arguments[first + 2 : first + 8]
    plain = not transposed and groups == 1 and {*strides, *dilation} == {1}
    return plain and weight[2:] == (3, 3) and min(weight[:2]) >= _WINOGRAD_CHANNELS
