"""Task times on hardware that was not measured: the committed table `efficiencies.json`, a roofline per op class.

t = least_s · launches + max(flops / (peak · compute), bytes / (bandwidth · memory)); rows with `adds` take the sum instead of the maximum,
and rows with `idle` or `saved` do more or fewer FLOPs (`Row`).
Every number of the table is `[value, error, source]`: the error is one standard deviation of its logarithm, the source a name under
"sources". CPU rows are for one core. GPU rows are fitted by tests/benchmarks/fit_efficiencies.py and scored on GPUs left out
by tests/benchmarks/efficiencies.py; those of convolutions are fitted and scored on whole steps by tests/benchmarks/fit_steps.py.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict

from simulator.machine.machine import Device, Machine, Memory, SmLimits
from simulator.plan.bodies.op_class import winograd
from simulator.plan.task import HasOperands, Operand, Task

_T = TypeVar("_T")
#: Of one work, or of several of one class.
_N = TypeVar("_N", float, np.ndarray)

TABLE = Path(__file__).with_name("efficiencies.json")
#: Classes whose kernels use tensor cores if the precision allows it.
DENSE = frozenset({"matmul", "matmul.attention", "conv", "grouped-conv"})
#: The row of convolutions with fewer multiplications than the direct ones of class `conv`.
WINOGRAD = "conv.winograd"
#: The rows of convolutions in 16 bits, which tensor cores multiply in channels-last order: others change the layout before and after.
HALF, CHANNELS_LAST = "conv.half", "conv.channels-last"
#: The row used for classes that the table lacks.
DEFAULT_CLASS = "elementwise"
#: Tensors read and written by an update that is not fused, for optimizers that the table lacks.
DEFAULT_TENSORS = 20.0


class Number(NamedTuple):
    """A number, one standard deviation of its logarithm, and the name of its source."""

    value: float
    error: float
    source: str


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
    cache as from memory. `cold_start_s`: extra time with nothing in the cache. `tile`: output elements per block. `split_flops`: a kernel
    splits its FLOPs over blocks of this size until the SMs are full. `saved`: times fewer FLOPs than those counted, of an algorithm that
    computes the same with fewer. `idle`: few blocks leave SMs idle, so that computing takes 1 + idle · SMs / blocks times as long, where
    a kernel has blocks for its outputs or for its FLOPs, whichever are more. `block`: what a block takes of an SM, for devices that say
    what an SM holds.
    """

    model_config = ConfigDict(extra="forbid")

    compute: dict[str, Number]
    memory: Number
    least_s: Number
    adds: bool = False
    cold_start_s: Number | None = None
    tile: Number | None = None
    blocks_per_sm: Number | None = None
    split_flops: Number | None = None
    saved: Number | None = None
    idle: Number | None = None
    block: BlockShape | None = None


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
        """The row of a class, else of the text before its first dot (`update` for `update.adam:fused`), else of `elementwise`."""
        return self.classes.get(op_class) or self.classes.get(op_class.partition(".")[0]) or self.classes[DEFAULT_CLASS]


class Site(NamedTuple):
    """The hardware available to one task: the SMs of a GPU or one core of a CPU, the bandwidth they can draw, and a last-level cache."""

    kind: str
    sms: int
    peak_flops: dict[str, float]
    bandwidth_bytes_per_s: float
    cache_bytes: int
    sm: SmLimits | None = None

    @staticmethod
    def of_device(device: Device, memory: Memory, share: float) -> "Site":
        """The site of a task on `device`. `share`: the device's fraction of all SMs (cores) that share its memory."""
        part = 1.0 if device.kind == "gpu" else 1.0 / device.sms
        drawn = memory.bandwidth_bytes_per_s * memory.reached * min(1.0, share * part / memory.saturation_share)
        peaks = {name: flops * part * device.reached for name, flops in device.peak_flops.items()}
        return Site(device.kind, device.sms, peaks, drawn, memory.cache_bytes, device.sm)


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
    if row.idle is not None and outputs is not None:
        larger = np.maximum if isinstance(flops, np.ndarray) else max
        blocks = larger(outputs / row.tile.value, flops / max(1, launches) / row.split_flops.value)
        flops *= 1 + row.idle.value * site.sms / blocks
    by_compute = flops / (figure(site.peak_flops, precision) * figure(row.compute, precision).value)
    by_memory = moved_bytes / (site.bandwidth_bytes_per_s * row.memory.value)
    return Terms(max(1, launches) * row.least_s.value, by_compute, by_memory)


def figure(figures: Mapping[str, _T], precision: str) -> _T:
    """The figure of a precision; tensor cores are as fast in fp16 as in bf16, and without them fp32 counts."""
    if precision == "fp16" and "fp16" not in figures:
        precision = "bf16"
    return figures.get(precision, figures["fp32"])


def seconds(
    site: Site,
    op_class: str,
    flops: float,
    moved_bytes: float,
    precision: str = "fp32",
    launches: int = 1,
    rows: EfficiencyRows | None = None,
    outputs: float | None = None,
) -> Seconds:
    """Time of some work in an op class, by the committed table or by `rows`. `outputs`: as in `terms`."""
    rows = rows or table()[site.kind]
    row = rows.row(op_class)
    parts = terms(site, row, flops, moved_bytes, precision, launches, outputs)
    speedup = rows.cache_speedup(site) if moved_bytes <= site.cache_bytes and not row.adds else 1.0
    combined = sum if row.adds else max
    numbers = {"least_s": row.least_s, "compute": figure(row.compute, precision), "memory": row.memory}
    cold_start = row.cold_start_s.value if row.cold_start_s is not None else 0.0
    warm = parts.least_s + combined((parts.compute_s, parts.memory_s / speedup))
    return Seconds(warm, cold_start + parts.least_s + combined((parts.compute_s, parts.memory_s)), numbers[parts.longest].error)


def cold_s(
    site: Site,
    op_class: str,
    flops: np.ndarray,
    moved_bytes: np.ndarray,
    precision: str = "fp32",
    launches: int = 1,
    outputs: np.ndarray | None = None,
) -> np.ndarray:
    """`seconds(...).cold` of several works of one class."""
    row = table()[site.kind].row(op_class)
    parts = terms(site, row, flops, moved_bytes, precision, launches, outputs)
    both = parts.compute_s + parts.memory_s if row.adds else np.maximum(parts.compute_s, parts.memory_s)
    return (row.cold_start_s.value if row.cold_start_s is not None else 0.0) + parts.least_s + both


def precision_of(task: Task, op_class: str, float32: str) -> str:
    """The precision whose peak applies to a task. `float32`: the one that dense kernels use on float32 operands (`float32_precision`)."""
    operands: tuple[Operand, ...] = (*task.inputs, *task.writes)
    dtypes = {o.dtype for o in operands}
    if dtypes & {"float64", "complex128"}:
        return "fp64"
    if op_class not in DENSE:
        return "fp32"
    if "float16" in dtypes:
        return "fp16"
    return "bf16" if "bfloat16" in dtypes else float32_precision(op_class, float32)


def float32_precision(op_class: str, float32: str) -> str:
    """The precision of a class of ops on float32 operands, if dense kernels run in `float32`: fp32, tf32 or PyTorch's default."""
    if op_class not in DENSE:
        return "fp32"
    return float32 if float32 != "default" else "tf32" if op_class in ("conv", "grouped-conv") else "fp32"


def fast(task: HasOperands) -> bool:
    """Whether the task may run a Winograd kernel."""
    return bool(task.body.op) and winograd(task, task.body.op, task.body.args)


def row_class(task: Task, op_class: str, precision: str, may_be_fast: bool | None = None) -> str:
    """The class of the row for a task: convolutions of float32 outside of tensor cores run Winograd kernels where they can.

    `may_be_fast`: `fast` of the task, if that is known.
    """
    if op_class != "conv" or not task.body.op:
        return op_class
    if precision in ("bf16", "fp16"):
        return CHANNELS_LAST if task.inputs[0].strides[1] == 1 else HALF
    if precision != "fp32":
        return op_class
    return WINOGRAD if (fast(task) if may_be_fast is None else may_be_fast) else op_class


def reached(task: Task, op_class: str, precision: str) -> float:
    """The share of a GPU's peak that a task's kernel reaches while it computes; above 1 if it does far fewer FLOPs than those counted."""
    row = table()["gpu"].row(row_class(task, op_class, precision))
    return figure(row.compute, precision).value * (row.saved.value if row.saved is not None else 1.0)


def outputs(task: HasOperands) -> float | None:
    """The elements of a convolution's result, or in backward of its gradient, which the kernel's blocks share; None for other tasks."""
    if not task.body.op.startswith("aten.convolution"):
        return None
    if task.body.op.startswith("aten.convolution."):
        return float(task.writes[0].elements)
    return float(task.inputs[0].elements)


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
    if site.kind == "gpu" and (grid := task.body.blocks(task)) is not None:
        return grid, int(row.blocks_per_sm.value)
    if row.tile is None or row.blocks_per_sm is None:
        return 1, 1
    elements = sum(o.elements for o in (*task.writes, *task.mutates))
    grid, blocks = max(1, math.ceil(elements / row.tile.value)), int(row.blocks_per_sm.value)
    if site.sm is not None and (own := row.block) is not None:
        blocks = site.sm.resident(own.threads, own.registers, own.shared_bytes)
        grid = max(1, math.ceil(elements / own.outputs)) if own.outputs else task.inputs[0].shape[1]
    if row.split_flops is not None:
        grid = max(grid, min(site.sms * blocks, math.ceil(work.flops / row.split_flops.value)))
    return grid, blocks


# The sites of a machine: what the table of efficiencies knows of a device, or of a part of it.


class Sites:
    """The site of every device of a machine, made once."""

    def __init__(self, machine: Machine):
        self._machine = machine
        self._made: dict[tuple[str, int], Site] = {}

    def site(self, device: str, sms: int | None = None) -> Site:
        """The site of a task on a device, or on the same device with `sms` SMs."""
        whole = self._machine.device(device)
        name = (device, sms or whole.sms)
        if name not in self._made:
            factor = name[1] / whole.sms
            total = sum(d.sms for d in self._machine.devices if d.memory == whole.memory)
            scaled = replace(whole, sms=name[1], peak_flops={p: flops * factor for p, flops in whole.peak_flops.items()})
            self._made[name] = Site.of_device(scaled, self._machine.memory(device), min(1.0, name[1] / total))
        return self._made[name]
