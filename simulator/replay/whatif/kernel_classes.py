"""Classes of kernels by what they compute: recognized by the op that launched a kernel, else by the kernel's name."""

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from simulator.plan.bodies.recorded import Recorded
from simulator.plan.task import Task
from simulator.replay.nodes import short_name

#: Name, regular expression for ops, and one for kernels. A kernel is of the first class that matches its op; its own name decides only if
#: none does, or if no op was recorded. Ops are PyTorch's, with the names of autograd's nodes; kernels are those of cuDNN, cuBLAS,
#: CUTLASS and PyTorch. cuDNN's kernels of batch norm, pooling and softmax stand before its convolutions. A compiled kernel whose name lists
#: a convolution among what was fused computes what follows the convolution.
_NOT_FUSED = "^(?!triton_(poi|red|per)_).*"
_CLASSES = (
    ("attention", "flash|fmha|attention", "flash|fmha|attention|attn_fwd|attn_bwd"),
    ("normalization", "(batch|layer|group|rms|instance)_?norm", "batch_?norm|layer_?norm|group_?norm|rms_?norm|bn_(fw|bw)"),
    ("pooling", "pool", "pool"),
    ("softmax", "softmax", "softmax"),
    ("convolutions", f"{_NOT_FUSED}conv(olution|_transpose|_depthwise|[123]d)",
     f"{_NOT_FUSED}(conv|fprop|dgrad|wgrad|cudnn|implicit_gemm|winograd)"),
    ("optimizer kernels", "^(aten::)?_foreach_|_fused_(adam|sgd|adagrad)|^Optimizer\\.step#",
     "multi_tensor_apply|FusedAdam|FusedSgd"),
    ("matrix products", "::(b?mm|addb?mm|addmv|baddbmm|linear|matmul|mv|_scaled_mm)$",
     "[a-z0-9]gemm_|xmma_gemm|gemmSN|gemv|cutlass|nvjet|^Cijk_"),
    ("embeddings", "embedding", "embedding"),
    ("element-wise operations", None, "elementwise_kernel"),
    ("reductions", None, "reduce_kernel"),
)  # fmt: skip
#: A change of layout is a class of its own whichever op needs it.
LAYOUT = "layout changes"
_LAYOUT = re.compile("nchwToNhwc|nhwcToNchw|transpose")
_OPS = tuple((name, re.compile(regex, re.IGNORECASE)) for name, regex, _ in _CLASSES if regex)
_KERNELS = tuple((name, re.compile(regex)) for name, _, regex in _CLASSES)
#: The names of all classes. A rule takes one in place of a regular expression.
NAMES = frozenset((LAYOUT, *(name for name, *_ in _CLASSES)))


class KernelClass(NamedTuple):
    """Kernels of one kind: what they compute, what a rule calls them (a name of `NAMES`, or a regular expression), and their seconds."""

    name: str
    pattern: str
    seconds: float


def kernel_classes(work: Iterable[Task]) -> list[KernelClass]:
    """Return the classes of the kernels in `work`, the largest first. A kernel of no known class is a class of its own short name."""
    seconds: dict[str, float] = {}
    for task in work:
        if task.body.category == "kernel":
            name = class_of(task.body)
            seconds[name] = seconds.get(name, 0.0) + task.body.duration_s
    classes = [KernelClass(name, name if name in NAMES else re.escape(name), total) for name, total in seconds.items()]
    return sorted(classes, key=lambda each: -each.seconds)


def class_of(work: Recorded) -> str:
    """Return the class of a kernel: a name of `NAMES`, or the kernel's short name."""
    return _class(work.name, work.op)


@lru_cache(maxsize=4096)
def _class(kernel: str, op: str) -> str:
    if _LAYOUT.search(kernel):
        return LAYOUT
    by_op = (name for name, regex in _OPS if op and regex.search(op))
    by_name = (name for name, regex in _KERNELS if regex.search(kernel))
    return next(by_op, None) or next(by_name, None) or short_name(kernel)
