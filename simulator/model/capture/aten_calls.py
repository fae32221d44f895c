"""Ops that write into a tensor given as `out=`. They run as the op without it, whose result is then copied into that tensor."""

from functools import cache, partial
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

from simulator.model.ops import rms_norm
from traces.errors import SchedcastError


@cache
def targets(func) -> tuple[str, ...]:
    """The names of the arguments into which an op writes its results; empty for most ops."""
    return tuple(argument.name for argument in func._schema.arguments if argument.is_out)


def run(func, args, kwargs) -> Any:
    """Run the op without its `targets`, and copy its results into them. Returns these tensors, as the op does.

    Both calls are dispatched, so that a recorder sees them. Raises SchedcastError for a tensor of another shape than the result.
    """
    names = targets(func)
    tensors = [kwargs[name] for name in names]
    results = _functional(func)(*args, **{name: item for name, item in kwargs.items() if name not in names})
    for target, result in zip(tensors, results if isinstance(results, tuple) else (results,), strict=True):
        if target.shape != result.shape:
            raise SchedcastError(
                f"{func} resizes its out= from {tuple(target.shape)} to {tuple(result.shape)}; expected one of the result's shape; leave"
                " out= away"
            )
        torch.ops.aten.copy_.default(target, result)
    return tensors[0] if len(tensors) == 1 else tuple(tensors)


def _functional(func) -> Any:
    """The overload of the same op that has the same arguments but for its `targets`."""
    wanted = _signature(func)
    packet = func._overloadpacket
    overloads = (getattr(packet, name) for name in packet.overloads())
    functional = next((each for each in overloads if not targets(each) and _signature(each) == wanted), None)
    if functional is None:
        raise SchedcastError(f"{func} has no form without out=; expected an op that returns its result; remove out=")
    return functional


def _signature(func) -> list[tuple[str, str]]:
    return [(argument.name, str(argument.type)) for argument in func._schema.arguments if not argument.is_out]


# FLOPs and shapes of ops for which PyTorch's own registries have none, or wrong ones.


#: Attention ops that PyTorch's registry of FLOP formulas lacks -> (number of matrix products between queries and keys, position of the
#: query among the arguments). As in PyTorch's other formulas, the backward pass computes the scores again, and causal masks save nothing.
ATTENTION_PRODUCTS = {
    "aten._scaled_dot_product_flash_attention_for_cpu.default": (2, 0),
    "aten._scaled_dot_product_flash_attention_for_cpu_backward.default": (5, 1),
}


def _grouped_product(left: torch.Tensor, right: torch.Tensor, offsets: torch.Tensor | None = None, *_, **__) -> torch.Tensor:
    """The result of aten._grouped_mm, whose own shape function takes no float32: rows are padded to 16 bytes."""
    groups = () if left.dim() != right.dim() else (len(left) if offsets is None or left.dim() != 2 else len(offsets),)
    row = -(-right.shape[-1] * left.itemsize // 16) * 16 // left.itemsize
    shape = (*groups, left.shape[-2], right.shape[-1])
    return left.new_empty_strided(shape, (shape[-2] * row, row, 1)[-len(shape) :])


def _like_log_probs(_, log_probs: torch.Tensor, *__, **___) -> torch.Tensor:
    """The result of the backward of CTC loss, which has no shape function."""
    return log_probs.new_empty(log_probs.shape)


def _normalized(func, inputs, weight, bias, mean, variance, training: bool, *rest):
    """The results of a batch-norm in training, whose own shape function runs its formula op by op."""
    if not training or not _plain(inputs, weight, bias, mean, variance):
        return func(inputs, weight, bias, mean, variance, training, *rest)
    return _with_channels(inputs)


def _normalized_backward(func, gradient, inputs, weight, mean, variance, saved_mean, saved_scale, training: bool, epsilon, mask):
    """The results of the backward of such a batch-norm."""
    alike = gradient.stride() == inputs.stride()
    if not (training and all(mask) and alike and weight is not None and _plain(gradient, inputs, weight, mean, variance)):
        return func(gradient, inputs, weight, mean, variance, saved_mean, saved_scale, training, epsilon, mask)
    return _with_channels(inputs)


def _with_channels(inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """A tensor like the inputs, and two of a number per channel."""
    return torch.empty_like(inputs), *(inputs.new_empty(inputs.shape[1]) for _ in range(2))


def _plain(inputs: torch.Tensor, *others: torch.Tensor | None) -> bool:
    """Whether all are of the type of the inputs, and these without gaps."""
    formats = (torch.contiguous_format, *((torch.channels_last,) if inputs.dim() == 4 else ()))
    dense = any(inputs.is_contiguous(memory_format=each) for each in formats)
    return dense and all(each is None or each.dtype == inputs.dtype for each in others)


#: Shape functions in the place of PyTorch's own, or of none.
SHAPES = {
    torch.ops.aten.native_batch_norm.default: partial(_normalized, torch.ops.aten.native_batch_norm.default),
    torch.ops.aten.native_batch_norm_backward.default: partial(_normalized_backward, torch.ops.aten.native_batch_norm_backward.default),
    rms_norm.FORWARD: rms_norm.shapes,
    rms_norm.BACKWARD: rms_norm.backward_shapes,
    torch.ops.aten._grouped_mm.default: _grouped_product,
    torch.ops.aten._ctc_loss_backward.default: _like_log_probs,
    torch.ops.aten._ctc_loss_backward.Tensor: _like_log_probs,
}


def flops(func, args, kwargs, results) -> float:
    """FLOPs of one call of an op; 0 if there is no formula."""
    if func is torch.ops.aten._grouped_mm.default:
        left, right = args[:2]
        return 2.0 * left.numel() * right.shape[-1] / (len(left) if right.dim() == 2 and left.dim() == 3 else 1)
    if func is torch.ops.aten.convolution_backward.default:  # the registry's formula counts dW of a grouped convolution as if dense
        grad_out, inputs, weight, transposed, mask = args[0], args[1], args[2], args[7], args[10]
        outer = inputs if transposed else grad_out
        return 2.0 * outer.numel() * (weight.numel() // weight.shape[0]) * (mask[0] + mask[1])
    if str(func) in ATTENTION_PRODUCTS:
        products, query = ATTENTION_PRODUCTS[str(func)]
        return 2.0 * products * args[query].numel() * args[query + 1].shape[-2]
    formula = flop_registry.get(func._overloadpacket)
    if formula is None:
        return 0.0
    return float(formula(*args, **kwargs, out_val=results[0] if len(results) == 1 else tuple(results)))
