"""How long a matrix product or an attention takes on tensor cores: tiles over the SMs, split sums, operands from the cache or memory.

A library has kernels with several tile sizes, and can split the sum over blocks if there are too few tiles. The time is that of the
fastest:

    t = start / clock + (compute³ + move³)^⅓ + split, where
    compute = tiles of the busiest SM · (edge + depth / splits) terms, each at the tensor cores' rate or as fast as operands arrive,
              and no step of 128 bytes of depth faster than `step_cycles`, which the tiles that an SM holds at once hide from each other;
    move = the larger of the bytes from and to memory at its bandwidth, and all bytes at what the SMs that have a tile can draw.

Attention without a matrix of scores (FlashAttention: Dao et al. 2022) is blocks of 64 queries by 64 keys, half of them if causal:

    t = start / clock + (score³ + move³)^⅓, where
    score = (blocks / SMs + tail · blocks of a row) · (computing³ + exponentials³)^⅓ of a block.

The numbers are those of `ProductKernel`, shared by all GPUs; a GPU has only figures of its data sheet. tools/fit_products.py
fits them and scores them by leave-one-out over GPUs. Tiles per SM: accumulators take half of an SM's 64 K registers (CUDA C Programming
Guide).
"""

from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict

from simulator.engine.costs.site import Number, Site, figure

_N = TypeVar("_N", float, np.ndarray)

#: Rows and columns of tiles that libraries have kernels for (cuBLAS and CUTLASS name their kernels after them).
_SHAPES = ((256, 128), (128, 128), (256, 64), (128, 64), (64, 64), (128, 32), (64, 32), (128, 16), (64, 16))
_SPLITS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
_ROWS, _COLUMNS, _PARTS = (
    np.array(each, float)
    for each in zip(*((*shape, split) for a, b in _SHAPES for shape in {(a, b), (b, a)} for split in _SPLITS), strict=True)
)
#: Results that the accumulators of an SM hold, and the most blocks of which an SM hides latencies.
_ACCUMULATORS, _MOST_BLOCKS = 32768, 8
#: Bytes of depth that a block loads at a time.
_STEP_BYTES = 128
#: Queries and keys of a block of attention, and exponentials of an SM in a cycle (CUDA C Programming Guide, arithmetic instructions).
_BLOCK, _EXPONENTIALS = 64, 16
#: Rows, columns and terms of the smallest products that the numbers were fitted on. Products with fewer terms, or with fewer rows and
#: fewer columns, run in kernels without tiles of that size: they take as long per byte as the smallest ones.
_SMALLEST = 32
#: Precisions of tensor cores, and the length of what they multiply, over 16 bits.
OPERANDS = {"fp16": 1.0, "bf16": 1.0, "tf32": 2.0}
#: FLOPs per boost cycle in 16 bits that only SMs have whose tensor cores read operands from shared memory (Hopper's wgmma, and later).
_NEWER = 3000


class Product(NamedTuple, Generic[_N]):
    """`batch` products of [rows, depth] and [depth, columns], whose elements have `size` bytes.

    `aligned`: whether every row of a matrix begins at a multiple of 16 bytes.
    """

    batch: _N
    rows: _N
    columns: _N
    depth: _N
    size: float
    aligned: bool = True

    @property
    def bytes(self) -> _N:
        """Bytes of operands and results."""
        return self.batch * self.size * (self.rows * self.depth + self.depth * self.columns + self.rows * self.columns)


class Attention(NamedTuple, Generic[_N]):
    """`batch` attentions (of heads and samples) of `queries` to `keys`, whose vectors have `width` elements.

    `seen`: the share of keys that a query sees if there are many, 1 or, if causal, 1/2. `passes`: 1 forward, 5/2 backward, whose five
    products are counted against two. `moved`: bytes of operands and results. `made_for_chip`: whether the kernel has the chip's own
    instructions.
    """

    batch: _N
    queries: _N
    keys: _N
    width: _N
    seen: float
    passes: float
    moved: _N
    made_for_chip: bool = False

    @property
    def bytes(self) -> _N:
        """Bytes of operands and results."""
        return self.moved


class ProductKernel(BaseModel):
    """The numbers of a product, and of attention, on tensor cores.

    `start_cycles`: from a kernel to the next in a graph, if it computes nothing. `edge_depth`: a tile begins and ends for as long as it
    computes this many terms. `step_cycles`: the latency of a step. `compute`: share of the peak. `feed`: operand bytes that reach the
    tensor cores in the time of a FLOP in 16 bits. `memory`: share of the bandwidth. `draw`: bytes per cycle that an SM of 4096 such FLOPs
    per cycle can draw from the cache; others as the square root of their FLOPs. `split_s`: time to add the parts of a split sum. `watts`:
    power per TFLOP/s of the peak in 16 bits below which a GPU lowers its clock, with the square root of the power, if it computes for a
    moment; `sustained_watts`: the same if it computes for minutes, as in training. `unaligned`: how many times as long products
    take whose rows do not begin at multiples of 16 bytes, on SMs of Hopper and later data-center GPUs, whose instructions load no others.

    Of attention: `attention`: share of the peak. `score_cycles`: time of a score's exponential and what goes with it, as a multiple of that
    of the exponential alone, of which an SM computes 16 a cycle. `tail`: how much of the longest row of blocks is not hidden by others.
    `portable`: how many times as long PyTorch's own kernel takes on SMs of Hopper and later data-center GPUs, whose
    instructions it does not use. `single`, `single_backward`: how many times as long it takes on float32 as it would in TF32, forward and
    backward, since each of its products is three in TF32, whatever `allow_tf32` says.
    """

    model_config = ConfigDict(extra="forbid")

    start_cycles: Number
    edge_depth: Number
    step_cycles: Number
    compute: Number
    feed: Number
    memory: Number
    draw: Number
    split_s: Number
    watts: Number
    sustained_watts: Number
    unaligned: Number
    attention: Number
    score_cycles: Number
    tail: Number
    portable: Number
    single: Number
    single_backward: Number


def serves(site: Site, precision: str, work: Product | Attention | None = None) -> bool:
    """Whether a site has a separate peak in a precision of tensor cores, or, for attention on float32, in TF32."""
    own = "bf16" if precision == "fp16" and "fp16" not in site.peak_flops else precision
    if own == "fp32" and isinstance(work, Attention):
        own = "tf32"
    return site.kind == "gpu" and own in OPERANDS and own in site.peak_flops


def of_hopper(site: Site) -> bool:
    """Whether a GPU has the instructions of Hopper and later data-center GPUs: tensor cores that multiply what a copy engine has loaded."""
    return site.kind == "gpu" and "bf16" in site.peak_flops and site.peak_flops["bf16"] / site.sms / site.cycles_per_s >= _NEWER


class _Sms(NamedTuple):
    """SMs, the FLOP/s of each and what they are in 16 bits, their clock, and the factor of the FLOP/s that the power limit leaves."""

    number: int
    flops_per_s: float
    half_flops_per_s: float
    clock_hz: float
    power: float


def seconds(kernel: ProductKernel, site: Site, precision: str, work: Product | Attention, missed_bytes: _N, alone: bool = False) -> Any:
    """The time of products or attentions, of which `missed_bytes` come from memory or go there: a number, or an array if the fields are.

    `alone`: as benchmarks time the best kernel, for a moment; else as PyTorch's kernels run in a training.
    """
    if precision == "fp32" and isinstance(work, Attention):
        times = kernel.single if work.passes == 1.0 else kernel.single_backward
        precision, work = "tf32", work._replace(passes=work.passes * times.value)
    peak = figure(site.peak_flops, precision)
    half = peak * OPERANDS[precision]  # longer operands are multiplied more slowly, and do not arrive more slowly
    clock_hz = site.cycles_per_s
    watts = (kernel.watts if alone else kernel.sustained_watts).value
    power = min(1.0, (site.power_w / (half / 1e12) / watts) ** 0.5) if site.power_w else 1.0
    sms = _Sms(site.sms, peak / site.sms, half / site.sms, clock_hz, power)
    draw = kernel.draw.value * clock_hz * (sms.half_flops_per_s / clock_hz / 4096) ** 0.5
    missed_s = np.asarray(missed_bytes, float) / (site.bandwidth_bytes_per_s * kernel.memory.value)
    if isinstance(work, Attention):
        portable = of_hopper(site) and not (alone or work.made_for_chip)
        busy_s = _attention_s(kernel, sms, work, missed_s, work.bytes / draw) * (kernel.portable.value if portable else 1.0)
    else:
        fitted = _as_fitted(work)
        longer = np.asarray(fitted.bytes / np.maximum(work.bytes, work.size))
        busy_s = _product_s(kernel, sms, fitted, missed_s * longer, fitted.bytes / draw) / longer
        busy_s = busy_s if work.aligned or not of_hopper(site) else busy_s * kernel.unaligned.value
    total_s = busy_s + kernel.start_cycles.value / clock_hz
    return total_s if total_s.ndim else float(total_s)


def _as_fitted(work: Product) -> Product:
    """The product, with the rows and columns, and the terms, of the smallest ones of the fits where it has fewer."""
    small = np.maximum(work.rows, work.columns) < _SMALLEST
    rows, columns = (np.where(small, _SMALLEST, each) for each in (work.rows, work.columns))
    return work._replace(rows=rows, columns=columns, depth=np.maximum(work.depth, _SMALLEST))


def _product_s(kernel: ProductKernel, sms: _Sms, work: Product, missed_s: np.ndarray, drawn_s: np.ndarray) -> np.ndarray:
    batch, rows, columns, depth = (np.asarray(each, float)[..., None] for each in work[:4])
    step = _STEP_BYTES / work.size
    terms = np.ceil(depth / _PARTS / step) * step
    tiles = batch * np.ceil(rows / _ROWS) * np.ceil(columns / _COLUMNS) * _PARTS
    busiest = np.ceil(tiles / sms.number)
    rounds = np.ceil(busiest / np.clip(_ACCUMULATORS // (_ROWS * _COLUMNS), 1, _MOST_BLOCKS))
    flops = 2 * _ROWS * _COLUMNS
    multiplying_s = flops / (kernel.compute.value * sms.power) / sms.flops_per_s
    term_s = np.maximum(multiplying_s, (_ROWS + _COLUMNS) * work.size / kernel.feed.value / sms.half_flops_per_s)
    compute_s = busiest * kernel.edge_depth.value * flops / sms.flops_per_s
    compute_s = compute_s + terms * np.maximum(busiest * term_s, rounds * kernel.step_cycles.value / sms.clock_hz / step)
    move_s = np.maximum(missed_s[..., None], drawn_s[..., None] / np.minimum(tiles, sms.number))
    split_s = np.where(_PARTS > 1, kernel.split_s.value, 0.0)
    return np.min(np.cbrt(compute_s**3 + move_s**3) + split_s, axis=-1)


def _attention_s(kernel: ProductKernel, sms: _Sms, work: Attention, missed_s: np.ndarray, drawn_s: np.ndarray) -> np.ndarray:
    batch, queries, keys, width = (np.asarray(each, float) for each in work[:4])
    rows, columns = np.ceil(queries / _BLOCK), np.ceil(keys / _BLOCK)
    blocks = batch * rows * (columns if work.seen == 1.0 else (columns + 1) / 2)
    scores = work.passes * _BLOCK**2
    computing_s = 4 * scores * width / (sms.flops_per_s * kernel.attention.value * sms.power)
    exponentials_s = scores * kernel.score_cycles.value / _EXPONENTIALS / sms.clock_hz
    score_s = (blocks / sms.number + kernel.tail.value * columns) * np.cbrt(computing_s**3 + exponentials_s**3)
    return np.cbrt(score_s**3 + np.maximum(missed_s, drawn_s / sms.number) ** 3)
