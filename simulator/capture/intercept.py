"""Canonical forms during capture: functions whose CPU and CUDA decompositions differ are recorded in one form.

Dropout becomes `aten.native_dropout` (scaled result and mask). Attention is one op, by the name of the CPU's, where PyTorch runs
it as one on the CPU; with dropout on its weights it becomes its math form: softmax(q k^T scale + mask), dropout, times v. A layer of
an RNN, a GRU or an LSTM is one op each way (`recurrent`).
"""

import math
from collections.abc import Callable
from unittest.mock import patch

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from simulator.ops.recurrent import layers as recurrent

_DROPOUT, _ATTENTION = functional.dropout, functional.scaled_dot_product_attention


class CanonicalForms(TorchFunctionMode):
    """Within it, dropout, attention and recurrent layers are issued in their canonical forms.

    A function mode sees every call by whatever name, but is off inside functions it was handed (F.multi_head_attention_forward); there the
    names in torch.nn.functional count, and they are replaced too.
    """

    def __init__(self, layer: Callable[[], str] = lambda: ""):
        """`layer` names the running module, for errors."""
        super().__init__()
        self._layer = layer

    def __enter__(self):
        """Start replacing."""
        self._patches = (
            patch.object(functional, "dropout", lambda *args, **kwargs: _dropout(_DROPOUT, args, kwargs)),
            patch.object(functional, "scaled_dot_product_attention", _attention),
        )
        for replaced in self._patches:
            replaced.start()
        return super().__enter__()

    def __exit__(self, *error):
        """Stop replacing."""
        for replaced in self._patches:
            replaced.stop()
        return super().__exit__(*error)

    def __torch_function__(self, func, types, args=(), kwargs=None):
        """Replace what has a canonical form, pass on everything else."""
        kwargs = kwargs or {}
        if func is _ATTENTION:
            return _attention(*args, **kwargs)
        if func in (_DROPOUT, torch.dropout):
            return _dropout(func, args, kwargs)
        if func in recurrent.CELLS:
            return recurrent.run(func, args, kwargs, self._layer())
        return func(*args, **kwargs)


def _dropout(func, args, kwargs) -> torch.Tensor:
    names = ("input", "p", "training", "inplace") if func is _DROPOUT else ("input", "p", "train")
    given = {"p": 0.5, **dict(zip(names, args, strict=False)), **kwargs}
    x = given["input"]
    if not given.get("training", given.get("train", True)) or given["p"] == 0.0:
        return x
    if given["p"] == 1.0:  # PyTorch draws no mask then
        zero = torch.zeros((), dtype=x.dtype, device=x.device)
        return x.mul_(zero) if given.get("inplace") else x.mul(zero)
    out = torch.native_dropout(x, given["p"], True)[0]
    return x.copy_(out) if given.get("inplace") else out


def _attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False) -> torch.Tensor:
    """Scaled_dot_product_attention as PyTorch runs it; with dropout in its math form, in the order of operations of PyTorch's own.

    The order matters: gradients that are zero in exact arithmetic (a key's bias) are pure rounding, and Adam normalises them.
    """
    if dropout_p == 0.0:
        return _ATTENTION(query, key, value, attn_mask, 0.0, is_causal, scale=scale, enable_gqa=enable_gqa)
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
    weights = torch.ops.aten._safe_softmax.default(scores, -1)  # zero, not NaN, where a whole row is masked
    return torch.native_dropout(weights, dropout_p, True)[0] @ value
