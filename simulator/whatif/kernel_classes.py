"""Classes of kernels by what they compute, recognized by their names, with the regular expression that a rule takes."""

import re
from collections.abc import Iterable
from typing import NamedTuple

from simulator.plan.task import Task
from simulator.replay.nodes import short_name

#: Name and regular expression; a kernel belongs to the first class that matches. Names are those of cuDNN, cuBLAS, CUTLASS and PyTorch.
_CLASSES = (
    ("attention", "flash|fmha|attention"),
    ("convolutions", "conv|fprop|dgrad|wgrad|cudnn|implicit_gemm|winograd"),
    ("optimizer kernels", "multi_tensor_apply|FusedAdam|FusedSgd"),
    ("matrix products", "[a-z0-9]gemm_|xmma_gemm|gemmSN|gemv|cutlass|nvjet"),
    ("normalization", "batch_?norm|layer_?norm|group_?norm|rms_?norm|bn_(fw|bw)"),
    ("embeddings", "embedding"),
    ("pooling", "pool"),
    ("layout changes", "nchwToNhwc|nhwcToNchw|transpose"),
    ("softmax", "softmax"),
    ("element-wise operations", "elementwise_kernel"),
    ("reductions", "reduce_kernel"),
)
_COMPILED = tuple((name, regex, re.compile(regex)) for name, regex in _CLASSES)


class KernelClass(NamedTuple):
    """Kernels of one kind: what they compute, a regular expression for their names, and their time in seconds."""

    name: str
    regex: str
    seconds: float


def kernel_classes(work: Iterable[Task]) -> list[KernelClass]:
    """Return the classes of the kernels in `work`, the largest first. A kernel of no known class is a class of its own short name."""
    seconds: dict[tuple[str, str], float] = {}
    classes: dict[str, tuple[str, str]] = {}
    for task in work:
        name = task.body.name
        if task.body.category == "kernel":
            if name not in classes:
                classes[name] = class_of(name)
            seconds[classes[name]] = seconds.get(classes[name], 0.0) + task.body.duration_s
    return sorted((KernelClass(*key, total) for key, total in seconds.items()), key=lambda each: -each.seconds)


def class_of(name: str) -> tuple[str, str]:
    """Return the class of a kernel by its name, and the regular expression of the class."""
    for label, regex, compiled in _COMPILED:
        if compiled.search(name):
            return label, regex
    return short_name(name), re.escape(short_name(name))
