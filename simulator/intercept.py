"""Canonical forms during capture: functions whose CPU and CUDA decompositions differ are recorded in one form.

Dropout becomes `aten.native_dropout` (scaled result and mask); attention its math form: softmax(q k^T scale + mask), dropout, times v.
"""

import math

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode


class CanonicalForms(TorchFunctionMode):
    """Within it, dropout and attention are issued in their canonical forms."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        """Replace dropout and attention, pass on everything else."""
        kwargs = kwargs or {}
        if func is functional.scaled_dot_product_attention:
            return _attention(*args, **kwargs)
        if func in (functional.dropout, torch.dropout):
            return _dropout(func, args, kwargs)
        return func(*args, **kwargs)


def _dropout(func, args, kwargs) -> torch.Tensor:
    names = ("input", "p", "training", "inplace") if func is functional.dropout else ("input", "p", "train")
    given = {"p": 0.5, **dict(zip(names, args, strict=False)), **kwargs}
    x = given["input"]
    if not given.get("training", given.get("train", True)) or given["p"] == 0.0:
        return x
    out = torch.native_dropout(x, given["p"], True)[0]
    return x.copy_(out) if given.get("inplace") else out


def _attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False) -> torch.Tensor:
    """The math form of scaled_dot_product_attention (its documentation's reference implementation)."""
    scale = 1 / math.sqrt(query.size(-1)) if scale is None else scale
    if enable_gqa:
        key = key.repeat_interleave(query.size(-3) // key.size(-3), -3)
        value = value.repeat_interleave(query.size(-3) // value.size(-3), -3)
    scores = (query * scale) @ key.transpose(-2, -1)
    if is_causal:
        length, other = query.size(-2), key.size(-2)
        attn_mask = torch.ones(length, other, dtype=torch.bool, device=query.device).tril()
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(attn_mask.logical_not(), -math.inf)
    elif attn_mask is not None:
        scores = scores + attn_mask
    weights = torch.softmax(scores, dim=-1)
    if dropout_p > 0.0:
        weights = torch.native_dropout(weights, dropout_p, True)[0]
    return weights @ value
