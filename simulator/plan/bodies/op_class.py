"""The class and the work of an op, for the roofline of unmeasured ops."""

import json
from collections.abc import Sequence
from typing import NamedTuple

from simulator.plan.ops import name_of, row
from simulator.plan.task import DTYPE_BYTES, HasOperands, Operand, Work


def kernels(target: str, args: str) -> int:
    """How many kernels an op runs with the arguments `args` (JSON): 1 for ops without such a mask."""
    return len(_running(target, json.loads(args))) if row(target).kernels else 1


def reads(task: HasOperands, target: str, args: str) -> tuple[float, ...]:
    """How often an op's kernels read each of the task's inputs: once, unless a kernel computes dX; of a table, the share that they read."""
    own = row(target)
    if own.kernels is None and own.looks_up is None:
        return (1,) * len(task.inputs)
    arguments = json.loads(args)
    if own.looks_up is not None:
        table = arguments[own.looks_up]["$"]
        share = _looked_up(task, name_of(target), arguments) / max(1, task.inputs[table].elements)
        return tuple(min(1.0, share) if number == table else 1 for number in range(len(task.inputs)))
    counts = [0] * len(task.inputs)
    for positions in _running(target, arguments):
        for position in positions:
            if isinstance(arguments[position], dict):
                counts[arguments[position]["$"]] += 1
    return tuple(counts)


def _looked_up(task: HasOperands, name: str, arguments: list) -> int:
    """The elements of its table that an op reads: as many as it returns; of the scores in a loss one by label, and none in backward."""
    if not name.startswith("nll_loss"):
        return task.writes[0].elements
    return 0 if name.endswith("backward") else task.inputs[arguments[1]["$"]].elements


def _running(target: str, arguments: list) -> list[tuple[int, ...]]:
    """What each kernel that runs reads."""
    first, *others = arguments[-1]
    return [own for own, runs in zip(row(target).kernels or (), (first, any(others)), strict=True) if runs]


#: A product of groups of rows, each with its own matrix; a product; and one that is added to what the task changes.
GROUPED_PRODUCT, PRODUCT, ADDED_PRODUCT = "aten._grouped_mm.default", "aten.mm.default", "schedcast.add_mm.default"
#: The classes of ops that run matrix products of cuBLAS, also within other kernels.
WITH_PRODUCTS = frozenset({"matmul", "recurrent"})
#: A grouped convolution with at least this many channels per group is as fast as a plain one with equally many FLOPs. Measured on one core
#: of an EPYC (Zen 4), 3x3 from 128 to 128 channels: equal from 128 per group down to 16, three quarters of the speed at 8, a third and less
#: below. Not measured on a GPU.
_WIDE_GROUP = 16
#: Fewer channels leave a Winograd kernel without work to share; libraries run the first layer of a network directly.
_WINOGRAD_CHANNELS = 16


def op_class(target: str, narrow_groups: bool = False) -> str:
    """The class of `aten.NAME.OVERLOAD`: that of its row, or "grouped-conv" for convolutions in narrow groups."""
    listed = row(target).op_class
    return "grouped-conv" if listed == "conv" and narrow_groups else listed


def time_steps(task: HasOperands) -> int:
    """The time steps of a recurrent layer's op; 0 for other ops. Its first result has the states or the gates of all steps."""
    target = task.body.op
    if op_class(target) != "recurrent":
        return 0
    rows = task.writes[0].shape[0]
    return rows if "_backward" in target else rows - 1  # the states begin with the initial one


def work_of(task: HasOperands, target: str, args: str, flops: float) -> Work:
    """The work of an aten op on the operands of `task`: `flops` (at least one per output element), and the bytes that its kernels move."""
    read = sum(times * operand.bytes for times, operand in zip(reads(task, target, args), task.inputs, strict=True))
    moved = read + sum(o.bytes for o in (*task.mutates, *task.writes))
    elements = sum(o.elements for o in (*task.writes, *task.mutates))
    return Work(op_class(target, _narrow_groups(task, target, args)), max(flops, float(elements)), float(moved))


def _narrow_groups(task: HasOperands, target: str, args: str) -> bool:
    weight = row(target).weight
    if weight is None:
        return False
    arguments, groups = json.loads(args), weight + 7
    if len(arguments) <= groups or arguments[groups] == 1:
        return False
    return task.inputs[arguments[weight]["$"]].shape[1] < _WIDE_GROUP


def winograd(task: HasOperands, target: str, args: str) -> bool:
    """Whether a convolution may run a Winograd kernel: 3x3, stride 1, not dilated, not transposed, one group and enough channels."""
    plain = _plain(task, target, args)
    return plain is not None and plain.weight.shape[2:] == (3, 3) and min(plain.weight.shape[:2]) >= _WINOGRAD_CHANNELS


class _Plain(NamedTuple):
    """A convolution with stride 1, not dilated, not transposed and in one group."""

    weight: Operand
    images: Operand
    padding: Sequence[int]


def _plain(task: HasOperands, target: str, args: str) -> _Plain | None:
    """The plain convolution that an op is; None for other ops."""
    first = row(target).weight
    if first is None:
        return None
    arguments = json.loads(args)
    strides, padding, dilation, transposed, _, groups = arguments[first + 2 : first + 8]
    if transposed or groups != 1 or {*strides, *dilation} != {1}:
        return None
    weight, images = (task.inputs[arguments[position]["$"]] for position in (first, first - 1))
    return _Plain(weight, images, padding)


#: Bytes that rows of a matrix must be multiples of, for tensor cores to load it (NVIDIA, "Matrix Multiplication Background User's Guide",
#: requirements to use tensor cores).
ALIGNED_BYTES = 16


def pointwise(task: HasOperands, target: str, args: str) -> tuple[Operand, Operand] | None:
    """The weight and the images of a convolution that multiplies images as they lie; None for other ops.

    It is 1x1 with stride 1, in one group, without padding, and the images have their channels first and are aligned.
    """
    plain = _plain(task, target, args)
    if plain is None or any(plain.padding) or {*plain.weight.shape[2:]} != {1}:
        return None
    channel = plain.images.strides[1]
    aligned = channel > 1 and channel * DTYPE_BYTES[plain.images.dtype] % ALIGNED_BYTES == 0
    return (plain.weight, plain.images) if aligned else None
