"""Fits the kernels of products and attention in `simulator/engine/costs/efficiencies.json`: python -m tools.fit_products

Products are those of `op_tables/gemm_*.csv.gz` of the shared data: 3,000 products y = x Wᵀ in bf16 on each of six GPUs, in a CUDA graph
with six different weights. So x and y come from the cache if they and a weight fit there, and a weight does if all six fit. Of two columns
the first counts; the faster one where computing takes longer than memory, because some long products there were throttled.

Attention is that of `op_tables/attention_forward_*.csv.gz`: causal, bf16, forward, the fastest of equal shapes. It was measured in serving
runtimes, which also append to a cache of keys: a time (`serving_s`) and bytes moved per byte of queries and of keys are fitted with the
numbers of attention, and left behind.

The numbers are fitted for all GPUs together, by the least robust log error over a sample of each table. Then every GPU is excluded in turn
and predicted from the other five, of which it gets nothing but the figures of its data sheet. Printed are the numbers as the table has
them, and errors: of the row's other formula, of the numbers as they are, and without the GPU.
"""

import csv
import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from simulator.engine.costs import efficiencies, products
from simulator.engine.costs.efficiencies import EfficiencyRows
from simulator.engine.costs.products import Attention, Product, ProductKernel
from simulator.engine.costs.site import Number, Site
from simulator.machine.presets import load_machine
from tests.support.shared_data import shared_folder

#: GPU of the tables -> preset.
GPUS = {
    "a100_sxm_80gb": "a100", "h100_sxm": "h100", "b200_sxm": "b200", "gb200": "gb200", "gb300": "gb300",
    "rtx_pro_6000_server": "rtx-pro-6000",
}  # fmt: skip
#: Where the searches start: orders of magnitude.
PRODUCTS = {
    "start_cycles": 4000.0, "edge_depth": 200.0, "step_cycles": 120.0, "compute": 0.85, "feed": 0.016, "memory": 0.9, "draw": 16.0,
    "split_s": 3e-6, "watts": 0.6,
}  # fmt: skip
ATTENTION = {"attention": 0.7, "score_cycles": 1.5, "tail": 1.0}
SERVING = {"serving_s": 1e-5, "of_queries": 2.0, "of_keys": 6.0}
SOURCES = {**dict.fromkeys(PRODUCTS, "kernel-tables"), **dict.fromkeys(ATTENTION, "attention-tables")}
_WEIGHTS = 6
#: What is in the cache fades from all to nothing where the bytes pass the cache's size.
_FADE = 8
#: Errors beyond this (of the logarithm) count linearly.
_ROBUST = 0.08
_SAMPLE, _ROUNDS = 400, 3
Numbers = dict[str, float]


class Table(NamedTuple):
    """The kernels of one table, what they move in addition (attention: bytes per byte of queries and of keys), and their seconds."""

    site: Site
    work: Product | Attention
    missed: np.ndarray
    seconds: np.ndarray
    besides: tuple[np.ndarray, np.ndarray] = (np.zeros(0), np.zeros(0))

    def some(self, chosen: np.ndarray) -> "Table":
        """The kernels with these numbers."""
        work = type(self.work)(*(each[chosen] if isinstance(each, np.ndarray) else each for each in self.work))
        besides = (self.besides[0][chosen], self.besides[1][chosen]) if len(self.besides[0]) else self.besides
        return Table(self.site, work, self.missed[chosen], self.seconds[chosen], besides)

    def errors(self, numbers: Numbers) -> np.ndarray:
        """log(predicted / measured) of every kernel."""
        own = kernel(numbers)
        predicted_s = products.seconds(own, self.site, "bf16", self.work, self.missed, alone=True)
        if "serving_s" in numbers:
            moved = numbers["of_queries"] * self.besides[0] + numbers["of_keys"] * self.besides[1]
            copies = Attention(*np.zeros((4, len(moved))), 1.0, 1.0, moved)
            copied_s = products.seconds(own, self.site, "bf16", copies, moved * missing(self.site, moved), alone=True)
            predicted_s += copied_s + numbers["serving_s"] - 2 * numbers["start_cycles"] / self.site.clock_hz
        return np.log(predicted_s / self.seconds)


def missing(site: Site, needed: np.ndarray) -> np.ndarray:
    """The share of bytes that come from memory, or go there, if this many are needed in turn."""
    return 1 / (1 + (site.cache_bytes / np.maximum(needed, 1.0)) ** _FADE)


def rows_of(path: Path, names: Sequence[str]) -> np.ndarray:
    """Columns of a table; an empty field is infinite."""
    with gzip.open(path, "rt", newline="") as file:
        return np.array([[float(row[name] or "inf") for name in names] for row in csv.DictReader(file)]).T


def read_products(path: Path, site: Site) -> Table:
    """A table of products."""
    m, n, k, first, second = rows_of(path, ("m", "n", "k", "us", "us_second"))
    product = Product(np.ones(len(m)), m, n, k, 2.0)
    computing = 2 * m * n * k / site.peak_flops["bf16"] > product.bytes / site.bandwidth_bytes_per_s
    x, weight, y = 2 * m * k, 2 * n * k, 2 * m * n
    missed = weight * missing(site, _WEIGHTS * weight + x + y) + (x + y) * missing(site, weight + x + y)
    return Table(site, product, missed, np.where(computing, np.minimum(first, second), first) / 1e6)


def read_attention(path: Path, site: Site) -> Table:
    """A table of attention."""
    columns = rows_of(path, ("batch", "seq", "heads", "kv_heads", "head_dim", "us"))
    shapes, number = np.unique(columns[:5], axis=1, return_inverse=True)
    fastest = np.full(shapes.shape[1], np.inf)
    np.minimum.at(fastest, number.ravel(), columns[5])
    batch, length, heads, kv_heads, width = shapes
    queries, keys = (2 * batch * length * width * each for each in (heads, kv_heads))
    moved = 2 * queries + 2 * keys
    work = Attention(batch * heads, length, length, width, 0.5, 1.0, moved)
    return Table(site, work, moved * missing(site, moved), fastest / 1e6, (queries, keys))


def kernel(numbers: Numbers, errors: tuple[float, float] = (0.2, 0.2)) -> ProductKernel:
    """The kernel with these numbers. `errors`: of those of products and of attention."""
    every = {**PRODUCTS, **ATTENTION, **numbers}
    fitted = {name: Number(every[name], errors[name in ATTENTION], SOURCES[name]) for name in SOURCES}
    return ProductKernel(**_known(), **fitted)


def _known() -> dict[str, Number]:
    """The numbers that are not fitted on tables of kernels."""
    row = efficiencies.table()["gpu"].row("matmul").product
    return {name: number for name, number in row if name not in SOURCES}


def fit(tables: Sequence[Table], start: Numbers, others: Numbers | None = None) -> Numbers:
    """The numbers with the least robust error over a sample of the tables, from `start` on. `others`: those that stay."""
    from scipy.optimize import least_squares

    generator = np.random.default_rng(0)
    chosen = generator.choice(min(len(table.seconds) for table in tables), _SAMPLE, replace=False)
    sample, names = [table.some(chosen) for table in tables], list(start)

    def numbers(point: np.ndarray) -> Numbers:
        return {**(others or {}), **dict(zip(names, np.exp(point).tolist(), strict=True))}

    def errors(point: np.ndarray) -> np.ndarray:
        return np.concatenate([table.errors(numbers(point)) for table in sample])

    def loss(values: np.ndarray) -> float:
        return float(np.sum(np.sqrt(1 + (values / _ROBUST) ** 2) - 1))

    point = np.log(list(start.values()))
    least, steps = loss(errors(point)), np.full(len(names), 0.1)
    for difference in np.geomspace(1e-2, 1e-3, _ROUNDS):  # descents, and steps of one number, which pass from one tile to the next
        result = least_squares(errors, point, loss="soft_l1", f_scale=_ROBUST, max_nfev=12, diff_step=difference)
        if loss(result.fun) < least:
            point, least = result.x, loss(result.fun)
        for number in list(range(len(names))) * 12:
            trial = point.copy()
            trial[number] += steps[number] * generator.choice([-1, 1])
            own = loss(errors(trial))
            steps[number] *= 1.5 if own < least else 0.75
            point, least = (trial, own) if own < least else (point, least)
        steps = np.maximum(steps, 0.03)
    return numbers(point)


class Tables(NamedTuple):
    """The tables by GPU."""

    products: dict[str, Table]
    attention: dict[str, Table]

    def fitted(self, left_out: str = "") -> tuple[Numbers, Numbers]:
        """The numbers of products, and all, fitted without the GPUs whose names start like this."""
        kept = [name for name in GPUS if not left_out or not name.startswith(left_out)]
        of_products = fit([self.products[name] for name in kept], PRODUCTS)
        return of_products, fit([self.attention[name] for name in kept], {**ATTENTION, **SERVING}, of_products)


def tables() -> Tables | None:
    """Every table of the shared data; None if there is no such folder."""
    folder = shared_folder("op_tables")
    if folder is None:
        return None
    machines = {name: load_machine(preset) for name, preset in GPUS.items()}
    sites = {name: Site.of_device(machine.devices[0], machine.memories[0], 1.0) for name, machine in machines.items()}
    return Tables(
        {name: read_products(folder / f"gemm_{name}.csv.gz", site) for name, site in sites.items()},
        {name: read_attention(folder / f"attention_forward_{name}.csv.gz", site) for name, site in sites.items()},
    )


def without(rows: EfficiencyRows, chip: str) -> EfficiencyRows:
    """`rows` with the numbers fitted again without the GPUs of a chip (A100), if the tables have it."""
    own = f"{chip.lower()}_"
    if not any(name.startswith(own) for name in GPUS) or (known := tables()) is None:
        return rows
    product = rows.row("matmul").model_copy(update={"product": kernel(known.fitted(own)[1])})
    return rows.model_copy(update={"classes": {**rows.classes, "matmul": product}})


def by_the_other_formula(table: Table) -> np.ndarray:
    """Errors of the row without kernels of products, whose share of the peak was fitted on steps."""
    plain = efficiencies.table()["gpu"].row("matmul")
    shape = table.work
    if isinstance(shape, Product):
        flops = 2 * shape.batch * shape.rows * shape.columns * shape.depth
    else:
        flops = 4 * shape.batch * shape.queries * shape.keys * shape.width * shape.seen
    part = efficiencies.terms(table.site, plain, flops, shape.bytes, "bf16")
    return np.log((part.least_s + part.compute_s + part.memory_s) / table.seconds)


def line(name: str, errors: np.ndarray) -> str:
    """Median, 90th percentile and mean of the worst tenth of the relative errors, and their median with its sign."""
    off = np.sort(np.abs(np.expm1(errors)))
    worst, bias = off[-len(off) // 10 :].mean(), np.expm1(np.median(errors))
    return f"| {name} | {np.median(off):.1%} | {np.quantile(off, 0.9):.1%} | {worst:.1%} | {bias:+.1%} |"


def main() -> None:
    """Print the numbers and the errors."""
    known = tables()
    if known is None:
        print("no public measurements next to the repository; set SCHEDCAST_SHARED")
        return
    together, left_out = known.fitted(), {name: known.fitted(name) for name in GPUS}
    errors = []
    for what, own in (("products", 0), ("attention", 1)):
        print(f"\n| {what} | median error | 90th percentile | mean of the worst tenth | bias |\n|---|---|---|---|---|")
        unseen = {name: table.errors(left_out[name][own]) for name, table in known[own].items()}
        for name, table in known[own].items():
            print(line(f"{name}, other formula", by_the_other_formula(table)))
            print(line(f"{name}, fitted", table.errors(together[own])))
            print(line(f"{name}, excluded", unseen[name]))
        print(line("all excluded", np.concatenate([*unseen.values()])))
        errors.append(round(float(np.sqrt(np.mean([np.mean(each**2) for each in unseen.values()]))), 2))
    for name, number in kernel(together[1], (errors[0], errors[1])):
        print(f'          "{name}": {json.dumps([float(f"{number.value:.3g}"), *number[1:]])},')
    print({name: float(f"{together[1][name]:.3g}") for name in SERVING})


if __name__ == "__main__":
    main()
