"""Computes the values [nnz, V] of an op's transposed Jacobian from the tensors that the task reads. One function per kind of rule."""

import json
from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor

from executors.kernels.csr.indices import on_device
from simulator.model.ops.aten_json import Slot, decode, decode_item, resolve
from simulator.plan.bodies.csr.rules import AveragePoolRule, ConvolutionRule, ElementwiseRule, LinearRule, MaxPoolRule

#: A function from the tensors that a task reads to the values [nnz, V].
Values = Callable[..., Tensor]


def _from_weight(rule: ConvolutionRule | LinearRule, dtype: torch.dtype, device: torch.device) -> Values:
    if isinstance(rule, LinearRule) and rule.mask is None:
        return lambda weight: weight.t().contiguous()
    source = on_device(rule.pattern().source, device)
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
