"""Computes the values of an op's transposed Jacobian, or of the Jacobians of many recurrent steps, by the body's rule.

Computes the transposed Jacobians of a recurrent layer's steps, as a batch [m, B, H, H] in scan order.

Shapes: m = Jacobians of the batch, B = samples, H = units.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from executors.binding import Binding, Instance
from executors.kernels.csr import values as csr
from executors.kernels.csr.full import to_full
from executors.kernels.native import compile as native
from executors.kernels.native import jacobian_values as native_values
from simulator.model.ops.recurrent.scan_order import order
from simulator.model.ops.recurrent.steps import gru_factors
from simulator.plan.bodies.jacobian_rules import GruSteps, RnnSteps
from simulator.plan.task import Task


def rnn_steps(rule: RnnSteps, places: Tensor, states: Tensor, w_hh: Tensor) -> Tensor:
    """W_hh^T diag(f'(h_t)) of every step, [m, B, H, H] in scan order. `places`: [m], the step of each Jacobian."""
    out = states.index_select(0, places)
    slopes = 1 - out * out if rule.nonlinearity == "tanh" else (out > 0).to(out.dtype)
    return w_hh.t() * slopes.unsqueeze(2)


def gru_steps(rule: GruSteps, places: Tensor, before: Tensor, reset_update: Tensor, new: Tensor, of_hidden: Tensor, w_hh: Tensor) -> Tensor:
    """The Jacobian of Wang et al., appendix E, of every step, [m, B, H, H] in scan order.

    It is the sum of W_hr^T, W_hz^T and W_hn^T, each scaled by its gate's factors, plus diag(z). `places`: [m], the step of each Jacobian.
    """
    hidden = before.shape[-1]
    factors, _, update = gru_factors(*(tensor.index_select(0, places) for tensor in (before, reset_update, new, of_hidden)))
    weights = w_hh.view(3, hidden, hidden).transpose(1, 2).unbind()
    by_gate = factors.unsqueeze(3).unbind(2)
    jacobians = weights[0] * by_gate[0]
    for weight, factor in zip(weights[1:], by_gate[1:], strict=True):
        jacobians.addcmul_(weight, factor)
    jacobians.diagonal(dim1=-2, dim2=-1).add_(update)
    return jacobians


_KERNELS: dict[str, Callable[..., Tensor]] = {"rnn": rnn_steps, "gru": gru_steps}


def _steps_in_scan_order(steps: int, leftmost: bool) -> list[int]:
    """The step in time order of each Jacobian of the scan. The scan begins with the last step."""
    first = int(leftmost)
    return [steps - 1 - (place - first) for place in order(steps + first)[first:]]


def compile_steps(task: Task, binding: Binding) -> Callable[..., Tensor]:
    """A function of the tensors that the task reads: the hand-written kernel if it is usable, else PyTorch's ops."""
    rule, device = task.body.rule, binding.device(task.device)
    places = _steps_in_scan_order(task.reads[0].shape[0], rule.leftmost)
    c_type, kernel = native.c_type(task, binding), None
    if c_type is not None:
        kernel = native_values.steps(rule, places, c_type, task.writes[0].shape[-1], device)
    return kernel or partial(_KERNELS[rule.of], rule, torch.tensor(places, device=device))


KIND = "jacobian-values"


def compile_task(task: Task, binding: Binding) -> Callable[[Instance], None]:
    """A function that computes the values from an instance's tensors and stores them."""
    rule, (write,) = task.body.rule, task.writes
    device = binding.device(task.device)
    static = csr.COMPILE.get(rule.of)
    values = static(rule, getattr(torch, write.dtype), device) if static is not None else compile_steps(task, binding)
    full = to_full(rule.pattern(), device) if task.body.full else None
    getters, put = [binding.getter(operand) for operand in task.reads], binding.setter(write)

    def run(instance: Instance) -> None:
        result = values(*[get(instance) for get in getters])
        put(instance, result if full is None else full(result))

    return run
