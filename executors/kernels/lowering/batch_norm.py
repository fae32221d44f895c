"""Batch-norm on CUDA with the implementation that PyTorch chooses (usually cuDNN's), as in F.batch_norm.

For channels-last tensors cuDNN runs kernels whose blocks wait for each other, which may stall while other lanes have work; see
`executors.cuda.torch_driver`. PyTorch's own kernels do not. With `torch.backends.cudnn.enabled = False` they run instead.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from executors.binding import Binding, Instance
from executors.kernels.ops import SavedResults, second_result
from simulator.plan.task import Task

FORWARD, BACKWARD = "aten.native_batch_norm.default", "aten.native_batch_norm_backward.default"

_normalize = torch.ops.aten._batch_norm_impl_index.default
_differentiate = torch.ops.aten._batch_norm_impl_index_backward.default


def _dense(x: Tensor) -> Tensor:
    """`x` in a layout that cuDNN accepts. Forward and backward must both use it."""
    formats = [torch.contiguous_format, *{4: [torch.channels_last], 5: [torch.channels_last_3d]}.get(x.dim(), [])]
    return x if any(x.is_contiguous(memory_format=f) for f in formats) else x.contiguous()


def _forward(task: Task, binding: Binding) -> Callable[[Instance], None] | None:
    if not binding.forms.cuda:
        return None
    fill = binding.arguments(task)
    writes = dict(zip(task.body.outputs, task.writes, strict=True))
    store = binding.results(task)
    saved_results = SavedResults(binding, writes[1].value, FORWARD, BACKWARD) if 1 in writes else None

    def run(instance: Instance) -> None:
        (x, *rest), _ = fill(instance)
        *results, reserve, implementation = _normalize(_dense(x), *rest, torch.backends.cudnn.enabled)
        store(instance, results)
        if saved_results is not None:
            saved_results.save(instance, (implementation, reserve))

    return run


def _backward(task: Task, binding: Binding) -> Callable[[Instance], None] | None:
    """If the plan lacks the forward op, it is run here for its results; see `SavedResults.recomputed`.

    Then its statistics are used, too, since on CUDA they may have another type than the plan says.
    """
    mean = second_result(task)
    if not binding.forms.cuda or mean is None:
        return None
    fill = binding.arguments(task)
    store = binding.results(task)
    saved_results = SavedResults(binding, mean, FORWARD, BACKWARD)

    def run_forward(x: Tensor, weight, running_mean, running_var, train: bool, epsilon: float) -> tuple:
        bias = None if weight is None else torch.zeros_like(weight)
        statistics = (None, None) if train else (running_mean, running_var)
        _, *saved, reserve, implementation = _normalize(x, weight, bias, *statistics, train, 0.1, epsilon, torch.backends.cudnn.enabled)
        return (implementation, reserve, *saved)

    def run(instance: Instance) -> None:
        (grad, x, weight, running_mean, running_var, save_mean, save_invstd, train, epsilon, mask), _ = fill(instance)
        x = _dense(x)
        if saved_results.has_forward:
            implementation, reserve = saved_results.take(instance)
        else:
            again = (x, weight, running_mean, running_var, train, epsilon)
            implementation, reserve, save_mean, save_invstd = saved_results.recomputed(lambda: run_forward(*again))
        statistics = (running_mean, running_var, save_mean, save_invstd)
        store(instance, _differentiate(implementation, x, grad, weight, *statistics, train, epsilon, mask, reserve))

    return run


TARGETS = {FORWARD: _forward, BACKWARD: _backward}
