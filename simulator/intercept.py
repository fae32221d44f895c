"""Canonical forms during capture: functions whose CPU and CUDA decompositions differ are recorded in one form.

Dropout becomes `aten.native_dropout` (mask and scaled result), attention its math form.
"""

from contextlib import ExitStack, contextmanager

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode


class _Dropout(TorchFunctionMode):
    """Records `F.dropout` as native_dropout."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func in (torch.nn.functional.dropout, torch.dropout):
            p, training, inplace = _dropout_arguments(func, args, kwargs)
            if not training or p == 0.0:
                return args[0] if args else kwargs["input"]
            out = torch.native_dropout(args[0] if args else kwargs["input"], p, True)[0]
            return args[0].copy_(out) if inplace else out
        return func(*args, **kwargs)


def _dropout_arguments(func, args, kwargs) -> tuple[float, bool, bool]:
    names = ("input", "p", "training", "inplace") if func is torch.nn.functional.dropout else ("input", "p", "train")
    given = dict(zip(names, args, strict=False)) | kwargs
    return given.get("p", 0.5), given.get("training", given.get("train", True)), given.get("inplace", False)


@contextmanager
def canonical_forms():
    """Within it, dropout and attention are issued in their canonical forms."""
    with ExitStack() as stack:
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        stack.enter_context(_Dropout())
        yield
