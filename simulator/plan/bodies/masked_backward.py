"""Backward ops whose `output_mask`, their last argument, selects the results: a kernel computes dX, and another one dW and dB.

Each kernel reads what it needs by itself, so that an op with both reads the gradient twice.
"""

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from simulator.plan.task import Task


class Kernels(NamedTuple):
    """By position, the tensor arguments that the kernel of dX reads, and those that the kernel of the other results reads."""

    of_input: tuple[int, ...]
    of_parameters: tuple[int, ...]


#: convolution_backward(gradient, input, weight, ...), native_layer_norm_backward(gradient, input, shape, mean, rstd, weight, bias, ...) and
#: native_group_norm_backward(gradient, input, mean, rstd, weight, ...).
KERNELS: Mapping[str, Kernels] = MappingProxyType(
    {
        "aten.convolution_backward.default": Kernels((0, 2), (0, 1)),
        "aten.native_layer_norm_backward.default": Kernels((0, 1, 3, 4, 5), (0, 1, 3, 4)),
        "aten.native_group_norm_backward.default": Kernels((0, 1, 2, 3, 4), (0, 1, 2, 3)),
    }
)


def kernels(target: str, args: str) -> int:
    """How many kernels an op runs with the arguments `args` (JSON): 1 for ops without such a mask."""
    return len(_running(target, json.loads(args))) if target in KERNELS else 1


def reads(task: Task, target: str, args: str) -> tuple[int, ...]:
    """How often an op's kernels read each of the task's inputs: once, unless it is one of KERNELS."""
    if target not in KERNELS:
        return (1,) * len(task.inputs)
    arguments = json.loads(args)
    counts = [0] * len(task.inputs)
    for positions in _running(target, arguments):
        for position in positions:
            if isinstance(arguments[position], dict):
                counts[arguments[position]["$"]] += 1
    return tuple(counts)


def _running(target: str, arguments: list) -> list[tuple[int, ...]]:
    """What each kernel that runs reads."""
    first, *others = arguments[-1]
    return [own for own, runs in zip(KERNELS[target], (first, any(others)), strict=True) if runs]
