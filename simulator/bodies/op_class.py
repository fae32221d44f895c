"""Classes of aten ops that reach similar shares of a device's peak, for the roofline of unmeasured ops.

A class with a dot is part of the one before the dot, which stands in where a table lacks it.
"""

from typing import TYPE_CHECKING

from .work import Work

if TYPE_CHECKING:
    from ..plan import Task


_BY_NAME = {
    "conv": ("convolution", "convolution_backward", "_slow_conv2d_forward", "mkldnn_convolution"),
    "matmul": ("mm", "addmm", "bmm", "baddbmm", "addmv", "mv", "dot"),
    # Without a row of its own in the table, it takes that of the part before the dot.
    "matmul.attention": ("_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention_for_cpu_backward"),
    "norm": ("native_batch_norm", "native_batch_norm_backward", "native_group_norm", "native_group_norm_backward"),
    "norm.layer": ("native_layer_norm", "native_layer_norm_backward"),
    "norm.softmax": ("_log_softmax", "_log_softmax_backward_data", "_softmax", "_safe_softmax", "_softmax_backward_data"),
    "pool": ("max_pool2d_with_indices", "avg_pool2d", "_adaptive_avg_pool2d", "upsample_nearest2d", "upsample_bilinear2d"),
    "pool.backward": (
        "max_pool2d_with_indices_backward", "avg_pool2d_backward", "_adaptive_avg_pool2d_backward", "upsample_nearest2d_backward",
        "upsample_bilinear2d_backward",
    ),
    "reduction": ("sum", "mean", "amax", "amin", "max", "argmax", "var", "var_mean", "linalg_vector_norm", "nll_loss_forward", "norm"),
    "gather": ("embedding", "embedding_dense_backward", "index", "index_select", "gather", "scatter", "scatter_add", "index_put",
               "nll_loss_backward"),
    "random": ("native_dropout", "bernoulli", "bernoulli_"),
}  # fmt: skip
_CLASS = {name: op_class for op_class, names in _BY_NAME.items() for name in names}


def op_class(target: str, groups: int = 1) -> str:
    """The class of `aten.NAME.OVERLOAD`; `elementwise` for all that is not listed; grouped convolutions are their own class."""
    name = target.split(".")[1] if "." in target else target
    found = _CLASS.get(name, "elementwise")
    return "grouped-conv" if found == "conv" and groups > 1 else found


def work_of(target: str, flops: float, task: "Task") -> Work:
    """FLOPs (one per output element where capture counted none) and bytes of the operands."""

    moved = sum(o.bytes for o in task.reads) + 2 * sum(o.bytes for o in task.mutates) + sum(o.bytes for o in task.writes)
    elements = sum(o.elements for o in (*task.writes, *task.mutates))
    return Work(op_class(target, _groups(target, task)), max(flops, float(elements)), float(moved))


def _groups(target: str, task: "Task") -> int:
    if not target.startswith("aten.convolution"):
        return 1
    import json

    arguments = json.loads(task.body.args)
    position = 8 if target.startswith("aten.convolution.") else 9
    return arguments[position] if len(arguments) > position and isinstance(arguments[position], int) else 1
