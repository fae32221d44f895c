"""Arguments of aten ops as JSON text and back. A tensor becomes `{"$": i}`, a dtype `{"dtype": "float32"}`.

The op `schedcast::expect`: a check, in every step, that a branch of the model goes the way that the plan was made for.
"""

import base64
import json
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from simulator.model.ops import cross_entropy as _loss  # noqa: F401 - registers torch.ops.schedcast.cross_entropy
from simulator.model.ops import products as _products  # noqa: F401 - registers torch.ops.schedcast.add_mm
from simulator.model.ops import pruned as _registered  # noqa: F401 - registers torch.ops.schedcast.pruned
from simulator.model.ops import recurrent_layers as _recurrent  # noqa: F401 - registers torch.ops.schedcast.rnn and others
from simulator.plan.task import check_op
from traces.errors import SchedcastError


class OtherBranchError(SchedcastError):
    """A number on which the course of the step depends is not the one that the plan was made for."""


def _expect(value: Tensor, expected: float) -> Tensor:
    """Raise OtherBranchError unless `value`, a tensor with one element, is `expected`. Returns whether it is."""
    same = _same(value, expected)
    if not bool(same):
        raise OtherBranchError(
            f"the model decides by a number of its batch what to compute: it is {float(value):g} now, and was {expected:g} in the batch"
            " that the plan was made for; expected batches, and microbatches, that take the same branches"
        )
    return same


def _same(value: Tensor, expected: float) -> Tensor:
    """Whether two numbers are equal; floats up to the order in which they were summed."""
    return torch.isclose(value, torch.full_like(value, expected), rtol=1e-3) if value.is_floating_point() else value == expected


def _expect_on_gpu(value: Tensor, expected: float) -> Tensor:
    """Check without making the host wait."""
    same = _same(value, expected)
    torch._assert_async(same, "the model decides by a number of its batch what to compute, and this batch takes another branch")
    return same


torch.library.define("schedcast::expect", "(Tensor value, float expected) -> Tensor")
torch.library.impl("schedcast::expect", "CPU")(_expect)
torch.library.impl("schedcast::expect", "CUDA")(_expect_on_gpu)
torch.library.register_fake("schedcast::expect")(lambda value, expected: value.new_empty(value.shape, dtype=torch.bool))


def name_of(item: torch.dtype | torch.layout | torch.memory_format) -> str:
    """`torch.float32` -> `float32`."""
    return str(item).removeprefix("torch.")


def encode(args: Any, kwargs: dict[str, Any], tensor: Callable[[torch.Tensor], Any] | None = None) -> tuple[str, str]:
    """JSON texts of positional and named arguments. `tensor` returns the number after `$` for a tensor."""

    def plain(item: Any) -> Any:
        if isinstance(item, torch.Tensor):
            if tensor is None:
                raise TypeError("an argument is a tensor; expected plain values")
            return {"$": tensor(item)}
        if item is None or isinstance(item, bool | str):
            return item
        if isinstance(item, list | tuple | torch.Size):
            return [plain(i) for i in item]
        if isinstance(item, torch.dtype | torch.layout | torch.memory_format):
            return {type(item).__name__: name_of(item)}
        if isinstance(item, torch.device):
            return {"device": None}  # the device of the task
        if isinstance(item, complex):
            return {"complex": repr(item)}
        if isinstance(item, float | torch.SymFloat):
            item = float(item)
            return item if math.isfinite(item) else {"float": repr(item)}
        return int(item)

    # The plan chooses devices, and the executor chooses where pinned memory is.
    named = {k: plain(v) for k, v in kwargs.items() if k != "pin_memory"}
    return json.dumps(plain(list(args)), separators=(",", ":")), json.dumps(named, separators=(",", ":"))


def decode(text: str, device: torch.device) -> Any:
    """Arguments from JSON text. `{"$": i}` becomes a `Slot`."""
    return decode_item(json.loads(text), device)


class Slot(int):
    """Position of a tensor argument among a task's operands."""


def decode_item(item: Any, device: torch.device) -> Any:
    """One argument from its JSON form. Raises ValueError for anything that no op takes."""
    if isinstance(item, list):
        return [decode_item(i, device) for i in item]
    if not isinstance(item, dict):
        return item
    ((kind, value),) = item.items()
    if kind == "$":
        return Slot(value)
    if kind == "device":
        return device
    if kind in ("float", "complex"):
        return {"float": float, "complex": complex}[kind](value)
    constant = getattr(torch, str(value), None) if kind in ("dtype", "layout", "memory_format") else None
    if constant is None or not isinstance(constant, getattr(torch, kind)):
        raise ValueError(f"unknown argument {item}")
    return constant


def resolve(target: str) -> torch._ops.OpOverload:
    """The op called `aten.NAME.OVERLOAD`, or one of this project's ops, `schedcast.NAME.default` (`recurrent_layers`, `pruned`, `expect`).

    Raises SchedcastError for an op that plans may not call (`simulator.plan.task`), and for one that this version of PyTorch lacks.
    """
    try:
        check_op(target)
    except ValueError as error:
        raise SchedcastError(
            f"{error}; use a model without it, or add it to simulator/plan/ops.json if it computes tensors only"
        ) from error
    namespace, name, overload = target.split(".")
    op = getattr(getattr(getattr(torch.ops, namespace), name, None), overload, None)
    if op is None:
        raise SchedcastError(f"PyTorch {torch.__version__} has no op {target}; make the plan again with this version")
    return op


# The content of a tensor as text, for what a model keeps outside its parameters and buffers, and back.


def text_of(tensor: torch.Tensor) -> str:
    """Return the elements of a tensor, in their order, as base64 text."""
    elements = tensor.detach().contiguous().view(-1)
    return base64.b64encode(elements.view(torch.uint8).numpy().tobytes() if elements.numel() else b"").decode()


def tensor_of(text: str, shape: tuple[int, ...], dtype: str) -> torch.Tensor:
    """Return the tensor whose elements `text_of` wrote."""
    data = bytearray(base64.b64decode(text))
    return (
        (torch.frombuffer(data, dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)).view(getattr(torch, dtype)).view(shape)
    )
