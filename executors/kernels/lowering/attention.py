"""Attention on CUDA in PyTorch's own choice of kernel: what F.scaled_dot_product_attention runs.

A plan's logsumexp holds whatever the kernel takes back as such. Results are laid out as the plan says, which views of them rely on.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend

from executors.binding import Binding, Instance
from executors.kernels.lowering.handover import Handover, second_result
from simulator.plan.task import Operand, Task

FORWARD = "aten._scaled_dot_product_flash_attention_for_cpu.default"
BACKWARD = "aten._scaled_dot_product_flash_attention_for_cpu_backward.default"

_aten = torch.ops.aten


class Call(NamedTuple):
    """The arguments of one call. A mask is added to the scores; keys and values may have fewer heads than queries."""

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    causal: bool
    scale: float | None

    @property
    def groups(self) -> int:
        """Heads of queries per head of keys."""
        return self.query.size(1) // self.key.size(1)


#: (out, logsumexp, what else the backward pass takes)
Result = tuple[Tensor, Tensor, tuple]


class Kernel(NamedTuple):
    """`backward(grad, call, out, logsumexp, left)` gives the gradients of query, key and value."""

    forward: Callable[[Call], Result]
    backward: Callable[[Tensor, Call, Tensor, Tensor, tuple], tuple[Tensor, ...]]


def _flash(call: Call) -> Result:
    out, logsumexp, *left, _ = _aten._scaled_dot_product_flash_attention.default(*call[:3], 0.0, call.causal, False, scale=call.scale)
    return out, logsumexp, tuple(left)


def _flash_backward(grad: Tensor, call: Call, out: Tensor, logsumexp: Tensor, left: tuple) -> tuple[Tensor, ...]:
    *sequences, state, unused = left
    differentiate = _aten._scaled_dot_product_flash_attention_backward.default
    return differentiate(grad, *call[:3], out, logsumexp, *sequences, 0.0, call.causal, state, unused, scale=call.scale)


def _bias(call: Call) -> Tensor | None:
    """The mask as the efficient kernels want it: rows that begin at multiples of 16 elements, one row per query."""
    if call.mask is None:
        return None
    keys = call.key.size(2)
    mask = call.mask.to(call.query.dtype).expand(*call.mask.shape[:-1], keys)
    if mask.stride(-1) != 1 or any(stride % 16 for stride in mask.stride()[:-1]):
        mask = torch.nn.functional.pad(mask, (0, 16 - keys % 16))[..., :keys]
    return mask.expand(*call.query.shape[:3], keys)


def _efficient(call: Call) -> Result:
    attend = _aten._scaled_dot_product_efficient_attention.default
    out, logsumexp, *left = attend(*call[:3], _bias(call), True, 0.0, call.causal, scale=call.scale)
    return out, logsumexp, tuple(left)


def _efficient_backward(grad: Tensor, call: Call, out: Tensor, logsumexp: Tensor, left: tuple) -> tuple[Tensor, ...]:
    wanted = [True, True, True, False]
    differentiate = _aten._scaled_dot_product_efficient_attention_backward.default
    return differentiate(grad, *call[:3], _bias(call), out, logsumexp, *left, 0.0, wanted, call.causal, scale=call.scale)[:3]


def _cudnn(call: Call) -> Result:
    attend = _aten._scaled_dot_product_cudnn_attention.default
    out, logsumexp, *left, _ = attend(*call[:4], True, 0.0, call.causal, False, scale=call.scale)
    return out, logsumexp, tuple(left)


def _cudnn_backward(grad: Tensor, call: Call, out: Tensor, logsumexp: Tensor, left: tuple) -> tuple[Tensor, ...]:
    *sequences, seed, offset = left
    differentiate = _aten._scaled_dot_product_cudnn_attention_backward.default
    return differentiate(
        grad, *call[:3], out, logsumexp, seed, offset, call.mask, *sequences, 0.0, call.causal, scale=call.scale
    )  # fmt: skip


def _math(call: Call) -> Result:
    """The weights stand for the logsumexp."""
    options = {"scale": call.scale, "enable_gqa": call.groups > 1}
    return *_aten._scaled_dot_product_attention_math.default(*call[:4], 0.0, call.causal, **options), ()


def _math_backward(grad: Tensor, call: Call, out: Tensor, weights: Tensor, left: tuple) -> tuple[Tensor, ...]:
    """In autograd's order of operations."""
    scale = 1 / math.sqrt(call.query.size(-1)) if call.scale is None else call.scale
    root = math.sqrt(abs(scale))
    key, value = (x.repeat_interleave(call.groups, 1) if call.groups > 1 else x for x in (call.key, call.value))
    query, key = call.query * math.copysign(root, scale), key.transpose(-2, -1) * root
    scores = _aten._softmax_backward_data.default(grad @ value.transpose(-2, -1), weights, -1, weights.dtype)
    of_query = (scores @ key.transpose(-2, -1)) * math.copysign(root, scale)
    of_key = ((query.transpose(-2, -1) @ scores) * root).transpose(-2, -1)
    of_value = weights.transpose(-2, -1) @ grad
    if call.groups > 1:
        of_key, of_value = (x.unflatten(1, (-1, call.groups)).sum(2) for x in (of_key, of_value))
    return of_query, of_key, of_value


def _cpu(call: Call) -> Result:
    attend = _aten._scaled_dot_product_flash_attention_for_cpu.default
    return *attend(*call[:3], 0.0, call.causal, attn_mask=call.mask, scale=call.scale), ()


def _cpu_backward(grad: Tensor, call: Call, out: Tensor, logsumexp: Tensor, left: tuple) -> tuple[Tensor, ...]:
    differentiate = _aten._scaled_dot_product_flash_attention_for_cpu_backward.default
    return differentiate(grad, *call[:3], out, logsumexp, 0.0, call.causal, attn_mask=call.mask, scale=call.scale)


KERNELS = {
    "math": Kernel(_math, _math_backward),
    "flash": Kernel(_flash, _flash_backward),
    "efficient": Kernel(_efficient, _efficient_backward),
    "cudnn": Kernel(_cudnn, _cudnn_backward),
    "cpu": Kernel(_cpu, _cpu_backward),
}
_NAMES = {SDPBackend.FLASH_ATTENTION: "flash", SDPBackend.EFFICIENT_ATTENTION: "efficient", SDPBackend.CUDNN_ATTENTION: "cudnn"}


def choice(call: Call) -> str:
    """PyTorch's own choice for training, but the math form where F.scaled_dot_product_attention would pad heads for the flash kernel."""
    query, key, value = (x.detach().requires_grad_() for x in call[:3])
    gqa = {"enable_gqa": call.groups > 1}
    found = SDPBackend(_aten._fused_sdp_choice.default(query, key, value, call.mask, 0.0, call.causal, scale=call.scale, **gqa))
    name = _NAMES.get(found, "math")
    if name == "flash" and not query.is_cuda:
        return "cpu"
    return "math" if name == "flash" and query.size(-1) % 8 else name


def _as_planned(tensor: Tensor, planned: Operand) -> Tensor:
    """`tensor` with the strides that the plan says."""
    if all(a == b or n == 1 for a, b, n in zip(tensor.stride(), planned.strides, planned.shape, strict=True)):
        return tensor
    return torch.empty_strided(planned.shape, planned.strides, dtype=tensor.dtype, device=tensor.device).copy_(tensor)


def _call(query: Tensor, key: Tensor, value: Tensor, causal: bool, named: dict) -> Call:
    return Call(query, key, value, named.get("attn_mask"), causal, named.get("scale"))


def _forward(task: Task, binding: Binding) -> Callable[[Instance], None] | None:
    if not binding.forms.cuda:
        return None
    fill = binding.arguments(task, task.body.args, task.body.kwargs, binding.device(task.device))
    writes = dict(zip(task.body.outputs, task.writes, strict=True))
    put_out, put_logsumexp = binding.setter(writes[0]), binding.setter(writes[1])
    handover = Handover(binding, writes[1].value, FORWARD, BACKWARD)
    chosen: list[str] = []

    def run(instance: Instance) -> None:
        (query, key, value, *rest), named = fill(instance)
        call = _call(query, key, value, len(rest) > 1 and rest[1], named)
        if not chosen:
            chosen.append(choice(call))
        out, logsumexp, left = KERNELS[chosen[0]].forward(call)
        put_out(instance, _as_planned(out, writes[0]))
        put_logsumexp(instance, logsumexp)
        handover.leave(instance, (chosen[0], *left))

    return run


def _backward(task: Task, binding: Binding) -> Callable[[Instance], None] | None:
    """Without the forward op in the plan (a backward timed alone), the first call runs it once, to have what it leaves behind."""
    if not binding.forms.cuda:
        return None
    fill = binding.arguments(task, task.body.args, task.body.kwargs, binding.device(task.device))
    setters = [(position, write, binding.setter(write)) for position, write in zip(task.body.outputs, task.writes, strict=True)]
    handover = Handover(binding, second_result(task), FORWARD, BACKWARD)
    made: list[tuple] = []

    def run(instance: Instance) -> None:
        (grad, query, key, value, out, logsumexp, _, causal), named = fill(instance)
        call = _call(query, key, value, causal, named)
        if handover.follows:
            name, *left = handover.take(instance)
        else:
            if not made:
                name = choice(call)
                made.append((name, *KERNELS[name].forward(call)))
            name, out, logsumexp, left = made[0]
        results = KERNELS[name].backward(grad, call, out, logsumexp, tuple(left))
        for position, write, put in setters:
            put(instance, _as_planned(results[position], write))

    return run


TARGETS = {FORWARD: _forward, BACKWARD: _backward}
