"""Ops that write into a tensor given as `out=`. They run as the op without it, whose result is then copied into that tensor."""

from functools import cache
from typing import Any

import torch

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
        raise SchedcastError(f"{func} has no form without out=; expected an op that returns its result; leave out= away")
    return functional


def _signature(func) -> list[tuple[str, str]]:
    return [(argument.name, str(argument.type)) for argument in func._schema.arguments if not argument.is_out]
