"""The simulation's view of an aten op: what it reads, writes and allocates, and whether a GPU would run a kernel for it."""

from collections.abc import Iterable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch._subclasses import FakeTensor

#: Ops that make the host wait for the stream, because the host needs their result or its shape at once.
_SYNCHRONIZE = frozenset(
    f"aten.{name}"
    for name in ("_local_scalar_dense", "equal", "nonzero", "masked_select", "_unique2", "unique_dim", "unique_consecutive", "bincount")
) | {"aten._ctc_loss", "aten._ctc_loss_backward"}  # they copy lengths from the host's pageable memory

#: Ops that only allocate memory, or change the memory of a tensor.
_ALLOCATE = frozenset(
    f"aten.{name}"
    for name in ("empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided", "resize_", "set_")
)

#: Ops that do not read the memory that they write.
_OVERWRITE = frozenset(f"aten.{name}" for name in ("copy_", "fill_", "zero_", "normal_", "uniform_", "random_", "bernoulli_"))

#: Ops that update running statistics although their schema does not say so: the positions of the statistics and of the argument `training`.
_BATCH_NORMS = {"aten.native_batch_norm": ((3, 4), 5), "aten.cudnn_batch_norm": ((3, 4), 5)}


def tensors_in(*trees: Any) -> list[Tensor]:
    """The tensors in nested arguments or results."""
    tensors: list[Tensor] = []
    _collect(trees, tensors)
    return tensors


def _collect(trees: Iterable[Any], tensors: list[Tensor]) -> None:
    for tree in trees:
        if isinstance(tree, Tensor):
            tensors.append(tree)
        elif isinstance(tree, (list, tuple)):
            _collect(tree, tensors)
        elif isinstance(tree, dict):
            _collect(tree.values(), tensors)


def is_simulated(args: tuple, kwargs: dict) -> bool:
    """Whether the op runs on real CPU tensors. Ops of shape propagation do not."""
    for leaf in tensors_in(args, kwargs):
        if isinstance(leaf, FakeTensor) or not leaf.is_cpu:
            return False
    device = kwargs.get("device")
    return device is None or torch.device(device).type == "cpu"


class Call:
    """An op and its arguments; `finish` adds its results."""

    def __init__(self, func: OpOverload, args: tuple, kwargs: dict):
        self.func, self.args, self.kwargs = func, args, kwargs
        self.name = _name(func)
        self.reads: list[Tensor] = []
        self.writes: list[Tensor] = []
        for position, (name, write) in enumerate(_parameters(func)):
            value = args[position] if position < len(args) else kwargs.get(name)
            if value is not None:
                _collect((value,), self.writes if write else self.reads)
        positions, training = _BATCH_NORMS.get(self.name, ((), 0))
        if positions and args[training]:
            self.writes += [args[p] for p in positions if args[p] is not None]
        self.results: Any = None
        self.allocated: list[Tensor] = []

    def finish(self, results: Any) -> None:
        """Add the results. Those that share no storage with an argument are new memory."""
        self.results = results
        arguments = {t.untyped_storage()._cdata for t in (*self.reads, *self.writes)}
        self.allocated = [t for t in tensors_in(results) if t.untyped_storage()._cdata not in arguments]

    @property
    def synchronizes(self) -> bool:
        """Whether the host waits for the result."""
        if self.name in ("aten.index", "aten.index_put", "aten.index_put_", "aten._index_put_impl_"):
            return any(t.dtype in (torch.bool, torch.uint8) for t in tensors_in(self.args[1]))
        return self.name in _SYNCHRONIZE

    @property
    def has_kernel(self) -> bool:
        """Whether a GPU would run a kernel for the op. It does not for views, metadata and allocation."""
        return self.name not in _ALLOCATE and bool(self.allocated or self.writes or self.synchronizes)

    @property
    def overwrites(self) -> bool:
        """Whether the op does not read the memory that it writes."""
        return self.name in _OVERWRITE or self.func._overloadname.endswith("out")

    @property
    def kind(self) -> str:
        """The op and the element type of its first operand: `aten.mm of bfloat16`."""
        first = next(iter((*self.reads, *self.writes, *self.allocated)), None)
        return self.name if first is None else f"{self.name} of {str(first.dtype).removeprefix('torch.')}"

    @property
    def elements(self) -> int:
        """The number of elements that the op computes."""
        return sum(t.numel() for t in (*self.allocated, *self.writes)) or 1

    @property
    def non_blocking(self) -> bool:
        """Whether a copy may return before it has ended."""
        return bool(self.kwargs.get("non_blocking") or (self.name == "aten.copy_" and len(self.args) > 2 and self.args[2]))


@cache
def _name(func: OpOverload) -> str:
    return str(func.overloadpacket)


@cache
def _parameters(func: OpOverload) -> tuple[tuple[str, bool], ...]:
    return tuple((a.name, a.alias_info is not None and a.alias_info.is_write) for a in func._schema.arguments)
