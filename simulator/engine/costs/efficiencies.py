"""Task times on hardware that was not measured: the committed table `efficiencies.json`, a roofline per op class.

t = least_s · launches + max(flops / (peak · compute), bytes / (bandwidth · memory)); rows with `adds` take a sum instead of the maximum,
and rows with `idle` or `saved` do more or fewer FLOPs (`EfficiencyRow`).
Every number of the table is `[value, error, source]`: the error is one standard deviation of its logarithm, the source a name under
"sources". CPU rows are for one core. GPU rows are fitted by tools/fit_efficiencies.py and scored by tools/efficiencies.py on GPUs that were
excluded from the fit; those of convolutions are fitted and scored on whole steps by tools/fit_steps.py. Matrix products on tensor cores
have a separate model (`products`).
"""

import json
import math
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict

from simulator.engine.costs import channel_blocks, products
from simulator.engine.costs.channel_blocks import ChannelBlocks, Channels
from simulator.engine.costs.products import OPERANDS, Attention, Product, ProductKernel, of_hopper, serves
from simulator.engine.costs.site import Number, Site, figure
from simulator.plan.bodies.op_class import ALIGNED_BYTES, GROUPED_PRODUCT, pointwise, winograd
from simulator.plan.bodies.opcall import CAST, kernel_of
from simulator.plan.keys import SHORT
from simulator.plan.ops import row
from simulator.plan.task import DTYPE_BYTES, HasOperands, Operand, Task

#: Of one work, or of several of one class.
_N = TypeVar("_N", float, np.ndarray)

TABLE = Path(__file__).with_name("efficiencies.json")
#: The class of attention whose scores stay in one kernel.
ATTENTION = "matmul.attention"
#: Classes whose kernels use tensor cores if the precision allows it.
DENSE = frozenset({"matmul", ATTENTION, "conv", "grouped-conv"})
#: The row of convolutions with fewer multiplications than the direct ones of class `conv`.
WINOGRAD = "conv.winograd"
#: The rows of convolutions in 16 bits, which tensor cores multiply in channels-last order: others change the layout before and after.
HALF, CHANNELS_LAST = "conv.half", "conv.channels-last"
#: The row of 1x1 convolutions in 16 bits that multiply their images as they lie, as kernels for Hopper do: that of products.
POINTWISE = "conv.pointwise"
#: The rows of normalizations of images in 16 bits: those in channels-last order have separate kernels, and those of bf16 are PyTorch's own.
NORM_HALF, NORM_CHANNELS_LAST, NORM_PYTORCH = "norm.half", "norm.channels-last", "norm.pytorch"
#: The rows of pooling in 16 bits with channels first, which takes as long for an element as in 32.
POOLS_HALF = {"pool": "pool.half", "pool.backward": "pool.half-backward"}
#: The row of copies from 16 bits to 32. PyTorch converts them by the number, but those from 32 to 16 by the vector.
WIDENING = "elementwise.widening"
#: What of its extents the time of a kernel depends on.
Extents = Product | Attention | Channels
_HALVES = frozenset({"float16", "bfloat16"})
#: The row used for classes that the table lacks.
DEFAULT_CLASS = "elementwise"
#: Tensors read and written by an update that is not fused, for optimizers that the table lacks.
DEFAULT_TENSORS = 20.0


class BlockShape(BaseModel):
    """What a block of a typical kernel of a class takes of an SM, and what it computes.

    `threads`, `registers` (of a thread) and `shared_bytes`: medians over the time of the kernels of the class in the source. `outputs`:
    elements of the result; None: one channel of it.
    """

    model_config = ConfigDict(extra="forbid")

    threads: int
    registers: int
    shared_bytes: int
    outputs: int | None = None
    source: str


class EfficiencyRow(BaseModel):
    """One op class: fractions of peak FLOP/s (by precision) and of bandwidth, and the least time of a kernel (on a CPU: of an op call).

    `adds`: computing and moving data take turns (tiles in and out, layouts changed) rather than overlap; such an op is as fast from the
    cache as from memory. `overlaps`: its kernel moves most data while it computes, so that the cubes of both times add up, as those of a
    product do. `cold_start_s`: extra time with nothing in the cache. `tile`: output elements per block. `split_flops`: a kernel
    splits its FLOPs over blocks of this size until the SMs are full. `saved`: times fewer FLOPs than those counted, of an algorithm that
    computes the same with fewer. `idle`: few blocks leave SMs idle, so that computing takes 1 + idle · SMs / blocks times as long, where
    a kernel has blocks for its outputs or for its FLOPs, whichever are more. `block`: what a block takes of an SM, for devices that say
    what an SM holds. `product`: the kernels of matrix products on tensor cores, which the other numbers do not describe.
    `channel_blocks`: kernels with a block for each channel; the other numbers describe the kernel that follows. `fed`: FLOPs in 16 bits for
    which an SM's tensor cores get operands in a cycle through its shared memory and registers, and half as many in TF32, whose operands are
    twice as long. Its time adds to that of multiplying, so that cores with a high rate reach a smaller share of it: those of a GeForce,
    whose rate with sums in FP32 is halved, come near it, and those of an H100 do not.
    """

    model_config = ConfigDict(extra="forbid")

    compute: dict[str, Number]
    memory: Number
    least_s: Number
    adds: bool = False
    overlaps: bool = False
    cold_start_s: Number | None = None
    tile: Number | None = None
    blocks_per_sm: Number | None = None
    split_flops: Number | None = None
    saved: Number | None = None
    idle: Number | None = None
    fed: Number | None = None
    block: BlockShape | None = None
    product: ProductKernel | None = None
    channel_blocks: ChannelBlocks | None = None

    def together(self, compute_s: _N, memory_s: _N) -> _N:
        """The time of computing and moving data."""
        if self.overlaps:
            return (compute_s**3 + memory_s**3) ** (1 / 3)
        if self.adds:
            return compute_s + memory_s
        return np.maximum(compute_s, memory_s) if isinstance(compute_s, np.ndarray) else max(compute_s, memory_s)


class EfficiencyRows(BaseModel):
    """The op classes of one kind of device, and the speed of its cache: as a multiple of the memory's, or in bytes/s to each SM."""

    model_config = ConfigDict(extra="forbid")

    warm_bandwidth: Number | None = None
    cache_bytes_per_s_per_sm: Number | None = None
    classes: dict[str, EfficiencyRow]

    def cache_speedup(self, site: "Site") -> float:
        """Bandwidth of the cache as a multiple of the memory's."""
        if self.cache_bytes_per_s_per_sm is not None:
            return max(1.0, self.cache_bytes_per_s_per_sm.value * site.sms / site.bandwidth_bytes_per_s)
        return self.warm_bandwidth.value if self.warm_bandwidth is not None else 1.0

    def row(self, op_class: str) -> EfficiencyRow:
        """The row of a class, else of the text before its first dot (`update` for `update.adam:fused`), else of `elementwise`.

        That of products serves pointwise convolutions too.
        """
        op_class = "matmul" if op_class == POINTWISE else op_class
        return self.classes.get(op_class) or self.classes.get(op_class.partition(".")[0]) or self.classes[DEFAULT_CLASS]


class Seconds(NamedTuple):
    """Time with all reads in the cache and with none, and the error of the number that dominates."""

    warm: float
    cold: float
    error: float


@cache
def table() -> dict[str, EfficiencyRows]:
    """The committed table by kind of device ("gpu", "cpu")."""
    document = json.loads(TABLE.read_text())
    return {kind: EfficiencyRows.model_validate(document[kind]) for kind in ("gpu", "cpu")}


class Terms(NamedTuple, Generic[_N]):
    """The terms of a time: least times of the kernels, computing, and moving bytes. The last two are added, or the larger one counts."""

    least_s: float
    compute_s: _N
    memory_s: _N

    @property
    def longest(self) -> str:
        """The name of the number that dominates: `least_s`, `compute` or `memory`."""
        return max((self.least_s, "least_s"), (self.compute_s, "compute"), (self.memory_s, "memory"))[1]


def terms(
    site: Site,
    row: EfficiencyRow,
    flops: _N,
    moved_bytes: _N,
    precision: str = "fp32",
    launches: int = 1,
    outputs: _N | None = None,
) -> Terms[_N]:
    """The terms of the time of some work in the class of `row`, with nothing in the cache. `outputs`: elements that blocks share."""
    if row.saved is not None:
        flops /= row.saved.value
    if row.idle is not None and row.tile is not None and row.split_flops is not None and outputs is not None:
        larger = np.maximum if isinstance(flops, np.ndarray) else max
        blocks = larger(outputs / row.tile.value, flops / max(1, launches) / row.split_flops.value)
        flops *= 1 + row.idle.value * site.sms / blocks
    per_flop_s = 1 / (figure(site.peak_flops, precision) * figure(row.compute, precision).value)
    if row.fed is not None:
        per_flop_s += operands(site, precision) / (row.fed.value * site.sms * site.cycles_per_s)
    by_compute = flops * per_flop_s
    by_memory = moved_bytes / (site.bandwidth_bytes_per_s * row.memory.value)
    return Terms(max(1, launches) * row.least_s.value, by_compute, by_memory)


def operands(site: Site, precision: str) -> float:
    """The length, over 16 bits, of what tensor cores multiply in a precision; 0 if the site multiplies in it as in FP32."""
    known = precision in site.peak_flops or (precision == "fp16" and "bf16" in site.peak_flops)
    return OPERANDS.get(precision, 0.0) if known else 0.0


def _by_extents(
    row: EfficiencyRow, site: Site, precision: str, extents: Extents | None, moved_bytes: Any, cached: bool = False
) -> tuple[Any, Number] | None:
    """The time of kernels that depends on their extents, with all reads in the cache or with none, and the number that decides it.

    The time is a number, or an array if the extents are. None if the row has no such kernels, or the site does not run them.
    """
    if isinstance(extents, Channels):
        if row.channel_blocks is None:
            return None
        after_s = terms(site, row, 0.0, moved_bytes, precision).memory_s if extents.passes == 1 else 0.0
        return channel_blocks.seconds(row.channel_blocks, site, extents, cached) + after_s, row.channel_blocks.round_cycles
    if extents is None or row.product is None or not serves(site, precision, extents):
        return None
    number = row.product.attention if isinstance(extents, Attention) else row.product.compute
    return products.seconds(row.product, site, precision, extents, 0.0 if cached else moved_bytes), number


def seconds(
    site: Site,
    op_class: str,
    flops: float,
    moved_bytes: float,
    precision: str = "fp32",
    launches: int = 1,
    rows: EfficiencyRows | None = None,
    outputs: float | None = None,
    extents: Extents | None = None,
) -> Seconds:
    """Time of some work in an op class, by the committed table or by `rows`. `outputs`: as in `terms`; `extents`: those of the task."""
    rows = rows or table()[site.kind]
    row = rows.row(op_class)
    if (known := _by_extents(row, site, precision, extents, moved_bytes)) is not None:
        cached = _by_extents(row, site, precision, extents, moved_bytes, cached=True) if moved_bytes <= site.cache_bytes else None
        return Seconds((cached or known)[0], known[0], known[1].error)
    parts = terms(site, row, flops, moved_bytes=moved_bytes, precision=precision, launches=launches, outputs=outputs)
    speedup = rows.cache_speedup(site) if moved_bytes <= site.cache_bytes and not row.adds else 1.0
    numbers = {"least_s": row.least_s, "compute": figure(row.compute, precision), "memory": row.memory}
    cold_start = row.cold_start_s.value if row.cold_start_s is not None else 0.0
    warm = parts.least_s + row.together(parts.compute_s, parts.memory_s / speedup)
    return Seconds(warm, cold_start + parts.least_s + row.together(parts.compute_s, parts.memory_s), numbers[parts.longest].error)


def cold_s(
    site: Site,
    op_class: str,
    flops: np.ndarray,
    moved_bytes: np.ndarray,
    precision: str = "fp32",
    launches: int = 1,
    outputs: np.ndarray | None = None,
    extents: Extents | None = None,
) -> np.ndarray:
    """`seconds(...).cold` of several works of one class."""
    row = table()[site.kind].row(op_class)
    if (known := _by_extents(row, site, precision, extents, moved_bytes)) is not None:
        return known[0]
    parts = terms(site, row, flops, moved_bytes=moved_bytes, precision=precision, launches=launches, outputs=outputs)
    cold_start = row.cold_start_s.value if row.cold_start_s is not None else 0.0
    return cold_start + parts.least_s + row.together(parts.compute_s, parts.memory_s)


def precision_of(task: Task, op_class: str, float32: str) -> str:
    """The precision whose peak applies to a task. `float32`: the one that dense kernels use on float32 operands (`float32_precision`)."""
    operands: tuple[Operand, ...] = (*task.inputs, *task.writes)
    return _precision({o.dtype for o in operands}, op_class, float32)


def precision_of_key(key: str, op_class: str, float32: str) -> str:
    """The precision whose peak applies to the task of a cost key, whose text names data types. Other arguments: `precision_of`."""
    return _precision({dtype for dtype, short in SHORT.items() if f"|{short}[" in key}, op_class, float32)


def _precision(dtypes: set[str], op_class: str, float32: str) -> str:
    if dtypes & {"float64", "complex128"}:
        return "fp64"
    if op_class not in DENSE:
        return "fp32"
    if "float16" in dtypes:
        return "fp16"
    return "bf16" if "bfloat16" in dtypes else float32_precision(op_class, float32)


def float32_precision(op_class: str, float32: str) -> str:
    """The precision of a class of ops on float32 operands, if dense kernels run in `float32`: fp32, tf32 or PyTorch's default.

    Products follow `torch.backends.cuda.matmul.allow_tf32`, those of attention in its math form too, and convolutions
    `torch.backends.cudnn.allow_tf32`. No switch changes the kernel of fused attention, which has the accuracy of FP32 (`products`).
    """
    if op_class not in DENSE or op_class == ATTENTION:
        return "fp32"
    return float32 if float32 != "default" else "tf32" if op_class in ("conv", "grouped-conv") else "fp32"


def fast(task: HasOperands) -> bool:
    """Whether the task may run a Winograd kernel."""
    return bool(task.body.op) and winograd(task, task.body.op, task.body.args)


def row_class(task: HasOperands, op_class: str, precision: str, site: Site, may_be_fast: bool | None = None) -> str:
    """The class of the row for a task: convolutions of float32 outside of tensor cores run Winograd kernels where they can.

    Convolutions and normalizations in 16 bits have separate rows by layout, and 1x1 convolutions may be products. `may_be_fast`: `fast` of
    the task, if that is known.
    """
    if task.body.op == CAST and task.inputs[0].dtype in _HALVES and '"float32"' in task.body.kwargs:
        return WIDENING
    if op_class not in ("conv", "norm", *POOLS_HALF) or not task.body.op:
        return op_class
    half = task.inputs[0].dtype in _HALVES
    if op_class in POOLS_HALF:
        return POOLS_HALF[op_class] if half and not any(map(_channels_last, task.inputs)) else op_class
    last = _channels_last(task.inputs[0])
    if op_class == "norm":
        if not half or last:
            return NORM_CHANNELS_LAST if half else op_class
        return NORM_PYTORCH if _channels(task) is not None else NORM_HALF
    if precision in ("bf16", "fp16"):
        if last:
            return CHANNELS_LAST
        return POINTWISE if of_hopper(site) and pointwise(task, task.body.op, task.body.args) else HALF
    if precision != "fp32":
        return op_class
    return WINOGRAD if (fast(task) if may_be_fast is None else may_be_fast) else op_class


def _channels_last(operand: Operand) -> bool:
    return len(operand.shape) > 1 and operand.strides[1] == 1


def reached(task: Task, op_class: str, precision: str, site: Site) -> float:
    """The share of a GPU's peak that a task's kernel reaches while it computes; above 1 if it does far fewer FLOPs than those counted."""
    row = table()["gpu"].row(row_class(task, op_class, precision, site))
    return figure(row.compute, precision).value * (row.saved.value if row.saved is not None else 1.0)


def outputs(task: HasOperands) -> float | None:
    """The elements of a convolution's result, or in backward of its gradient, which the kernel's blocks share; None for other tasks."""
    own = row(task.body.op)
    if own.weight is None:
        return None
    return float((task.inputs if own.kernels else task.writes)[0].elements)


def extents(task: HasOperands) -> Extents | None:
    """The matrix product, the attention, or the channels of a task whose time depends on them; None for other tasks.

    Groups of rows are assumed to be equally large. A convolution backward with both results is two products like that of its images.
    """
    if (op := row(task.body.op).attention) is not None:
        arguments = json.loads(task.body.args)
        query, key = (task.inputs[each["$"]] for each in arguments[op.query : op.query + 2])
        seen = 0.5 if len(arguments) > op.causal and arguments[op.causal] is True else 1.0
        moved = float(sum(o.bytes for o in (*task.inputs, *task.writes)))
        batch, (rows, width) = math.prod(query.shape[:-2]), query.shape[-2:]
        made_for_chip = bool(kernel_of(task.body.kwargs))
        return Attention(
            batch=float(batch),
            queries=float(rows),
            keys=float(key.shape[-2]),
            width=float(width),
            seen=seen,
            passes=op.passes,
            moved=moved,
            made_for_chip=made_for_chip,
        )
    if row(task.body.op).weight is not None:
        return _pointwise_product(task)
    return _channels(task) or _product(task)


def _product(task: HasOperands) -> Product | None:
    if task.body.op == GROUPED_PRODUCT:
        left, right, *_ = task.inputs
        size = float(DTYPE_BYTES[left.dtype])
        if len(left.shape) == 2 and len(right.shape) == 3:
            groups, depth, columns = map(float, right.shape)
            return Product(groups, left.shape[0] / groups, columns, depth, size)
        if len(left.shape) == len(right.shape) == 2:
            groups = float(task.writes[0].shape[0])
            return Product(groups, float(left.shape[0]), float(right.shape[1]), left.shape[1] / groups, size)
    if not row(task.body.op).multiplies:
        return None
    inputs = task.inputs[: len(task.inputs) - len(task.mutates)]
    left, right = inputs[-2:] if len(inputs) > 1 else inputs * 2
    if left.shape[-1] != right.shape[-2]:
        return None
    size, aligned = float(DTYPE_BYTES[left.dtype]), _aligned((left, right), right.shape[-1])
    return Product(float(math.prod(left.shape[:-2])), float(left.shape[-2]), float(right.shape[-1]), float(left.shape[-1]), size, aligned)


def _aligned(operands: Iterable[Operand], columns: int) -> bool:
    """Whether rows of all matrices begin where tensor cores can load them at once. `columns`: of the result, which has no gaps."""
    strides = (stride * DTYPE_BYTES[o.dtype] for o in operands for extent, stride in zip(o.shape, o.strides, strict=True) if extent > 1)
    sizes = {DTYPE_BYTES[o.dtype] for o in operands}
    return all(own % ALIGNED_BYTES == 0 or own in sizes for own in strides) and columns * max(sizes) % ALIGNED_BYTES == 0


def _pointwise_product(task: HasOperands) -> Product | None:
    """The product of a convolution in 16 bits that multiplies its images as they lie, [out, in] by [in, pixels] for each image."""
    operands = pointwise(task, task.body.op, task.body.args) if task.inputs[0].dtype in _HALVES else None
    if operands is None:
        return None
    weight, images = operands
    count, pixels = float(images.shape[0]), float(math.prod(images.shape[2:]))
    out, into = map(float, weight.shape[:2])
    if not row(task.body.op).kernels:
        return Product(count, out, pixels, into, 2.0)
    of_images, *others = json.loads(task.body.args)[-1]
    of_weight = any(others)
    if of_images:
        return Product((2 if of_weight else 1) * count, into, pixels, out, 2.0)
    return Product(1.0, out, into, count * pixels, 2.0)


def _channels(task: HasOperands) -> Channels | None:
    """The channels of a batch norm in bf16 with channels first, which PyTorch's own kernels normalize."""
    passes = row(task.body.op).channel_passes
    if not passes or task.inputs[0].dtype != "bfloat16" or len(task.inputs[0].shape) < 3 or _channels_last(task.inputs[0]):
        return None
    images, channels, *sizes = map(float, task.inputs[0].shape)
    return Channels(images, channels, math.prod(sizes), passes)


@cache
def update_tensors() -> dict[str, float]:
    """By optimizer, the number of parameter-sized tensors that the forms other than fused read and write in all passes together."""
    document = json.loads(TABLE.read_text())
    return {optimizer: Number(*number).value for optimizer, number in document["update_tensors"].items()}


def traffic(task: Task) -> float:
    """Bytes that a task moves. An update that is not fused makes several passes and moves more than the bytes of its work."""
    body = task.body
    if not body.is_update or body.form == "fused":
        return body.work(task).bytes
    return update_tensors().get(body.optimizer, DEFAULT_TENSORS) * float(sum(o.bytes for o in body.gradients(task)))


def bound_by_compute(task: Task, site: Site, float32: str) -> bool:
    """Whether the site's peak limits a task more than its bandwidth does. `float32`: as in `precision_of`."""
    work = task.body.work(task)
    peak = figure(site.peak_flops, precision_of(task, work.op_class, float32))
    return work.flops / peak > traffic(task) / site.bandwidth_bytes_per_s


def geometry(task: Task, site: Site) -> tuple[int, int]:
    """The grid and the blocks per SM of a task's kernel; (1, 1) on a CPU, where a task is one wave on one core.

    On a device that says what an SM holds, the blocks per SM follow from what a block takes of it.
    """
    work = task.body.work(task)
    element_wise = task.body.is_update and task.body.form == "for" and site.sm is not None
    row = table()[site.kind].row(DEFAULT_CLASS if element_wise else work.op_class)
    if row.blocks_per_sm is None:
        return 1, 1
    if site.kind == "gpu" and (grid := task.body.blocks(task)) is not None:
        return grid, int(row.blocks_per_sm.value)
    if row.tile is None:
        return 1, 1
    elements = sum(o.elements for o in (*task.writes, *task.mutates))
    grid, blocks = max(1, math.ceil(elements / row.tile.value)), int(row.blocks_per_sm.value)
    if site.sm is not None and (own := row.block) is not None:
        blocks = site.sm.resident(own.threads, own.registers, own.shared_bytes)
        grid = max(1, math.ceil(elements / own.outputs)) if own.outputs else task.inputs[0].shape[1]
    if row.split_flops is not None:
        grid = max(grid, min(site.sms * blocks, math.ceil(work.flops / row.split_flops.value)))
    return grid, blocks
