"""Computes the values of an op's transposed Jacobian, or of many steps of one, as the body's rule says."""

from collections.abc import Callable

import torch
from torch import Tensor

from simulator.bodies.jacobian_rules import GruSteps, RnnSteps
from simulator.plan import Task
from simulator.recurrent.steps import gru_factors
from simulator.scan import order

from ..binding import Binding, Instance
from .csr import values as csr

KIND = "jacobian-values"


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


_OF_STEPS: dict[str, Callable[..., Tensor]] = {"rnn": rnn_steps, "gru": gru_steps}


def _backwards(steps: int, leftmost: bool) -> list[int]:
    """Which of `steps` steps in time order makes each Jacobian of the scan, which begins with the last step."""
    first = int(leftmost)
    return [steps - 1 - (place - first) for place in order(steps + first)[first:]]


def _values(task: Task, device: torch.device) -> Callable[..., Tensor]:
    """The function of the tensors read."""
    rule = task.body.rule
    kernel = _OF_STEPS.get(rule.of)
    if kernel is None:
        return csr.COMPILE[rule.of](rule, getattr(torch, task.writes[0].dtype), device)
    places = torch.tensor(_backwards(task.reads[0].shape[0], rule.leftmost), device=device)
    return lambda *reads: kernel(rule, places, *reads)


def compile_task(task: Task, binding: Binding) -> Callable[[Instance], None]:
    """A function that computes the values from an instance's tensors and stores them."""
    values = _values(task, binding.device(task.device))
    getters, put = [binding.getter(operand) for operand in task.reads], binding.setter(task.writes[0])
    return lambda instance: put(instance, values(*(get(instance) for get in getters)))
