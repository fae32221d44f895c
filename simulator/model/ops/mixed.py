"""Mixed precision without autocast: a copy of the parameters in a lower precision computes, and float32 parameters are updated.

PyTorch's FSDP2 trains this way with `MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)`; so do Megatron-LM and
nanotron with their float32 main parameters and main gradients. Activations have the lower precision throughout, since no op casts them.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch.utils._pytree import tree_map

from simulator.model.graph import Op
from simulator.plan.bodies.opcall import CAST


@contextmanager
def lowered(module: torch.nn.Module, dtype: str) -> Iterator[None]:
    """Within the block, `module` computes with its parameters, and on its inputs, cast to `dtype`; gradients are those of its parameters.

    A tied parameter is cast once. Buffers stay as they are, as FSDP2 leaves them.
    """
    low = getattr(torch, dtype)

    def cast(item: Any) -> Any:
        return item.to(low) if isinstance(item, torch.Tensor) and item.is_floating_point() else item

    places = [child._parameters for child in module.modules()]
    originals = [dict(parameters) for parameters in places]
    casts = {id(parameter): cast(parameter) for own in originals for parameter in own.values() if parameter is not None}
    hook = module.register_forward_pre_hook(lambda _, args, kwargs: tree_map(cast, (args, kwargs)), with_kwargs=True)
    try:
        for parameters, own in zip(places, originals, strict=True):
            parameters.update({name: casts[id(parameter)] for name, parameter in own.items() if parameter is not None})
        yield
    finally:
        hook.remove()
        for parameters, own in zip(places, originals, strict=True):
            parameters.update(own)


def casts_in_place(ops: Sequence[Op], parameters: frozenset[str], gradients: frozenset[str]) -> tuple[Op, ...]:
    """The ops with each cast of a parameter right before the first op that reads it, and in that op's layer.

    Each cast that makes one of the values `gradients` comes right after the last op that writes what it reads, as FSDP2 sums the gradients
    of a block when they are complete. PyTorch records the casts of parameters first, and runs those of their gradients last.
    """
    casts = {op.writes[0].value: op for op in ops if op.body.target == CAST and op.reads[0].value in parameters}
    ends = {op.reads[0].value: op for op in ops if op.body.target == CAST and op.writes[0].value in gradients}
    moved = {op.name for op in (*casts.values(), *ends.values())}
    last = {o.value: op.name for op in ops if op.name not in moved for o in (*op.writes, *op.mutates) if o.value in ends}
    placed: list[Op] = []
    for op in ops:
        if op.name in moved:
            continue
        placed += [replace(casts.pop(o.value), layer=op.layer) for o in op.inputs if o.value in casts]
        placed.append(op)
        placed += [ends[o.value] for o in (*op.writes, *op.mutates) if last.get(o.value) == op.name]
    return tuple(placed)
