"""Computes the values of an op's transposed Jacobian, or of the Jacobians of many recurrent steps, by the body's rule; and their products.

Shapes: nnz = nonzero values, V = samples with different values, m = Jacobians of a batch in scan order, B = samples, H = units.
"""

import json
from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
import torch
from torch import Tensor

from executors.binding import Binding, Instance
from executors.kernels import scan_kernels
from executors.kernels.sparse import compile_product, on_device, to_full
from simulator.model.ops.aten_json import Slot, decode, decode_item, resolve
from simulator.model.ops.recurrent_steps import gru_factors
from simulator.model.ops.scan_order import order
from simulator.plan.bodies.csr.rules import AveragePoolRule, ConvolutionRule, ElementwiseRule, LinearRule, MaxPoolRule
from simulator.plan.bodies.scan import GruSteps, RnnSteps
from simulator.plan.task import Task


def compile_product_task(task: Task, binding: Binding) -> Callable[[Instance], None]:
    """A function that multiplies an instance's tensors and stores the product. The sparsity pattern is computed here, once."""
    left, right = task.reads
    multiply = compile_product(task.body, task.body.samples(task), binding.device(task.device))
    get_left, get_right, put = binding.getter(left), binding.getter(right), binding.setter(task.writes[0])

    def run(instance: Instance) -> None:
        put(instance, multiply(get_left(instance), get_right(instance)))

    return run


def rnn_steps(rule: RnnSteps, places: Tensor, states: Tensor, w_hh: Tensor) -> Tensor:
    """W_hh^T diag(f'(h_t)) of every step, [m, B, H, H] in scan order. `places`: [m], the step of each Jacobian."""
    out = states.index_select(0, places)
    slopes = 1 - out * out if rule.nonlinearity == "tanh" else (out > 0).to(out.dtype)
    return w_hh.t().contiguous() * slopes.unsqueeze(2)  # a product keeps the order of its factors in memory; plans are row-major


def gru_steps(rule: GruSteps, places: Tensor, before: Tensor, reset_update: Tensor, new: Tensor, of_hidden: Tensor, w_hh: Tensor) -> Tensor:
    """The Jacobian of Wang et al., appendix E, of every step, [m, B, H, H] in scan order.

    It is the sum of W_hr^T, W_hz^T and W_hn^T, each scaled by its gate's factors, plus diag(z). `places`: [m], the step of each Jacobian.
    """
    hidden = before.shape[-1]
    factors, _, update = gru_factors(*(tensor.index_select(0, places) for tensor in (before, reset_update, new, of_hidden)))
    weights = w_hh.view(3, hidden, hidden).transpose(1, 2).contiguous().unbind()  # row-major, as their products should be
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
    real, kernel = scan_kernels.cuda_type(task, binding), None
    if real is not None:
        kernel = scan_kernels.fused_steps(rule, places, real, task.writes[0].shape[-1], device)
    return kernel or partial(_KERNELS[rule.of], rule, torch.tensor(places, device=device))


#: A function from the tensors that a task reads to the values [nnz, V].
Values = Callable[..., Tensor]


def _from_weight(rule: ConvolutionRule | LinearRule, dtype: torch.dtype, device: torch.device) -> Values:
    if isinstance(rule, LinearRule) and rule.mask is None:
        return lambda weight: weight.t().contiguous()
    positions = rule.pattern().source
    assert positions is not None, "the pattern of a weight says where its entries are in the weight"
    source = on_device(positions, device)
    return lambda weight: weight.reshape(-1).index_select(0, source).unsqueeze(1)


def _elementwise(rule: ElementwiseRule, dtype: torch.dtype, device: torch.device) -> Values:
    op, template = resolve(rule.target), decode(rule.args, device)
    named = {name: decode_item(item, device) for name, item in json.loads(rule.kwargs).items()}
    one = torch.ones((), dtype=dtype, device=device)

    def values(*saved: Tensor) -> Tensor:
        args = [saved[item] if isinstance(item, Slot) else item for item in template]
        slopes = op(one.expand(saved[0].shape), *args, **named)
        return slopes.flatten(1).t().contiguous()

    return values


def _max_pool(rule: MaxPoolRule, dtype: torch.dtype, device: torch.device) -> Values:
    pattern = rule.pattern()
    window = on_device(pattern.indices, device)
    position = torch.from_numpy(np.ascontiguousarray(pattern.entry_rows % np.int32(rule.height * rule.width))).to(device).unsqueeze(1)

    def values(argmax: Tensor) -> Tensor:
        selected = argmax.flatten(1).t().to(torch.int32, memory_format=torch.contiguous_format)
        return (selected.index_select(0, window) == position).to(dtype)

    return values


def _constants(rule: AveragePoolRule, dtype: torch.dtype, device: torch.device) -> Values:
    constant = torch.from_numpy(rule.values()).to(device, dtype).unsqueeze(1)
    return constant.clone


#: By `rule.of`, the function compile(rule, dtype, device) that returns the function of the tensors.
COMPILE: Mapping[str, Callable[..., Values]] = {
    "convolution": _from_weight,
    "linear": _from_weight,
    "elementwise": _elementwise,
    "max-pool": _max_pool,
    "average-pool": _constants,
    "adaptive-average-pool": _constants,
}


def compile_values(task: Task, binding: Binding) -> Callable[[Instance], None]:
    """A function that computes the values from an instance's tensors and stores them."""
    rule, (write,) = task.body.rule, task.writes
    device = binding.device(task.device)
    static = COMPILE.get(rule.of)
    values = static(rule, getattr(torch, write.dtype), device) if static is not None else compile_steps(task, binding)
    full = to_full(rule.pattern(), device) if task.body.full else None
    getters, put = [binding.getter(operand) for operand in task.reads], binding.setter(write)

    def run(instance: Instance) -> None:
        result = values(*[get(instance) for get in getters])
        put(instance, result if full is None else full(result))

    return run


HANDLERS = {"jacobian-values": compile_values, "jacobian-product": compile_product_task}
