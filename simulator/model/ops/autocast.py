"""Autocast by the rules of a CPU or of a GPU, on CPU tensors.

Autocast has one list of ops for each kind of device: on a GPU, for example, softmax and layer-norm compute in float32, and on a CPU they
do not. A step is captured on CPU tensors, whatever device will run it, so the rules of a GPU replace those of the CPU, op by op, where the
two differ. Which ops a kind of device has rules for is read from PyTorch's dispatcher.
"""

import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

GPU = "gpu"

#: Ops that only a GPU's autocast has rules for, by rule (ATen/autocast_mode.h): computed in the lower precision, in the widest precision of
#: their arguments, or with a float32 result by a special argument. All others are computed in float32.
LOWER = frozenset(
    {
        "_convolution", "convolution", "cudnn_convolution", "cudnn_convolution_transpose", "addmv", "addr", "mv", "einsum", "chain_matmul",
        "linalg_multi_dot", "_thnn_fused_lstm_cell", "_thnn_fused_gru_cell", "lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell",
        "_scaled_dot_product_flash_attention",
    }
)  # fmt: skip
WIDEST = frozenset(
    {"addcdiv", "addcmul", "atan2", "bilinear", "cross", "dot", "vdot", "index_put", "tensordot", "scatter_add"}
)  # fmt: skip
RESULT = frozenset(
    {
        "softmax.int", "log_softmax.int", "cumprod", "cumsum", "linalg_vector_norm", "linalg_matrix_norm", "linalg_matrix_norm.str_ord",
        "sum", "sum.dim_IntList",
    }
)  # fmt: skip
#: Norms take the type of their result in another overload.
_TYPED_NORMS = {"norm.Scalar": "ScalarOpt_dtype", "norm.ScalarOpt_dim": "ScalarOpt_dim_dtype"}
#: Refused by a GPU's autocast; a CPU's computes it in float32.
_BANNED = "binary_cross_entropy"
_BANNED_WORDS = (
    "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast on a GPU; use"
    " binary_cross_entropy_with_logits or BCEWithLogitsLoss"
)

_KEY = "AutocastCPU"
#: PyTorch's table of rules is one for the whole process.
_lock = threading.RLock()


@contextmanager
def autocast(dtype: str, kind: str = "cpu") -> Iterator[None]:
    """Within the block, ops on CPU tensors cast as under `torch.autocast`, with `dtype` as the lower precision.

    `kind`: `GPU` for the rules of a GPU; else those of a CPU.
    """
    with _lock, ExitStack() as stack:
        if kind == GPU:
            stack.enter_context(_rules_of_a_gpu())
        stack.enter_context(torch.autocast("cpu", getattr(torch, dtype)))
        stack.callback(torch.clear_autocast_cache)  # PyTorch clears it at the end of the outermost context only, which may be a user's
        yield


@contextmanager
def without_autocast() -> Iterator[None]:
    """Within the block, ops do not cast."""
    with torch.autocast("cpu", enabled=False):
        yield


def lowered(tensors: tuple) -> tuple:
    """The arguments of an op that autocast computes in its lower precision: float32 and half tensors cast to it."""
    return _cast(tensors, torch.get_autocast_dtype("cpu"))


@contextmanager
def _rules_of_a_gpu() -> Iterator[None]:
    library = torch.library.Library("aten", "IMPL")
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Warning only once for all operators")  # that rules are replaced
            for name, rule in _differences():
                library.impl(name, rule, _KEY, allow_override=True)
        yield
    finally:
        library._destroy()


@cache
def _differences() -> tuple[tuple[str, Callable], ...]:
    """(name, kernel) of every op whose rules on a GPU are not those on a CPU."""
    has, names = torch._C._dispatch_has_kernel_for_dispatch_key, torch._C._dispatch_get_all_op_names()
    by_gpu, by_cpu = (
        {name.removeprefix("aten::") for name in names if name.startswith("aten::") and has(name, key)} for key in ("AutocastCUDA", _KEY)
    )
    kernels: dict[str, Callable] = dict.fromkeys(by_cpu - by_gpu, torch.library.fallthrough_kernel)
    kernels |= {name: _kernel(name) for name in by_gpu - by_cpu}
    kernels[_BANNED] = _refuse
    return tuple(sorted(kernels.items()))


def _overload(name: str) -> torch._ops.OpOverload:
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


def _kernel(name: str) -> Callable:
    op = _overload(name)
    if name in _TYPED_NORMS:
        return partial(_run, getattr(torch.ops.aten.norm, _TYPED_NORMS[name]), _with_type)
    if name in RESULT:
        return partial(_run, op, partial(_with_result_type, op))
    return partial(_run, op, _lower if name in LOWER else _widest if name in WIDEST else _float32)


def _run(op: torch._ops.OpOverload, change: Callable, *args, **kwargs) -> Any:
    """Call `op` with changed arguments, and without autocast inside."""
    with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, _KEY))):
        args, kwargs = change(args, kwargs)
        return op(*args, **kwargs)


def _refuse(*args, **kwargs) -> None:
    raise RuntimeError(_BANNED_WORDS)


def _eligible(item: Any) -> bool:
    return isinstance(item, torch.Tensor) and item.is_floating_point() and item.dtype != torch.float64


def _cast(arguments: Any, dtype: torch.dtype) -> Any:
    return tree_map(lambda item: item.to(dtype) if _eligible(item) and item.dtype != dtype else item, arguments)


def _lower(args: tuple, kwargs: dict) -> tuple[tuple, dict]:
    return _cast((args, kwargs), torch.get_autocast_dtype("cpu"))


def _float32(args: tuple, kwargs: dict) -> tuple[tuple, dict]:
    return _cast((args, kwargs), torch.float32)


def _widest(args: tuple, kwargs: dict) -> tuple[tuple, dict]:
    types = {item.dtype for item in tree_leaves((args, kwargs)) if _eligible(item)}
    return _cast((args, kwargs), torch.float32 if torch.float32 in types else torch.get_autocast_dtype("cpu"))


def _with_result_type(op: torch._ops.OpOverload, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
    place = next(i for i, argument in enumerate(op._schema.arguments) if argument.name == "dtype")
    given = args[place] if place < len(args) else kwargs.get("dtype")
    if given is not None or not _eligible(args[0]):
        return args, kwargs
    return args[:place], {**kwargs, "dtype": torch.float32}


def _with_type(args: tuple, kwargs: dict) -> tuple[tuple, dict]:
    if len(args) == 1:  # the 2-norm
        args = (*args, 2)
    return args, {**kwargs, "dtype": torch.float32 if _eligible(args[0]) else args[0].dtype}
