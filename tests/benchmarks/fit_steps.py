"""Fits the GPU rows of convolutions and normalizations in `simulator/engine/costs/efficiencies.json` on published steps.

    python -m tests.benchmarks.fit_steps [--write]

In two stages, on steps that do not wait for the host. First, on steps in FP32 without tensor cores: the shares of the peak that
convolutions reach directly and as Winograd kernels, their shares of the bandwidth, the least time of a kernel, how much few blocks cost,
how many FLOPs a block has that splits a sum, and what GDDR memories reach beside HBM. Then, on steps in TF32 and mixed precision and on
those of newer desktop cards: how fast an SM's tensor cores are fed, the shares of the bandwidth of convolutions and normalizations in 16
bits in either layout, the share of the peak of narrow groups, what GDDR6 and GDDR6X reach, and how far such cards clock above their rated
boost. All other rows are those fitted on single ops
(`fit_efficiencies`, `fit_products`). The loss is the mean absolute log error; the rows of a model on a
chip together weigh the square root of their number.

Then every chip is left out in turn, and every model, from the steps and from the single ops, and its rows are predicted with what the
others give: these are the scores, and the root mean square of those of chips is the known accuracy of presets. `--write` puts the numbers
of the second stage into the table and the accuracy into `published.json`; those of the first stay, for papers are predicted with them.
A K80's rows are scored, but none is fitted on: it is older than any other GPU of the tables. Nor are those of `UNFITTED`.
"""

import json
import math
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from simulator.engine.costs import efficiencies
from simulator.engine.costs.efficiencies import (
    CHANNELS_LAST,
    HALF,
    NORM_CHANNELS_LAST,
    NORM_HALF,
    WINOGRAD,
    EfficiencyRow,
    EfficiencyRows,
    serves,
)
from simulator.engine.costs.products import Attention, Product
from simulator.engine.costs.site import Number, Site
from simulator.engine.hosts import issue_seconds
from simulator.machine.presets import data
from simulator.predict.discrepancy import DATA, LEAST
from simulator.predict.scoreboard.predicted import copy_s, predicted, waits_for_host
from simulator.predict.scoreboard.rows import Row, read_folder, sampled
from tests.benchmarks import fit_efficiencies, fit_products
from tests.benchmarks.public_ops import Op
from tests.benchmarks.published import text
from tests.support.shared_data import shared_folder
from traces.documents.scoreboard import Score, ScoredStep
from traces.errors import SchedcastError

#: The numbers of the first stage and where the search starts.
START = {
    "fp32": 0.8, "winograd": 0.7, "memory": 0.5, "winograd memory": 0.5, "least_s": 5e-6, "idle": 0.3, "split": 4e6,
}  # fmt: skip
#: The same of the second. `gddr6`, `gddr6x` and `boost` are in `machines.json`.
TENSOR_START = {
    "fed": 2e12, "half memory": 0.5, "channels-last memory": 0.9, "norm half": 0.5, "norm channels-last": 0.5, "narrow": 0.05,
    "gddr6": 0.85, "gddr6x": 0.85, "boost": 1.1,
}  # fmt: skip
#: What is tried for the share of a GDDR memory's bandwidth that is reached beside that of HBM.
GDDR = (1.0, 0.9, 0.8, 0.7, 0.6)
#: How much a number's distance from its start counts beside the mean error.
_PULL = 0.01
#: Chips that are scored only.
UNLIKE = frozenset({"k80"})
#: Sources that are scored only: figures of papers that the house reproduces.
UNFITTED = frozenset({"Zhang and Abdelrahman"})
#: Sources of single ops that are left out with a model.
OF_MODEL = {
    **{name: {"neusight"} for name in ("bert_base", "bert_large", "gpt2", "gpt2_large")},
    "resnet50": {"pytorch", "triosim"},
    "vgg13": {"triosim-trace"},
}
Z_90 = 1.645
#: Rows of a large table that are fitted on.
SAMPLE = 200
MIXED = "mixed"


class Group(NamedTuple):
    """`count` tasks of a step with equal work. `cold`: the share of their reads that is not in the cache."""

    op_class: str
    precision: str
    flops: float
    bytes: float
    launches: int
    outputs: float
    product: Product | Attention | None
    cold: float
    count: int


class StepOps(NamedTuple):
    """The work of a published step, the time for which the host issues it, and that of copying its batch (`predicted.copy_s`).

    `site`: at the rated clock and the full bandwidth. `memory`, `boosted`: which of the fitted figures of `machines.json` the card has.
    """

    row: Row
    site: Site
    memory: str
    boosted: bool
    groups: tuple[Group, ...]
    launches: int
    host_s: float
    copy_s: float = 0.0

    @property
    def waits_for_host(self) -> bool:
        """Whether the published time is short for its launches."""
        return waits_for_host(self.row, self.launches)

    @property
    def place(self) -> tuple[str, int]:
        """Where the row stands: the table and the row's number."""
        return self.row.file, self.row.number

    @property
    def precision(self) -> str:
        """The precision whose numbers its errors judge."""
        return MIXED if self.row.mixed else self.row.job.precision

    @property
    def in_first_stage(self) -> bool:
        """Whether the numbers of the first stage are fitted on it."""
        return self.row.job.precision == "fp32" and self.memory in ("hbm", "gddr") and not self.boosted

    def reached(self, figures: dict[str, float]) -> Site:
        """The site with what the card's memory and clock reach."""
        peaks = {name: peak * (figures["boost"] if self.boosted else 1.0) for name, peak in self.site.peak_flops.items()}
        bandwidth = self.site.bandwidth_bytes_per_s * (figures.get(self.memory, 1.0))
        return self.site._replace(peak_flops=peaks, bandwidth_bytes_per_s=bandwidth)


def step_ops(row: Row) -> StepOps:
    """The work of a row. What the cache holds comes from a simulation with the table as it is."""
    result = predicted(row)
    device = result.machine.devices[0]
    memory = result.machine.memory(device.name)
    site = Site.of_device(replace(device, reached=1.0), replace(memory, reached=1.0), 1.0)
    lasted = {span.task: span.end_s - span.start_s for span in result.timeline.spans}
    counts: Counter[Group] = Counter()
    for task, cost in zip(result.plan.tasks, result.costs, strict=True):
        work = task.body.work(task)
        precision = efficiencies.precision_of(task, work.op_class, "tf32" if row.job.precision == "tf32" else "fp32")
        name = efficiencies.row_class(task, work.op_class, precision)
        extra = cost.cold_s - cost.warm_s
        cold = (lasted.get(task.name, cost.cold_s) - cost.warm_s) / extra if extra > 0 else 1.0
        moved, launches = efficiencies.traffic(task), task.body.least_kernels("gpu")
        outputs, product = efficiencies.outputs(task) or 0.0, efficiencies.product(task)
        counts[Group(name, precision, work.flops, moved, launches, outputs, product, round(min(1.0, max(0.0, cold)), 2), 1)] += 1
    groups = tuple(group._replace(count=count) for group, count in counts.items())
    launches = sum(task.body.launches for task in result.plan.tasks)
    host = result.machine.host(device.name)
    host_s = 0.0 if row.mode == "graph" else sum(issue_seconds(host, cost.launches, cost.issue_s) for cost in result.costs)
    gpu = data().gpus[data().machines[row.machine].gpu]
    boosted = gpu.peak_reached[1] == "boost"
    site = site if boosted else Site.of_device(device, replace(memory, reached=1.0), 1.0)
    return StepOps(row, site, gpu.bandwidth_reached[1], boosted, groups, launches, host_s, copy_s(result) if row.synchronized else 0.0)


def figures_of_presets() -> dict[str, float]:
    """What `machines.json` says that memories reach and cards clock above their rated boost."""
    gpus = data().gpus.values()
    return {name: value for gpu in gpus for value, name in (gpu.bandwidth_reached, gpu.peak_reached) if name}


def step_seconds(step: StepOps, rows: EfficiencyRows, figures: dict[str, float] | None = None) -> float:
    """The predicted time of a step on one stream: that of the device, or of the host if it is longer."""
    total = device_seconds(step, rows, figures or figures_of_presets())
    return max(total, step.host_s) + step.copy_s


def device_seconds(
    step: StepOps, rows: EfficiencyRows, figures: dict[str, float], chosen: Callable[[Group], bool] = lambda group: True
) -> float:
    """The device time of the step's ops, or of those that are chosen."""
    site, total = step.reached(figures), 0.0
    for group in step.groups:
        if chosen(group):
            work = (group.flops, group.bytes, group.precision, group.launches)
            said = efficiencies.seconds(site, group.op_class, *work, rows, group.outputs or None, group.product)
            total += group.count * (said.warm + group.cold * (said.cold - said.warm))
    return total


def _is_product(step: StepOps, group: Group, rows: EfficiencyRows) -> bool:
    """Whether the group is priced by the kernels of products, which nothing here is fitted for."""
    return rows.row(group.op_class).product is not None and group.product is not None and serves(step.site, group.precision)


class _Work:
    """The ops of many steps as arrays, to price them fast: what does not depend on the fitted numbers is priced once."""

    def __init__(self, steps: Sequence[StepOps], rows: EfficiencyRows, figures: dict[str, float], names: Iterable[str]):
        """`names`: of the numbers that are fitted; the others are in `rows` and `figures`."""
        self._moving = {name for name in names if name in figures}
        self._steps = len(steps)
        self._parts, self._fixed_s = [], np.zeros(self._steps)
        for part in _parts(steps, rows):
            if part.varies(self._moving):
                self._parts.append(part)
            else:
                self._fixed_s += np.bincount(part.step, part.seconds(rows, figures), self._steps)
        # What memories and clocks reach counts in products too, but changes their time little: they keep what the search starts from.
        self._fixed_s += [device_seconds(step, rows, figures, lambda group, step=step: _is_product(step, group, rows)) for step in steps]

    def seconds(self, rows: EfficiencyRows, figures: dict[str, float]) -> np.ndarray:
        """Device seconds of every step."""
        return self._fixed_s + sum(np.bincount(part.step, part.seconds(rows, figures), self._steps) for part in self._parts)


class _Part(NamedTuple):
    """The ops of one class and precision on cards with one kind of memory, which clock above their boost or do not."""

    op_class: str
    precision: str
    memory: str
    boosted: bool
    cache_rate: float
    step: np.ndarray
    count: np.ndarray
    flops: np.ndarray
    bytes: np.ndarray
    launches: np.ndarray
    outputs: np.ndarray
    cold: np.ndarray
    peak: np.ndarray
    bandwidth: np.ndarray
    sms: np.ndarray
    operands: np.ndarray
    cached: np.ndarray

    def varies(self, moving: Set[str]) -> bool:
        """Whether its time depends on fitted numbers."""
        return self.op_class in _CONV_AND_NORM or self.memory in moving or (self.boosted and "boost" in moving)

    def seconds(self, rows: EfficiencyRows, figures: dict[str, float]) -> np.ndarray:
        """Seconds of the ops, each as often as its step has it."""
        row, precision = rows.row(self.op_class), self.precision
        peak = self.peak * (figures["boost"] if self.boosted else 1.0)
        bandwidth = self.bandwidth * (figures.get(self.memory, 1.0))
        flops = self.flops / (row.saved.value if row.saved else 1.0)
        if row.idle is not None:
            blocks = np.maximum(self.outputs / row.tile.value, flops / self.launches / row.split_flops.value)
            flops = np.where(self.outputs > 0, flops * (1 + row.idle.value * self.sms / np.maximum(blocks, 1e-9)), flops)
        compute_s = flops / (peak * efficiencies.figure(row.compute, precision).value)
        if row.fed is not None:
            compute_s += flops * self.operands / (row.fed.value * self.sms)
        memory_s = self.bytes / (bandwidth * row.memory.value)
        if not row.adds:
            faster = np.maximum(1.0, self.cache_rate * self.sms / bandwidth)
            memory_s = memory_s * np.where(self.cached, self.cold + (1 - self.cold) / faster, 1.0)
        both = compute_s + memory_s if row.adds else np.maximum(compute_s, memory_s)
        return self.count * (self.launches * row.least_s.value + both)


#: The rows whose numbers are fitted here.
_CONV_AND_NORM = frozenset({"conv", WINOGRAD, HALF, CHANNELS_LAST, NORM_HALF, NORM_CHANNELS_LAST, "grouped-conv"})


def _parts(steps: Sequence[StepOps], rows: EfficiencyRows) -> Iterable[_Part]:
    items: dict[tuple[str, str, str, bool], list[tuple]] = defaultdict(list)
    for number, step in enumerate(steps):
        for g in (group for group in step.groups if not _is_product(step, group, rows)):
            place = (g.op_class, g.precision, step.memory, step.boosted)
            site, launches, fits = step.site, max(1, g.launches), g.bytes <= step.site.cache_bytes
            peak = efficiencies.figure(site.peak_flops, g.precision)
            work = (g.count, g.flops, g.bytes, launches, g.outputs, g.cold, peak, site.bandwidth_bytes_per_s)
            items[place].append((number, *work, site.sms, efficiencies.operands(site, g.precision), fits))
    rate = rows.cache_bytes_per_s_per_sm.value if rows.cache_bytes_per_s_per_sm else 0.0
    for place, works in items.items():
        columns = np.array(works, float).T
        yield _Part(*place, rate, columns[0].astype(int), *columns[1:-1], columns[-1].astype(bool))


class Fitted(NamedTuple):
    """The fitted numbers of both stages, with the figures of `machines.json` among them, and the loss of the second stage."""

    numbers: dict[str, float]
    loss: float


def fit(steps: Sequence[StepOps], rows: EfficiencyRows, again: bool = True) -> Fitted:
    """The numbers that give the least absolute log error of the steps that can be fitted on.

    `again`: also those of the first stage; otherwise they are those of `rows` and `machines.json`.
    """
    steps = [s for s in steps if not s.waits_for_host and s.row.chip not in UNLIKE and s.row.source not in UNFITTED]
    first = [step for step in steps if step.in_first_stage] if again else []
    full = {"gddr": figures_of_presets()["gddr"], "boost": 1.0}
    if first:
        full = min((_fit(first, rows, START, {"gddr": share, "boost": 1.0}) for share in GDDR), key=lambda result: result.loss).numbers
    return _fit([step for step in steps if not step.in_first_stage], rows, TENSOR_START, full)


def _fit(steps: Sequence[StepOps], rows: EfficiencyRows, begin: dict[str, float], others: dict[str, float]) -> Fitted:
    """The numbers named in `begin`, from there on. `others`: the other numbers, which stay."""
    from scipy.optimize import minimize

    sizes = Counter((step.row.chip, step.row.model) for step in steps)
    weights = np.array([sizes[step.row.chip, step.row.model] ** -0.5 for step in steps])
    logs, start = np.log([s.row.published_s - s.copy_s for s in steps]), np.log(list(begin.values()))
    work = _Work(steps, with_numbers(rows, others), {**begin, **others}, begin)

    def loss(point: np.ndarray) -> float:
        numbers = {**others, **_numbers(begin, point)}
        errors = np.log(work.seconds(with_numbers(rows, numbers), numbers)) - logs
        return np.average(np.abs(errors), weights=weights) + _PULL * ((point - start) ** 2).sum()

    point = start
    for _ in range(2):  # a restart leaves a simplex that has collapsed
        best = minimize(loss, point, method="Nelder-Mead", options={"maxiter": 1200, "xatol": 2e-3, "fatol": 1e-6, "adaptive": True})
        point = best.x
    return Fitted({**others, **_numbers(begin, point)}, float(best.fun))


def _numbers(names: Iterable[str], logs: np.ndarray) -> dict[str, float]:
    """Numbers from their logarithms. No kernel reaches more than a peak, whatever would make up for other tasks that are too slow."""
    numbers = dict(zip(names, np.exp(logs).tolist(), strict=True))
    free = ("least_s", "idle", "split", "fed", "boost")
    return {name: value if name in free else min(1.0, value) for name, value in numbers.items()}


def with_numbers(rows: EfficiencyRows, numbers: dict[str, float], errors: dict[str, float] | None = None) -> EfficiencyRows:
    """`rows` with those fitted numbers that are given. `errors`: by precision, those of left-out steps; with them, numbers are rounded."""

    def changed(name: str, precision: str = "fp32") -> Number | None:
        if name not in numbers:
            return None
        error = 0.3 if errors is None else round(errors[precision], 2)
        return Number(numbers[name] if errors is None else float(f"{numbers[name]:.2g}"), error, fit_efficiencies.STEPS)

    def row(name: str, compute: dict[str, Number | None] | None = None, **more: Number | None) -> EfficiencyRow:
        own = rows.row(name)
        shares = {precision: share for precision, share in (compute or {}).items() if share is not None}
        return own.model_copy(update={"compute": {**own.compute, **shares}, **{k: v for k, v in more.items() if v is not None}})

    shared = {"least_s": changed("least_s"), "idle": changed("idle"), "split_flops": changed("split")}
    fed = changed("fed", MIXED)
    classes = {
        "conv": row("conv", {"fp32": changed("fp32")}, memory=changed("memory"), fed=fed, **shared),
        WINOGRAD: row(WINOGRAD, {"fp32": changed("winograd")}, memory=changed("winograd memory"), **shared),
        HALF: row(HALF, memory=changed("half memory", MIXED), fed=fed, **shared),
        CHANNELS_LAST: row(CHANNELS_LAST, memory=changed("channels-last memory", MIXED), fed=fed, **shared),
        NORM_HALF: row(NORM_HALF, memory=changed("norm half", MIXED)),
        NORM_CHANNELS_LAST: row(NORM_CHANNELS_LAST, memory=changed("norm channels-last", MIXED)),
        "grouped-conv": row("grouped-conv", {"bf16": changed("narrow", MIXED)}),
    }
    return rows.model_copy(update={"classes": {**rows.classes, **classes}})


def leave_out(steps: Sequence[StepOps], ops: Sequence[Op], table: EfficiencyRows, what: str) -> dict[tuple[str, int], float]:
    """The predicted seconds of every row, by its place, from rows fitted without its `chip`, or without the tenth of models with its own.

    The numbers of the first stage are fitted again where a step that they depend on is left out, and so are rows of single ops.
    """
    results = {}
    for names in _left_out({getattr(step.row, what) for step in steps}, what):
        sources = {source for name in names for source in OF_MODEL.get(name, ())}
        left = [step for step in steps if getattr(step.row, what) in names]
        kept = [op for op in ops if not (op.gpu.lower() in names if what == "chip" else op.source in sources)]
        known = table
        for name in names if what == "chip" else ():
            known = fit_products.without(known, name)
        rows = fit_efficiencies.fit(kept, fit_efficiencies.prior(known)) if len(kept) < len(ops) else known
        fitted = fit([step for step in steps if step not in left], rows, any(step.in_first_stage for step in left))
        rows = with_numbers(rows, fitted.numbers)
        results |= {step.place: step_seconds(step, rows, fitted.numbers) for step in left}
    return results


def _left_out(names: Set[str], what: str) -> list[Set[str]]:
    """Each chip by itself, and the models in tenths."""
    ordered = sorted(names)
    return [{name} for name in ordered] if what == "chip" else [{*ordered[first::10]} for first in range(min(10, len(ordered)))]


def rms_log(steps: Iterable[StepOps], seconds_of: dict[tuple[str, int], float]) -> float:
    """Root mean square of the logarithms of predicted over published."""
    return fit_efficiencies.rms(math.log(seconds_of[step.place] / step.row.published_s) for step in steps)


def scored(steps: Sequence[StepOps], seconds_of: dict[tuple[str, int], float], what: str) -> list[ScoredStep]:
    """The rows with intervals as wide as the errors of the other chips, or models, when those were left out.

    As in `discrepancy.step_accuracy`, a chip whose other models err more than that is known to.
    """
    rows = []
    for step in steps:
        row, value, reach = step.row, seconds_of[step.place], math.exp(Z_90 * _known_error(step, steps, seconds_of, what))
        rows.append(
            ScoredStep(
                file=row.file, row=row.number, source=row.source, gpu=row.gpu, machine=row.machine, model=row.model, family="",
                batch=row.job.batch, precision=row.job.precision, layout=row.job.layout, measured_s=row.published_s, predicted_s=value,
                interval_s=(value / reach, value * reach), waits_for_host=step.waits_for_host,
            )
        )  # fmt: skip
    return rows


def _known_error(step: StepOps, steps: Sequence[StepOps], seconds_of: dict[tuple[str, int], float], what: str) -> float:
    """The error of a step that is known without it: that of other chips, or models, or of other models on the same chip."""
    others = rms_log((s for s in steps if getattr(s.row, what) != getattr(step.row, what)), seconds_of)
    same = [s for s in steps if s.row.chip == step.row.chip and s.row.model != step.row.model and not s.waits_for_host]
    return max(others, rms_log(same, seconds_of)) if len(same) >= LEAST else others


def print_scores(steps: Sequence[StepOps], seconds_of: dict[tuple[str, int], float], what: str) -> None:
    """Print the scores of left-out chips, or models."""
    every = scored(steps, seconds_of, what)
    of_device = [item for item in every if not item.waits_for_host]
    name = {"chip": "machine", "model": "model"}[what]
    print(f"\nEvery {what} left out; steps that do not wait for the host:\n| {name} | rows | {' | '.join(_COLUMNS)} |\n{'|---' * 7}|")
    groups = [
        (group, [item for item in of_device if getattr(item, name) == group]) for group in sorted({getattr(i, name) for i in of_device})
    ]
    unlike = {step.row.machine for step in steps if step.row.chip in UNLIKE}
    for label, items in (
        *groups,
        ("all", of_device),
        ("all but K80", [item for item in of_device if item.machine not in unlike]),
        ("waiting for the host", [item for item in every if item.waits_for_host]),
        ("every row", every),
    ):
        if items:
            print(score_line(label, Score.of(items)))


#: The columns of a score but the number of rows.
_COLUMNS = ("median error", "worst", "median signed", "within 30 %", "in the interval")


def score_line(name: str, score: Score) -> str:
    """A line of a table of scores."""
    shown = f"{score.median_error:.0%} | {score.worst_error:+.0%} | {score.bias:+.0%} | {score.within_30:.0%} | {score.covered:.0%}"
    return f"| {name} | {score.rows} | {shown} |"


#: The rows of the table with numbers of the second stage.
_WRITTEN = ("conv", HALF, CHANNELS_LAST, NORM_HALF, NORM_CHANNELS_LAST, "grouped-conv")


def write(rows: EfficiencyRows, steps: Sequence[StepOps], seconds_of: dict[tuple[str, int], float]) -> None:
    """Put the rows into the table, and the errors of left-out chips into `published.json`."""
    document = efficiencies.TABLE.read_text()
    for name in _WRITTEN:
        start = document.index(f'      "{name}": {{', document.index('"gpu": {'))
        kept = rows.classes[name].model_dump(exclude_none=True, exclude_defaults=True)
        lines = ",\n".join(f'        "{key}": {json.dumps(value)}' for key, value in kept.items())
        document = (
            document[:start] + f'      "{name}": {{\n{lines}\n      }}' + document[document.index("\n      }", start) + len("\n      }") :]
        )
    efficiencies.TABLE.write_text(document)
    groups: dict[str, list[StepOps]] = defaultdict(list)
    for step in steps:
        groups[step.row.chip].append(step)
    published = json.loads(DATA.read_text())
    published["left_out"] = [
        {"gpu": chip, "rows": len(own), "rms": round(rms_log(own, seconds_of), 3)} for chip, own in sorted(groups.items())
    ]
    DATA.write_text(text(published))


def all_steps(folder: Path) -> list[StepOps]:
    """The work of all rows of the folder's tables that can be predicted."""
    steps = []
    for row in sampled(read_folder(folder)[0], SAMPLE)[0]:
        try:
            steps.append(step_ops(row))
        except SchedcastError as error:
            print(f"{row.file}, row {row.number}: {error}", file=sys.stderr)
    return steps


def main(arguments: Sequence[str]) -> None:
    """Print the fitted numbers and the scores."""
    folder = shared_folder("")
    if folder is None:
        print("no public measurements beside the repository; set SCHEDCAST_SHARED")
        return
    print_fit(all_steps(folder), fit_efficiencies.ops_of(folder), "--write" in arguments)


def print_fit(steps: Sequence[StepOps], ops: Sequence[Op], writes: bool) -> None:
    """Print the fitted numbers and the scores. `writes`: put them where predictions find them, except for those of `machines.json`."""
    table = efficiencies.table()["gpu"]
    fitted = fit(steps, table, again=False)
    print("fitted:", *(f"{name} {value:.2g}" for name, value in fitted.numbers.items()), flush=True)
    by_chip = leave_out(steps, ops, table, "chip")
    print_scores(steps, by_chip, "chip")
    if writes:
        of_device = [step for step in steps if not step.waits_for_host]
        known = [step for step in of_device if step.row.chip not in UNLIKE]
        precisions = {name: rms_log([s for s in known if s.precision == name], by_chip) for name in ("fp32", "tf32", MIXED)}
        tensor = {name: fitted.numbers[name] for name in TENSOR_START}
        write(with_numbers(table, tensor, precisions), of_device, by_chip)
    print_scores(steps, leave_out(steps, ops, table, "model"), "model")


if __name__ == "__main__":
    main(sys.argv[1:])
