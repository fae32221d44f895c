"""Canonical forms during capture: functions that decompose differently on CPU and CUDA are recorded in one form.

Dropout becomes `aten.native_dropout` (scaled result and mask). Attention is one op, named like the CPU's op, if PyTorch runs it as one op
on the CPU; with dropout on its weights it becomes its math form: softmax(q k^T scale + mask), dropout, times v, unless the loop on a GPU is
captured, whose fused kernels draw masks themselves. A layer of an RNN, a GRU or an LSTM is one op in forward and one in backward
(`simulator.model.ops.recurrent_layers`), and so is RMS norm. CTC loss takes its lengths as tensors.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from simulator.model.ops import recurrent_layers as recurrent
from simulator.model.ops.autocast import lowered, without_autocast
from simulator.model.ops.rms_norm import as_one_op

_DROPOUT, _ATTENTION = functional.dropout, functional.scaled_dot_product_attention
_APPLY = torch.nn.Module._apply
#: The types that CUDA's fused kernels of attention take.
_FUSED_TYPES = (torch.float32, torch.bfloat16, torch.float16)
_TRUNCATED_NORMAL = getattr(torch.nn.init, "_no_grad_trunc_normal_", torch.nn.init.trunc_normal_)


class CanonicalForms(TorchFunctionMode):
    """A context in which dropout, attention and recurrent layers are issued in their canonical forms.

    A function mode sees every call, whatever name the caller uses, but it is off inside the functions that it handles (such as
    F.multi_head_attention_forward). These call torch.nn.functional by name, so the names there are patched too.
    """

    def __init__(self, layer: Callable[[], str] = lambda: "", fused: bool = False):
        """`layer` returns the name of the running module, for error messages. `fused`: attention with dropout is one op, as on CUDA."""
        super().__init__()
        self._layer = layer
        self._attention = partial(_attention, fused=fused)

    def __enter__(self):
        """Start replacing functions."""
        self._patches = (
            patch.object(functional, "dropout", lambda *args, **kwargs: _dropout(_DROPOUT, args, kwargs)),
            patch.object(functional, "scaled_dot_product_attention", self._attention),
            patch.object(torch.nn.Module, "_apply", _apply),
        )
        for replaced in self._patches:
            replaced.start()
        self._norms = as_one_op()
        self._norms.__enter__()
        return super().__enter__()

    def __exit__(self, *error):
        """Stop replacing functions."""
        self._norms.__exit__(*error)
        for replaced in self._patches:
            replaced.stop()
        return super().__exit__(*error)

    def __torch_function__(self, func, types, args=(), kwargs=None):
        """Replace a function that has a canonical form; call every other one unchanged."""
        kwargs = kwargs or {}
        if func is _ATTENTION:
            return self._attention(*args, **kwargs)
        if func in (_DROPOUT, torch.dropout):
            return _dropout(func, args, kwargs)
        if func in (functional.ctc_loss, torch.ctc_loss):
            return _ctc_loss(func, *args, **kwargs)
        if func is torch.Tensor.__format__ and not args[0].dim():
            return format(args[0].item(), *args[1:])
        if func in recurrent.CELLS:
            return recurrent.run(func, args, kwargs, self._layer())
        return func(*args, **kwargs)


def without_redraws() -> Any:
    """A context in which a truncated normal distribution is drawn once on fake tensors, whatever name the caller uses for `trunc_normal_`.

    PyTorch draws again until every number is within the bounds. This reads the numbers, which fake tensors do not have. A version of
    PyTorch without this private function is left as it is: its models are made of real tensors.
    """
    return patch.object(torch.nn.init, "_no_grad_trunc_normal_", _truncated_normal, create=True)


def _truncated_normal(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    if not isinstance(tensor, FakeTensor):
        return _TRUNCATED_NORMAL(tensor, *args, **kwargs)
    with torch.no_grad():
        return tensor.normal_()


def _ctc_loss(func: Callable, log_probs: Any, targets: Any, input_lengths: Any, target_lengths: Any, *args: Any, **kwargs: Any) -> Any:
    """CTC loss, which cannot take lists of lengths under fake tensors."""
    return func(log_probs, targets, torch.as_tensor(input_lengths), torch.as_tensor(target_lengths), *args, **kwargs)


def _apply(module: torch.nn.Module, convert: Callable, recurse: bool = True) -> torch.nn.Module:
    """Module.to and the like, which cannot replace fake tensors, and need not if nothing changes."""
    if all(convert(tensor) is tensor for tensor in (*module.parameters(), *module.buffers())):
        return module
    return _APPLY(module, convert, recurse)


def _dropout(func, args, kwargs) -> torch.Tensor:
    names = ("input", "p", "training", "inplace") if func is _DROPOUT else ("input", "p", "train")
    arguments = {"p": 0.5, **dict(zip(names, args, strict=False)), **kwargs}
    x = arguments["input"]
    if not arguments.get("training", arguments.get("train", True)) or arguments["p"] == 0.0:
        return x
    if arguments["p"] == 1.0:  # PyTorch draws no mask in this case
        zero = torch.zeros((), dtype=x.dtype, device=x.device)
        return x.mul_(zero) if arguments.get("inplace") else x.mul(zero)
    out = torch.native_dropout(x, arguments["p"], True)[0]
    return x.copy_(out) if arguments.get("inplace") else out


def _attention(
    query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False, *, fused=False
) -> torch.Tensor:
    """Run scaled_dot_product_attention as PyTorch does; with dropout in its math form, with PyTorch's own order of operations.

    With `fused`, dropout is within the op if CUDA has a fused kernel for the call (aten/src/ATen/native/transformers/cuda/sdp_utils.cpp).
    The order matters: gradients that are zero in exact arithmetic (of a key's bias) are pure rounding errors, and Adam normalizes them.
    """
    if dropout_p == 0.0:
        return _ATTENTION(query, key, value, attn_mask, 0.0, is_causal, scale=scale, enable_gqa=enable_gqa)
    if torch.is_autocast_enabled("cpu"):  # it casts what attention reads, and nothing inside
        query, key, value, attn_mask = lowered((query, key, value, attn_mask))
        with without_autocast():
            return _attention(
                query,
                key,
                value,
                attn_mask=attn_mask,
                dropout_p=dropout_p,
                is_causal=is_causal,
                scale=scale,
                enable_gqa=enable_gqa,
                fused=fused,
            )
    if fused and query.dim() == 4 and query.dtype in _FUSED_TYPES and not (attn_mask is not None and attn_mask.requires_grad):
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            zero, never = (torch.scalar_tensor(number, dtype=query.dtype) for number in (0.0, -math.inf))
            attn_mask = torch.where(attn_mask, zero, never)
        given = {name: item for name, item in (("attn_mask", attn_mask), ("scale", scale)) if item is not None}
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default(query, key, value, dropout_p, is_causal, **given)[0]
    if query.dtype in (torch.bfloat16, torch.float16):  # the math form computes in float32
        low = query.dtype
        exact = (item if item is None or not item.is_floating_point() else item.float() for item in (query, key, value, attn_mask))
        query, key, value, attn_mask = exact
        return _attention(
            query, key, value, attn_mask=attn_mask, dropout_p=dropout_p, is_causal=is_causal, scale=scale, enable_gqa=enable_gqa
        ).to(low)
    scale = 1 / math.sqrt(query.size(-1)) if scale is None else scale
    root = math.sqrt(abs(scale))
    if enable_gqa:
        key = key.repeat_interleave(query.size(-3) // key.size(-3), -3)
        value = value.repeat_interleave(query.size(-3) // value.size(-3), -3)
    scores = (query * math.copysign(root, scale)) @ (key.transpose(-2, -1) * root)
    if is_causal:
        attn_mask = torch.ones(query.size(-2), key.size(-2), dtype=torch.bool, device=query.device).tril()
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(attn_mask.logical_not(), -math.inf)
    elif attn_mask is not None:
        scores = scores + attn_mask
    weights = torch.ops.aten._safe_softmax.default(scores, -1)  # zero, not NaN, in a row that is masked completely
    return torch.native_dropout(weights, dropout_p, True)[0] @ value
