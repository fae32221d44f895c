"""Fits the GPU rows of `simulator/engine/costs/efficiencies.json`: `python -m tools.fit_efficiencies [FOLDER]` prints them.

Fits the rows on public measurements (`public_ops`), by the least absolute log error: half of the weight is the same for every op, half is
proportional to the op's time; every GPU weighs the same. A number that the ops do not tell (`matters`) stays as it is. Then every GPU is
excluded in turn, and its ops are predicted with rows fitted on the others: the error of a number is the RMS log error of the excluded ops
that it decides. Where one GPU only has measurements of a precision, the error is the residual of the fit, and at least `LEAST_RESIDUAL`.
Convolutions are left to `fit_steps`: their ops here are of two GPUs alone.

Loading and computing add up in products and convolutions: products on excluded GPUs were predicted to 0.20 (H100), 0.30 (L4) and 0.28
(V100) RMS log error this way, and to 0.46, 0.55 and 0.31 with the larger of the two; convolutions of an excluded model to 0.58 against
0.68. Full throughput only from some FLOPs per SM on (a penalty for small products) gained nothing; whole waves of blocks were not tried.
"""

import json
import math
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from simulator.engine.costs import efficiencies
from simulator.engine.costs.efficiencies import EfficiencyRow, EfficiencyRows, Seconds
from simulator.engine.costs.site import Number
from tests.support.shared_data import shared_folder
from tools.public_ops import BOARDS, Op, all_sources

COMPUTE = np.geomspace(0.03, 1.3, 44)
MEMORY = np.geomspace(0.03, 1.0, 44)
LEAST = np.geomspace(1e-6, 6e-5, 32)
#: Bytes/s that one SM draws from the last-level cache.
CACHE = np.array([10e9, 15e9, 20e9, 25e9, 30e9, 40e9, 50e9, 70e9])
#: Classes whose loading and computing add up. Of the data's classes only these compute enough to tell.
ADDING = frozenset({"matmul", "conv"})
LEAST_DECIDED, LEAST_SHARE = 4, 0.25
LEAST_RESIDUAL = 0.3
BY_TIME = 0.5


class Ops(NamedTuple):
    """Ops of one class as arrays: seconds at data-sheet speed, whether all operands may fit the cache, and weights."""

    compute: np.ndarray
    memory: np.ndarray
    cached: np.ndarray
    cache_gain: np.ndarray
    launches: np.ndarray
    precision: np.ndarray
    measured: np.ndarray
    weight: np.ndarray


def _arrays(ops: Sequence[Op]) -> Ops:
    sites = [BOARDS[op.board] for op in ops]
    pairs = list(zip(ops, sites, strict=True))
    counts: dict[str, int] = defaultdict(int)
    times: dict[str, float] = defaultdict(float)
    for op in ops:
        counts[op.gpu] += 1
        times[op.gpu] += op.total_s
    columns = [
        [op.flops / site.peak_flops[op.precision] for op, site in pairs],
        [op.bytes / site.bandwidth_bytes_per_s for op, site in pairs],
        [op.warm and op.bytes <= site.cache_bytes for op, site in pairs],
        [site.sms / site.bandwidth_bytes_per_s for _, site in pairs],
        [op.launches for op in ops],
        [op.precision for op in ops],
        [op.seconds for op in ops],
        [(1 - BY_TIME) / counts[op.gpu] + BY_TIME * op.total_s / times[op.gpu] for op in ops],
    ]
    return Ops(*(np.array(column) for column in columns))


def ops_of(folder: Path) -> list[Op]:
    """The ops to fit on. Convolutions are those of two models, and fitted on whole steps (`fit_steps`)."""
    return [op for source in all_sources(folder) for op in source.ops if op.op_class != "conv"]


class Fitted(NamedTuple):
    """The numbers of one class and their loss."""

    loss: float
    least_s: float
    memory: float
    compute: dict[str, float]


def _fit_class(ops: Ops, cache: float, adds: bool, fixed: dict[str, float]) -> Fitted:
    """The best numbers by grid search, with the numbers in `fixed` unchanged."""
    measured = np.log(ops.measured)
    gain = np.where(ops.cached, np.maximum(1.0, cache * ops.cache_gain), 1.0) if not adds else np.ones(len(measured))
    memories = np.array([fixed["memory"]]) if "memory" in fixed else MEMORY
    loads = (ops.memory / gain)[None] / memories[:, None]
    best = None
    for least in [fixed["least_s"]] if "least_s" in fixed else LEAST:
        start = least * ops.launches
        losses, chosen = np.zeros(len(memories)), {}
        for precision in sorted(set(ops.precision)) if adds else [""]:
            some = ops.precision == precision if adds else np.ones(len(ops.measured), bool)
            shares = np.array([fixed[precision]]) if precision in fixed else COMPUTE
            work = loads[:, None, some]
            if adds:
                work = work + ops.compute[some][None, None] / shares[None, :, None]
            wrong = np.abs(np.log(start[some] + work) - measured[some]) @ ops.weight[some]
            chosen[precision] = shares[wrong.argmin(axis=1)] if adds else None
            losses += wrong.min(axis=1)
        at = int(losses.argmin())
        if best is None or losses[at] < best.loss:
            compute = {precision: float(values[at]) for precision, values in chosen.items() if values is not None}
            best = Fitted(float(losses[at]), float(least), float(memories[at]), compute)
    return best


def _row(base: EfficiencyRow, found: Fitted, adds: bool) -> EfficiencyRow:
    compute = {**base.compute, **{name: Number(value, base.compute[name].error, "") for name, value in found.compute.items()}}
    memory, least = (Number(value, old.error, "") for value, old in ((found.memory, base.memory), (found.least_s, base.least_s)))
    return base.model_copy(update={"compute": compute, "memory": memory, "least_s": least, "adds": adds})


#: What a number is before it is fitted: orders of magnitude, so that a fit without a GPU knows nothing of it.
PRIOR = {"memory": 0.5, "fp32": 0.6, "tf32": 0.4}
PRIOR_LEAST_S = defaultdict(lambda: 4e-6, {"elementwise": 2e-6, "update": 2e-6, "matmul": 5e-6, "conv": 5e-6})
#: Names of the sources of fitted numbers in the table.
GPUS, ALONE = "public", "public-one-model"
#: The source of numbers that are fitted on whole steps (`fit_steps`).
STEPS = "published-steps"


def prior(rows: EfficiencyRows) -> EfficiencyRows:
    """`rows` without any fitted number."""

    def number(value: float, given: Number) -> Number:
        return Number(value, 0.7, "first-principles") if given.source in (GPUS, ALONE) else given

    classes = {}
    for name, row in rows.classes.items():
        compute = {key: number(PRIOR.get(key, 0.0), value) for key, value in row.compute.items()}
        memory, least = number(PRIOR["memory"], row.memory), number(PRIOR_LEAST_S[name], row.least_s)
        classes[name] = row.model_copy(update={"compute": compute, "memory": memory, "least_s": least})
    return rows.model_copy(update={"classes": classes})


def by_class(ops: Iterable[Op]) -> dict[str, list[Op]]:
    """The ops of every class, in order of the class name."""
    found: dict[str, list[Op]] = defaultdict(list)
    for op in ops:
        found[op.op_class].append(op)
    return dict(sorted(found.items()))


def matters(ops: Sequence[Op], row: EfficiencyRow) -> dict[str, int]:
    """How many ops determine each number: the share of a peak that limits them, and the least time if it is a quarter of theirs."""
    found: dict[str, int] = defaultdict(int)
    for op, name in zip(ops, decided(ops, row), strict=True):
        found[name] += name != "least_s"
        part = efficiencies.terms(BOARDS[op.board], row, op.flops, op.bytes, op.precision, op.launches)
        found["least_s"] += part.least_s > LEAST_SHARE * sum(part)
    return found


def decided(ops: Sequence[Op], row: EfficiencyRow) -> list[str]:
    """The number that limits each op: `least_s`, `memory` or a precision."""
    parts = [efficiencies.terms(BOARDS[op.board], row, op.flops, op.bytes, op.precision, op.launches).longest for op in ops]
    return [op.precision if part == "compute" else part for op, part in zip(ops, parts, strict=True)]


def fit(ops: Sequence[Op], base: EfficiencyRows, cache: float | None = None) -> EfficiencyRows:
    """`base` with every number that `ops` determine replaced; a given `cache` is not fitted."""
    fitted = {
        name: _fit_known(name, members, base.row(name), CACHE if cache is None else [cache]) for name, members in by_class(ops).items()
    }
    candidates = range(len(CACHE)) if cache is None else [0]
    best = min(candidates, key=lambda i: sum(found[min(i, len(found) - 1)][0] for found in fitted.values()))
    classes = {name: found[min(best, len(found) - 1)][1] for name, found in fitted.items()}
    speed = Number(float(CACHE[best] if cache is None else cache), 0.0, "")
    return base.model_copy(
        update={"cache_bytes_per_s_per_sm": speed, "warm_bandwidth": None, "classes": {**base.classes, **classes}},
    )


def _fit_known(name: str, ops: Sequence[Op], old: EfficiencyRow, caches: Sequence[float]) -> list[tuple[float, EfficiencyRow]]:
    """The loss and the row of a class for each cache speed; only one entry if the class does not depend on it."""
    arrays, adds, found = _arrays(ops), name in ADDING, []
    for cache in caches[:1] if adds else caches:
        best = _fit_class(arrays, cache, adds, {})
        told = matters(ops, _row(old, best, adds))
        kept = {"least_s": old.least_s.value, "memory": old.memory.value, **{key: old.compute[key].value for key in best.compute}}
        fixed = {key: value for key, value in kept.items() if told[key] < (LEAST_DECIDED if key == "least_s" else 1)}
        best = _fit_class(arrays, cache, adds, fixed) if fixed else best
        found.append((best.loss, _row(old, best, adds)))
    return found


class Scored(NamedTuple):
    """An op, the prediction of rows fitted without it, the number that limits it, and what was excluded from the fit."""

    op: Op
    said: Seconds
    decider: str
    left_out: str
    rows: EfficiencyRows

    @property
    def predicted_s(self) -> float:
        """Predicted seconds with the operands in the place (cache or memory) of the measurement."""
        return self.said.warm if self.op.warm else self.said.cold

    @property
    def error(self) -> float:
        """log(predicted / measured)."""
        return math.log(self.predicted_s / self.op.seconds)


def predict(op: Op, rows: EfficiencyRows, left_out: str = "") -> Scored:
    """The prediction of `rows` for an op."""
    said = efficiencies.seconds(BOARDS[op.board], op.op_class, op.flops, op.bytes, op.precision, op.launches, rows)
    return Scored(op, said, decided([op], rows.row(op.op_class))[0], left_out, rows)


def leave_one_gpu_out(ops: Sequence[Op], base: EfficiencyRows) -> list[Scored]:
    """Predictions of every op from the rows of other GPUs alone, if they measured its class (and the precision that limits it)."""
    found = []
    for gpu in sorted({op.gpu for op in ops}):
        others = [op for op in ops if op.gpu != gpu]
        known = {(op.op_class, op.precision) for op in others}
        rows = fit(others, base)
        found += [predict(op, rows, gpu) for op in ops if op.gpu == gpu and (op.op_class, op.precision) in known]
    return found


def rms(values: Iterable[float]) -> float:
    """Root mean square."""
    squares = [value * value for value in values]
    return math.sqrt(sum(squares) / len(squares)) if squares else math.nan


def balanced(scored: Sequence[Scored]) -> float:
    """RMS log error, with equal weight for everything excluded."""
    groups: dict[str, list[float]] = defaultdict(list)
    for item in scored:
        groups[item.left_out].append(item.error)
    return rms(rms(errors) for errors in groups.values())


def with_errors(rows: EfficiencyRows, base: EfficiencyRows, ops: Sequence[Op], held: Sequence[Scored]) -> EfficiencyRows:
    """Rounded numbers with their held-out errors and sources. Numbers that the ops do not determine are those of `base`."""
    classes = dict(base.classes)
    for name, members in by_class(ops).items():
        row, old = rows.classes[name], base.row(name)
        told, deciders = matters(members, row), decided(members, row)

        def number(key: str, fitted: Number, kept: Number, name=name, members=members, told=told, deciders=deciders) -> Number:
            if kept.source == STEPS or told[key] < (LEAST_DECIDED if key == "least_s" else 1):
                return kept
            value = float(f"{fitted.value:.2g}")
            of_class = [item for item in held if item.op.op_class == name]
            if key in ("fp32", "tf32"):
                of_class = [item for item in of_class if item.op.precision == key]
            if of_class:
                exact = [item for item in of_class if item.decider == key]
                return Number(value, round(balanced(exact if len(exact) >= LEAST_DECIDED else of_class), 2), GPUS)
            mine = [op for op, decider in zip(members, deciders, strict=True) if decider == key]
            residual = rms(predict(op, rows).error for op in mine or members)
            return Number(value, round(max(LEAST_RESIDUAL, residual), 2), ALONE)

        compute = {key: number(key, row.compute[key], old.compute[key]) for key in row.compute}
        memory, least = number("memory", row.memory, old.memory), number("least_s", row.least_s, old.least_s)
        classes[name] = row.model_copy(update={"compute": compute, "memory": memory, "least_s": least})
    cached = [item for item in held if item.op.warm and item.op.bytes <= BOARDS[item.op.board].cache_bytes and item.decider == "memory"]
    speed = Number(rows.cache_bytes_per_s_per_sm.value, round(balanced(cached), 2), GPUS)
    return base.model_copy(update={"cache_bytes_per_s_per_sm": speed, "warm_bandwidth": None, "classes": classes})


def refit(folder: Path, table: EfficiencyRows) -> tuple[EfficiencyRows, list[Scored]]:
    """The rows to commit in place of `table`, and their leave-one-out scores over GPUs."""
    base = prior(table)
    ops = ops_of(folder)
    rows = fit(ops, base)
    held = leave_one_gpu_out(ops, base)
    return with_errors(rows, base, ops, held), held


def main() -> None:
    """Print the fitted rows in the format of the table."""
    latencies = shared_folder("op_latency")
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else latencies.parent if latencies else None
    if folder is None:
        print("no public measurements next to the repository; name their folder or set SCHEDCAST_SHARED")
        return
    rows, _ = refit(folder, efficiencies.table()["gpu"])
    print(f'"cache_bytes_per_s_per_sm": {json.dumps(list(rows.cache_bytes_per_s_per_sm))},')
    for name, row in rows.classes.items():
        print(f'"{name}": {{')
        kept = row.model_dump(exclude_none=True, exclude_defaults=True)
        print(",\n".join(f'  "{key}": {json.dumps(value)}' for key, value in kept.items()))
        print("},")


if __name__ == "__main__":
    main()
