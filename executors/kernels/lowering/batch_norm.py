"""Batch-norm on CUDA in PyTorch's own choice of implementation (mostly cuDNN's): what F.batch_norm runs.

What the forward pass leaves for the backward pass beyond the plan's values (which implementation ran, and its reserve tensor) waits in a
slot of the instance that no value has.
"""

import json
from collections.abc import Callable

import torch
from torch import Tensor

from simulator.plan import Task

from ...binding import Binding, Instance

FORWARD, BACKWARD = "aten.native_batch_norm.default", "aten.native_batch_norm_backward.default"

_normalize = torch.ops.aten._batch_norm_impl_index.default
_differentiate = torch.ops.aten._batch_norm_impl_index_backward.default


def _reserve_slot(binding: Binding, save_mean: str) -> int:
    return binding.local_slot(f"{save_mean}::reserve")


def _dense(x: Tensor) -> Tensor:
    """`x` as cuDNN takes it, in forward and backward alike."""
    formats = [torch.contiguous_format, *{4: [torch.channels_last], 5: [torch.channels_last_3d]}.get(x.dim(), [])]
    return x if any(x.is_contiguous(memory_format=f) for f in formats) else x.contiguous()


def _forward(task: Task, binding: Binding) -> Callable[[Instance], None] | None:
    if not binding.forms.cuda:
        return None
    outputs = task.body.outputs
    fill = binding.arguments(task, task.body.args, task.body.kwargs, binding.device(task.device))
    setters = [(position, binding.setter(write)) for position, write in zip(outputs, task.writes, strict=True)]
    means = [write.value for position, write in zip(outputs, task.writes, strict=True) if position == 1]
    users = sum(_save_mean(op) in means for op in binding.ops if op.body.target == BACKWARD)
    slot = _reserve_slot(binding, means[0]) if users else None

    def run(instance: Instance) -> None:
        (x, *rest), _ = fill(instance)
        *results, reserve, implementation = _normalize(_dense(x), *rest, torch.backends.cudnn.enabled)
        for position, put in setters:
            put(instance, results[position])
        if slot is not None:
            instance.slots[slot] = [implementation, reserve, users]

    return run


def _save_mean(backward: Task) -> str | None:
    """The value that a backward op reads as its `save_mean`."""
    given = json.loads(backward.body.args)[5]
    return backward.inputs[given["$"]].value if given is not None else None


def _backward(task: Task, binding: Binding) -> Callable[[Instance], None] | None:
    """Without the forward op in the plan (a backward timed alone), the first call runs it once, to have what it leaves behind."""
    mean = _save_mean(task)
    if not binding.forms.cuda or mean is None:
        return None
    fill = binding.arguments(task, task.body.args, task.body.kwargs, binding.device(task.device))
    setters = [(position, binding.setter(write)) for position, write in zip(task.body.outputs, task.writes, strict=True)]
    follows = any(write.value == mean for op in binding.ops if op.body.target == FORWARD for write in op.writes)
    slot = _reserve_slot(binding, mean)
    made: list = []

    def left_behind(instance: Instance, x: Tensor, weight, running_mean, running_var, train: bool, epsilon: float) -> list:
        if follows:
            left = instance.slots[slot]
            left[2] -= 1
            if not left[2]:
                instance.slots[slot] = None
            return left
        if not made:
            bias = None if weight is None else torch.zeros_like(weight)
            statistics = (None, None) if train else (running_mean, running_var)
            *_, reserve, implementation = _normalize(x, weight, bias, *statistics, train, 0.1, epsilon, torch.backends.cudnn.enabled)
            made.extend((implementation, reserve))
        return made

    def run(instance: Instance) -> None:
        (grad, x, weight, running_mean, running_var, save_mean, save_invstd, train, epsilon, mask), _ = fill(instance)
        x = _dense(x)
        implementation, reserve, *_ = left_behind(instance, x, weight, running_mean, running_var, train, epsilon)
        if reserve.is_cuda:  # the backward may run on another stream than the forward that made it
            reserve.record_stream(torch.cuda.current_stream(reserve.device))
        saved = (running_mean, running_var, save_mean, save_invstd)
        results = _differentiate(implementation, x, grad, weight, *saved, train, epsilon, mask, reserve)
        for position, put in setters:
            put(instance, results[position])

    return run


TARGETS = {FORWARD: _forward, BACKWARD: _backward}
