"""The transposed Jacobians of the steps of a recurrent layer, a batch [m, B, H, H] in the order of a scan."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from executors.binding import Binding
from executors.kernels.native import compile as native
from executors.kernels.native import jacobian_values as native_values
from simulator.bodies.jacobian_rules import GruSteps, RnnSteps
from simulator.ops.recurrent.scan_order import order
from simulator.ops.recurrent.steps import gru_factors
from simulator.plan.task import Task


def rnn_steps(rule: RnnSteps, places: Tensor, states: Tensor, w_hh: Tensor) -> Tensor:
    """W_hh^T diag(f'(h_t)) of every step, [m, B, H, H] in scan order. `places`: which step each comes from."""
    out = states.index_select(0, places)
    slopes = 1 - out * out if rule.nonlinearity == "tanh" else (out > 0).to(out.dtype)
    return w_hh.t() * slopes.unsqueeze(2)


def gru_steps(rule: GruSteps, places: Tensor, before: Tensor, reset_update: Tensor, new: Tensor, of_hidden: Tensor, w_hh: Tensor) -> Tensor:
    """Wang et al., appendix E, of every step, [m, B, H, H] in scan order: W_hr^T by r, W_hz^T by z and W_hn^T by n, and z directly."""
    hidden = before.shape[-1]
    factors, _, update = gru_factors(*(tensor.index_select(0, places) for tensor in (before, reset_update, new, of_hidden)))
    weights = w_hh.view(3, hidden, hidden).transpose(1, 2).unbind()
    by_gate = factors.unsqueeze(3).unbind(2)
    found = weights[0] * by_gate[0]
    for weight, factor in zip(weights[1:], by_gate[1:], strict=True):
        found.addcmul_(weight, factor)
    found.diagonal(dim1=-2, dim2=-1).add_(update)
    return found


_KERNELS: dict[str, Callable[..., Tensor]] = {"rnn": rnn_steps, "gru": gru_steps}


def _backwards(steps: int, leftmost: bool) -> list[int]:
    """Which of `steps` steps in time order makes each Jacobian of the scan, which begins with the last step."""
    first = int(leftmost)
    return [steps - 1 - (place - first) for place in order(steps + first)[first:]]


def compile_steps(task: Task, binding: Binding) -> Callable[..., Tensor]:
    """A function of the tensors that the task reads: as one kernel where there is one, else as PyTorch's ops."""
    rule, device = task.body.rule, binding.device(task.device)
    places = _backwards(task.reads[0].shape[0], rule.leftmost)
    real, own = native.usable(task, binding), None
    if real is not None:
        own = native_values.steps(rule, places, real, task.writes[0].shape[-1], device)
    return own or partial(_KERNELS[rule.of], rule, torch.tensor(places, device=device))
