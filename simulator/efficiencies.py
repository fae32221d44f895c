"""What a task takes on hardware nobody measured: the committed table `efficiencies.json`, a roofline per op class.

t = least_s · launches + max(flops / (peak · compute), bytes / (bandwidth · memory)). Every number of the table is `[value, error, source]`:
the error is one standard deviation of its logarithm, the source a name under "sources". CPU rows hold for one core.
"""

import json
import math
from functools import cache
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict

from .machine import Device, Memory
from .plan import Operand, Task

TABLE = Path(__file__).with_name("efficiencies.json")
#: Classes whose kernels use tensor cores, where the precision allows.
DENSE = frozenset({"matmul", "matmul.attention", "conv", "grouped-conv"})
#: Stands for classes that the table lacks.
DEFAULT_CLASS = "elementwise"
#: Tensors that an update which is not fused touches, of optimizers that the table lacks.
DEFAULT_TENSORS = 20.0


class Number(NamedTuple):
    """A number, one standard deviation of its logarithm, and the name of its source."""

    value: float
    error: float
    source: str


class Row(BaseModel):
    """One op class: shares of peak FLOP/s (by precision) and of bandwidth, least time of a kernel (an op call) and what a cold one adds.

    `tile` is the number of output elements per block; a kernel also splits its FLOPs over blocks of `split_flops` until the SMs are full.
    """

    model_config = ConfigDict(extra="forbid")

    compute: dict[str, Number]
    memory: Number
    least_s: Number
    cold_start_s: Number | None = None
    tile: Number | None = None
    blocks_per_sm: Number | None = None
    split_flops: Number | None = None


class Rows(BaseModel):
    """The classes of one kind of device, and how many times faster a cache delivers than its memory."""

    model_config = ConfigDict(extra="forbid")

    warm_bandwidth: Number
    classes: dict[str, Row]

    def row(self, op_class: str) -> Row:
        """The row of a class: its own, that of the part before its dot (`update.adam:fused`), or `elementwise`."""
        return self.classes.get(op_class) or self.classes.get(op_class.partition(".")[0]) or self.classes[DEFAULT_CLASS]


class Site(NamedTuple):
    """What one task has at its disposal: a GPU's SMs, or one core of a CPU; the bandwidth they can draw; a last-level cache."""

    kind: str
    sms: int
    peak_flops: dict[str, float]
    bandwidth_bytes_per_s: float
    cache_bytes: int

    @staticmethod
    def of(device: Device, memory: Memory, share: float) -> "Site":
        """`share`: the part that the device has of all SMs (cores) on its memory."""
        part = 1.0 if device.kind == "gpu" else 1.0 / device.sms
        drawn = memory.bandwidth_bytes_per_s * min(1.0, share * part / memory.saturation_share)
        peaks = {name: flops * part for name, flops in device.peak_flops.items()}
        return Site(device.kind, device.sms, peaks, drawn, memory.cache_bytes)


class Seconds(NamedTuple):
    """Time with all reads in the cache, with none, and the error of the number that decides."""

    warm: float
    cold: float
    error: float


@cache
def table() -> dict[str, Rows]:
    """The committed table by kind of device."""
    document = json.loads(TABLE.read_text())
    return {kind: Rows.model_validate(document[kind]) for kind in ("gpu", "cpu")}


def seconds(site: Site, op_class: str, flops: float, moved_bytes: float, precision: str = "fp32", launches: int = 1) -> Seconds:
    """What the table says about work of a class."""
    rows = table()[site.kind]
    row = rows.row(op_class)
    compute = row.compute.get(precision, row.compute["fp32"])
    faster = rows.warm_bandwidth.value if moved_bytes <= site.cache_bytes else 1.0
    least = max(1, launches) * row.least_s.value
    by_compute = flops / (site.peak_flops.get(precision, site.peak_flops["fp32"]) * compute.value)
    by_memory = moved_bytes / (site.bandwidth_bytes_per_s * row.memory.value)
    error = max((least, row.least_s.error), (by_compute, compute.error), (by_memory, row.memory.error))[1]
    cold_start = row.cold_start_s.value if row.cold_start_s is not None else 0.0
    return Seconds(least + max(by_compute, by_memory / faster), cold_start + least + max(by_compute, by_memory), error)


def precision_of(task: Task, op_class: str, float32: str) -> str:
    """Which peak counts for a task: `float32` says what dense kernels use on float32 operands (fp32 or tf32)."""
    operands: tuple[Operand, ...] = (*task.inputs, *task.writes)
    kinds = {o.dtype for o in operands}
    if kinds & {"float64", "complex128"}:
        return "fp64"
    if op_class not in DENSE:
        return "fp32"
    return "bf16" if kinds & {"bfloat16", "float16"} else float32


@cache
def update_tensors() -> dict[str, float]:
    """By optimizer, how many tensors of a parameter's size the forms that are not fused read and write, all passes together."""
    document = json.loads(TABLE.read_text())
    return {optimizer: Number(*number).value for optimizer, number in document["update_tensors"].items()}


def traffic(task: Task) -> float:
    """Bytes a task moves: its work's, save that an update which is not fused makes several passes."""
    body = task.body
    if body.kind != "update" or body.form == "fused":
        return body.work(task).bytes
    return update_tensors().get(body.optimizer, DEFAULT_TENSORS) * float(sum(o.bytes for o in task.reads))


def launches(task: Task, kind: str) -> int:
    """Kernels (on a CPU: op calls) of a task. PyTorch's foreach form is a loop over the parameters on a CPU."""
    looped = kind == "cpu" and task.body.kind == "update" and task.body.form == "foreach"
    return task.body.launches * (len(task.body.parameters) if looped else 1)


def geometry(task: Task, site: Site) -> tuple[int, int]:
    """The grid and the blocks per SM of a task's kernel; (1, 1) on a CPU, where a task is one wave on one core."""
    work = task.body.work(task)
    row = table()[site.kind].row(work.op_class)
    if row.tile is None or row.blocks_per_sm is None:
        return 1, 1
    elements = sum(o.elements for o in (*task.writes, *task.mutates))
    grid, blocks = max(1, math.ceil(elements / row.tile.value)), int(row.blocks_per_sm.value)
    if row.split_flops is not None:
        grid = max(grid, min(site.sms * blocks, math.ceil(work.flops / row.split_flops.value)))
    return grid, blocks
