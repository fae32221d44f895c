"""Random operands for timing one task: floats from a normal distribution, integers in the range that the op accepts; never zeros.

A recurrent layer repeats a product T times. Its operands are so small that neither states nor gradients overflow.
"""

import json
from dataclasses import replace

import torch

from calibrate.elements import Elements, elements_of
from executors.binding import op_tasks
from simulator.plan.bodies.op_class import op_class
from simulator.plan.plan import Plan
from simulator.plan.task import OPTIMIZER_STATE, Task, Value

#: Optimizer states that hold sums of squares, which are never negative.
_SQUARES = frozenset({"sum", "square_avg", "acc_delta", "exp_avg_sq"})

RECTIFIED = "rectified"
#: Uniform within 1 / sqrt(last extent) of zero, as PyTorch initializes the weights of recurrent layers; states then lie in (-1, 1).
BOUNDED = "bounded"
#: By op, the positions of the arguments that hold the statistics which its forward op has saved.
_STATISTICS = {"aten.native_batch_norm_backward.default": (5, 6), "aten.native_layer_norm_backward.default": (3, 4)}
_RECTIFIERS = frozenset({"aten.relu.default", "aten.relu_.default", "aten.hardtanh.default", "aten.hardtanh_.default"})


class OperandPool:
    """Tensors by geometry, shared between keys so that calibrating a large plan takes little memory.

    A tensor that a task changes in place is never shared with one that tasks only read.
    """

    def __init__(self, seed: int = 0, device: torch.device | str = "cpu"):
        self._tensors: dict[tuple, torch.Tensor] = {}
        self._device = torch.device(device)
        self._generator = torch.Generator(self._device).manual_seed(seed)

    def tensor(self, value: Value, elements: Elements, role: str, number: int = 0) -> torch.Tensor:
        """A tensor with the value's geometry and such `elements`; floats are random unless their total is given.

        `number` distinguishes tensors that one task uses together.
        """
        key = (value.shape, value.strides, value.dtype, elements, role, number)
        if key not in self._tensors:
            self._tensors[key] = self._make(value, elements, role)
        return self._tensors[key]

    @property
    def bytes(self) -> int:
        """Bytes of all tensors in the pool."""
        return sum(tensor.untyped_storage().nbytes() for tensor in self._tensors.values())

    def _make(self, value: Value, elements: Elements, role: str) -> torch.Tensor:
        dtype = getattr(torch, value.dtype)
        tensor = torch.empty_strided(value.shape, value.strides, dtype=dtype, device=self._device)
        if elements.total is not None:
            return _with_total(tensor, elements.total)
        if role == "step":  # a count: with a negative one the bias correction would be complex
            return tensor.fill_(10)
        if dtype.is_floating_point or dtype.is_complex:
            if role == BOUNDED:
                bound = value.shape[-1] ** -0.5
                return tensor.uniform_(-bound, bound, generator=self._generator)
            tensor.normal_(generator=self._generator)
            return tensor.abs_() if role == "squares" else tensor.relu_() if role == RECTIFIED else tensor
        if dtype == torch.bool:
            return tensor.bernoulli_(0.5, generator=self._generator)
        if elements.increasing:
            return tensor.copy_((torch.arange(tensor.numel()) * elements.below // max(1, tensor.numel())).view(value.shape))
        return tensor.random_(0, max(1, elements.below), generator=self._generator)


def _with_total(tensor: torch.Tensor, total: float) -> torch.Tensor:
    """Fill a tensor so that its sum is `total`, as evenly as its type allows."""
    count = max(1, tensor.numel())
    ends = (torch.arange(count + 1, dtype=torch.float64) * total / count).round() if not tensor.is_floating_point() else None
    shares = ends.diff() if ends is not None else torch.full((count,), total / count)
    return tensor.copy_(shares[: tensor.numel()].view(tensor.shape))


def geometries(task: Task, plan: Plan) -> dict[str, tuple]:
    """By value, what identifies the pooled tensor of an operand: geometry, role, and its number among operands that share both."""
    changed, non_negative = {operand.value for operand in task.mutates}, rectified(plan)
    recurrent = any(op_class(op.body.target) == "recurrent" for op in op_tasks(task))
    seen: dict[tuple, int] = {}
    geometry_of: dict[str, tuple] = {}
    for name in dict.fromkeys(operand.value for operand in task.inputs):
        value = plan.values[name]
        like = (value.shape, value.strides, value.dtype, BOUNDED if recurrent else _role(value, name in changed, name in non_negative))
        geometry_of[name] = (*like, seen.setdefault(like, 0))
        seen[like] += 1
    return geometry_of


def rectified(plan: Plan) -> set[str]:
    """Values that hold a ReLU's result. A max-pool takes less time on them than on normal numbers, since its branches are predictable."""
    tasks = [task for task in plan.every_task if getattr(task.body, "target", "") in _RECTIFIERS]
    return {operand.value for task in tasks for operand in (*task.writes, *task.mutates)}


def _role(value: Value, changed: bool, non_negative: bool) -> str:
    name = value.name if value.source is None else value.source.value  # as the job calls it: pieces and copies have names of their own
    state = name.partition("::")[2] if value.kind == OPTIMIZER_STATE else ""
    if state == "step":
        return "step"
    return "squares" if state in _SQUARES else "changed" if changed else RECTIFIED if non_negative else "read"


def fill(task: Task, plan: Plan, pool: OperandPool, cuda: bool = False) -> dict[str, torch.Tensor]:
    """A tensor for every value that the task reads or changes.

    With `cuda`, saved statistics of norms are float32 even if the plan, whose graph is captured on the CPU, has them in half precision.
    """
    elements, statistics = elements_of(task), saved_statistics(task) if cuda else frozenset()

    def value(name: str) -> Value:
        own = plan.values[name]
        return replace(own, dtype="float32") if name in statistics and own.dtype in ("bfloat16", "float16") else own

    return {name: pool.tensor(value(name), elements[name], role, number) for name, (*_, role, number) in geometries(task, plan).items()}


def saved_statistics(task: Task) -> frozenset[str]:
    """The values that a norm's backward op reads as the statistics of its forward op."""
    names = set()
    for op in op_tasks(task):
        arguments = json.loads(op.body.args) if op.body.target in _STATISTICS else ()
        positions = _STATISTICS.get(op.body.target, ())
        names |= {op.inputs[arguments[p]["$"]].value for p in positions if arguments[p] is not None}
    return frozenset(names)
