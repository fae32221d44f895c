"""Fits the GPU rows of convolutions in `simulator/engine/costs/efficiencies.json` on published steps.

    python -m tests.benchmarks.fit_steps [--write]

Nine numbers are fitted on the steps of `measured_steps.csv` in FP32 and TF32 that do not wait for the host: the share of the peak that
convolutions reach in FP32, in TF32 and as Winograd kernels, their shares of the bandwidth, the least time of a kernel, how much few blocks
cost, how many FLOPs a block has that splits a sum, and what GDDR memories reach beside HBM. Then four are fitted on the steps in mixed
precision: the shares of peak and bandwidth of convolutions in 16 bits, in either layout. All other rows are those fitted on single ops
(`fit_efficiencies`, `fit_products`). The loss is the mean absolute log error; the rows of a model on a chip together weigh the square
root of their number.

Then every chip is left out in turn, and every model, from the steps, the single ops and the products, and its rows are predicted with
what the others give: these are the scores, and the root mean square of those of chips is the known accuracy of presets. `--write` puts
the numbers into the table and the accuracy into `published.json`. A K80's rows are scored, but none is fitted on: it is older than any
other GPU of the table.
"""

import json
import math
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from simulator.engine.costs import efficiencies
from simulator.engine.costs.efficiencies import CHANNELS_LAST, HALF, WINOGRAD, EfficiencyRows
from simulator.engine.costs.products import Product
from simulator.engine.costs.site import Number, Site
from simulator.engine.hosts import issue_seconds
from simulator.predict.discrepancy import DATA
from tests.benchmarks import fit_efficiencies, fit_products
from tests.benchmarks.measured_steps import TABLE, Row, predicted, read
from tests.benchmarks.public_ops import Op
from tests.benchmarks.published import text
from tests.benchmarks.step_scores import ScoredRow, group_lines, total_line
from tests.support.shared_data import shared_folder

CONV = ("conv", WINOGRAD, HALF, CHANNELS_LAST)
#: The fitted numbers and where the search starts.
START = {
    "fp32": 0.8, "winograd": 0.7, "tf32": 0.4, "memory": 0.5, "winograd memory": 0.5, "least_s": 5e-6, "idle": 0.3, "split": 4e6,
}  # fmt: skip
#: The same of steps in mixed precision.
HALF_START = {"half": 0.4, "half memory": 0.5, "channels-last": 0.4, "channels-last memory": 0.5}
#: What is tried for the share of a GDDR memory's bandwidth that is reached beside that of HBM.
GDDR = (1.0, 0.9, 0.8, 0.7, 0.6)
#: How much a number's distance from its start counts beside the mean error.
_PULL = 0.01
#: A step of less time per launch may wait for the host.
HOST_S = 45e-6
#: Chips that are scored only.
UNLIKE = frozenset({"K80"})
#: Sources of single ops that are left out with a model.
OF_MODEL = {
    **{name: {"neusight"} for name in ("bert_base", "bert_large", "gpt2", "gpt2_large")},
    "resnet50": {"pytorch", "triosim"},
    "vgg13": {"triosim-trace"},
}
Z_90 = 1.645


class Group(NamedTuple):
    """`count` tasks of a step with equal work. `cold`: the share of their reads that is not in the cache."""

    op_class: str
    precision: str
    flops: float
    bytes: float
    launches: int
    outputs: float
    product: Product | None
    cold: float
    count: int


class StepOps(NamedTuple):
    """The work of a published step, and the time for which the host issues it."""

    row: Row
    site: Site
    hbm: bool
    groups: tuple[Group, ...]
    launches: int
    host_s: float

    @property
    def waits_for_host(self) -> bool:
        """Whether the published time is short for its launches, or the source waits for the GPU in every step."""
        return self.row.mode == "eager" and (self.row.synchronized or self.row.published_s < HOST_S * self.launches)

    def with_gddr(self, reached: float) -> "StepOps":
        """The same step where GDDR memories reach a share of their bandwidth."""
        return self if self.hbm else self._replace(site=self.site._replace(bandwidth_bytes_per_s=self.site.bandwidth_bytes_per_s * reached))


def step_ops(row: Row) -> StepOps:
    """The work of a row. What the cache holds comes from a simulation with the table as it is."""
    result = predicted(row)
    device = result.machine.devices[0]
    memory = result.machine.memory(device.name)
    site = Site.of_device(device, replace(memory, reached=1.0), 1.0)
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
    host_s = sum(issue_seconds(host, cost.launches, cost.issue_s) for cost in result.costs)
    return StepOps(row, site, memory.reached == 1.0, groups, launches, 0.0 if row.mode == "graph" else host_s)


def _fitted(group: Group) -> bool:
    """Whether numbers of the group's row are fitted here."""
    return group.op_class in CONV


def seconds(step: StepOps, rows: EfficiencyRows, chosen: Callable[[Group], bool] = lambda group: True) -> float:
    """The device time of the step's ops, or of those that are chosen."""
    total = 0.0
    for group in step.groups:
        if chosen(group):
            work = (group.flops, group.bytes, group.precision, group.launches)
            said = efficiencies.seconds(step.site, group.op_class, *work, rows, group.outputs or None, group.product)
            total += group.count * (said.warm + group.cold * (said.cold - said.warm))
    return total


def step_seconds(step: StepOps, rows: EfficiencyRows) -> float:
    """The predicted time of a step on one stream: that of the device, or of the host if it is longer."""
    return max(seconds(step, rows), step.host_s)


#: What has a share of the peak of its own, and of those what has one of the bandwidth too.
_KINDS = ("fp32", "tf32", "winograd", "half", "channels-last")
_OWN_MEMORY = ("winograd", "half", "channels-last")


class _Work:
    """The ops of many steps whose numbers are fitted, as arrays, to price them fast."""

    def __init__(self, steps: Sequence[StepOps], rows: EfficiencyRows):
        self.fixed_s = np.array([seconds(step, rows, lambda group: not _fitted(group)) for step in steps])
        items = [(i, step.site, group) for i, step in enumerate(steps) for group in step.groups if _fitted(group)]
        tile, saved = rows.row("conv").tile.value, rows.row(WINOGRAD).saved.value
        self.step = np.array([i for i, _, _ in items])
        self.kind = np.array([_kind(group) for _, _, group in items])
        self.count = np.array([g.count for _, _, g in items], float)
        self.flops = np.array([g.flops / (saved if g.op_class == WINOGRAD else 1) for _, _, g in items])
        self.peak = np.array([efficiencies.figure(site.peak_flops, g.precision) for _, site, g in items])
        self.memory_s = np.array([g.bytes / site.bandwidth_bytes_per_s for _, site, g in items])
        self.launches = np.array([max(1, g.launches) for _, _, g in items], float)
        self.sms = np.array([site.sms for _, site, _ in items], float)
        self.tiles = np.array([g.outputs / tile for _, _, g in items])

    def seconds(self, numbers: dict[str, float]) -> np.ndarray:
        """Device seconds of every step."""
        share = np.select([self.kind == name for name in _KINDS], [numbers[name] for name in _KINDS])
        memory = np.select(
            [self.kind == name for name in _OWN_MEMORY], [numbers[f"{name} memory"] for name in _OWN_MEMORY], numbers["memory"]
        )
        blocks = np.maximum(self.tiles, self.flops / self.launches / numbers["split"])
        computing_s = self.flops / self.peak / share * (1 + numbers["idle"] * self.sms / blocks)
        each = computing_s + self.memory_s / memory + self.launches * numbers["least_s"]
        return self.fixed_s + np.bincount(self.step, each * self.count, len(self.fixed_s))


def _kind(group: Group) -> str:
    return group.op_class.partition(".")[2] or group.precision


class Fitted(NamedTuple):
    """The fitted numbers, the share of a GDDR memory's bandwidth, and the loss."""

    numbers: dict[str, float]
    gddr: float
    loss: float


def fit(steps: Sequence[StepOps], rows: EfficiencyRows) -> Fitted:
    """The numbers that give the least absolute log error of the steps that can be fitted on: of full precision, then of mixed."""
    steps = [s for s in steps if not s.waits_for_host and s.row.chip not in UNLIKE and any(map(_fitted, s.groups))]
    mixed = [step for step in steps if step.row.mixed]
    full = _fit([step for step in steps if not step.row.mixed], rows, START, HALF_START, GDDR)
    half = _fit(mixed, rows, HALF_START, full.numbers, [full.gddr]) if mixed else full
    return Fitted({**HALF_START, **full.numbers, **half.numbers}, full.gddr, full.loss)


def _fit(
    steps: Sequence[StepOps], rows: EfficiencyRows, begin: dict[str, float], others: dict[str, float], gddr_shares: Iterable[float]
) -> Fitted:
    """The numbers named in `begin`, from there on. `others`: the other numbers, which stay."""
    from scipy.optimize import minimize

    sizes = Counter((step.row.chip, step.row.model) for step in steps)
    weights = np.array([sizes[step.row.chip, step.row.model] ** -0.5 for step in steps])
    logs, start = np.log([s.row.published_s for s in steps]), np.log(list(begin.values()))
    results = []
    for gddr in gddr_shares:
        work = _Work([step.with_gddr(gddr) for step in steps], rows)

        def loss(point: np.ndarray, work=work) -> float:
            errors = np.log(work.seconds({**others, **_numbers(begin, point)})) - logs
            return np.average(np.abs(errors), weights=weights) + _PULL * ((point - start) ** 2).sum()

        point = start
        for _ in range(2):  # a restart leaves a simplex that has collapsed
            best = minimize(loss, point, method="Nelder-Mead", options={"maxiter": 2500, "xatol": 1e-3, "fatol": 1e-6})
            point = best.x
        results.append(Fitted(_numbers(begin, point), gddr, float(best.fun)))
    return min(results, key=lambda result: result.loss)


def _numbers(names: Iterable[str], logs: np.ndarray) -> dict[str, float]:
    """Numbers from their logarithms. No kernel reaches more than a peak, whatever would make up for other tasks that are too slow."""
    numbers = dict(zip(names, np.exp(logs).tolist(), strict=True))
    return {name: min(1.0, value) if name in _KINDS or name.endswith("memory") else value for name, value in numbers.items()}


def with_numbers(rows: EfficiencyRows, numbers: dict[str, float], errors: dict[str, float] | None = None) -> EfficiencyRows:
    """`rows` with fitted numbers. `errors`: by precision, those of left-out steps."""

    def number(name: str, precision: str = "fp32") -> Number:
        return Number(float(f"{numbers[name]:.2g}"), round((errors or {}).get(precision, 0.3), 2), fit_efficiencies.STEPS)

    shared = {"least_s": number("least_s"), "idle": number("idle"), "split_flops": number("split"), "adds": True}
    conv, fast = rows.row("conv"), rows.row(WINOGRAD)
    classes = {
        "conv": conv.model_copy(
            update={
                "compute": {**conv.compute, "fp32": number("fp32"), "tf32": number("tf32", "tf32")},
                "memory": number("memory"),
                **shared,
            }
        ),
        WINOGRAD: fast.model_copy(update={"compute": {"fp32": number("winograd")}, "memory": number("winograd memory"), **shared}),
        **{
            name: conv.model_copy(update={"compute": {"fp32": share}, "memory": memory, **shared})
            for name, share, memory in (
                (HALF, number("half", "amp-fp16"), number("half memory", "amp-fp16")),
                (CHANNELS_LAST, number("channels-last", "amp-fp16"), number("channels-last memory", "amp-fp16")),
            )
        },
    }
    return rows.model_copy(update={"classes": {**rows.classes, **classes}})


def without(
    steps: Sequence[StepOps], ops: Sequence[Op], table: EfficiencyRows, left: Callable[[StepOps], bool], op_left: Callable[[Op], bool]
) -> tuple[EfficiencyRows, float]:
    """All rows, and the share of GDDR memories, fitted anew without some steps and some single ops."""
    kept = [op for op in ops if not op_left(op)]
    rows = fit_efficiencies.fit(kept, fit_efficiencies.prior(table)) if len(kept) < len(ops) else table
    fitted = fit([step for step in steps if not left(step)], rows)
    return with_numbers(rows, fitted.numbers), fitted.gddr


def leave_out(steps: Sequence[StepOps], ops: Sequence[Op], table: EfficiencyRows, what: str) -> dict[int, float]:
    """The predicted seconds of every row, by its number, from rows fitted without its `chip`, or its `model`."""
    results = {}
    for name in sorted({getattr(step.row, what) for step in steps}):
        sources = OF_MODEL.get(name, frozenset())
        op_left = (lambda op, name=name: op.gpu == name) if what == "chip" else (lambda op, sources=sources: op.source in sources)
        known = fit_products.without(table, name) if what == "chip" else table
        rows, gddr = without(steps, ops, known, lambda step, name=name: getattr(step.row, what) == name, op_left)
        results |= {step.row.number: step_seconds(step.with_gddr(gddr), rows) for step in steps if getattr(step.row, what) == name}
    return results


def rms_log(steps: Iterable[StepOps], seconds_of: dict[int, float]) -> float:
    """Root mean square of the logarithms of predicted over published."""
    return fit_efficiencies.rms(math.log(seconds_of[step.row.number] / step.row.published_s) for step in steps)


def scored(steps: Sequence[StepOps], seconds_of: dict[int, float], what: str) -> list[ScoredRow]:
    """The rows with intervals as wide as the errors of the other chips, or models, when those were left out."""
    rows = []
    for step in steps:
        own = getattr(step.row, what)
        reach = math.exp(Z_90 * rms_log((s for s in steps if getattr(s.row, what) != own), seconds_of))
        value = seconds_of[step.row.number]
        rows.append(ScoredRow(step.row, value, (value / reach, value * reach)))
    return rows


def print_scores(steps: Sequence[StepOps], seconds_of: dict[int, float], what: str) -> None:
    """Print the scores of left-out chips, or models."""
    every = scored(steps, seconds_of, what)
    waiting = {step.row.number for step in steps if step.waits_for_host}
    of_device = [item for item in every if item.row.number not in waiting]
    name = {"chip": "GPU", "model": "model"}[what]
    print(f"\nEvery {what} left out; steps that do not wait for the host:")
    print("\n".join(group_lines(of_device, name)))
    for label, items in (
        ("all", of_device),
        ("all but K80", [item for item in of_device if item.row.chip not in UNLIKE]),
        ("waiting for the host", [item for item in every if item.row.number in waiting]),
        ("every row", every),
    ):
        if items:
            print(total_line(label, items))


def write(rows: EfficiencyRows, steps: Sequence[StepOps], seconds_of: dict[int, float]) -> None:
    """Put the rows into the table, and the errors of left-out chips into `published.json`. The share of GDDR is in `machines.json`."""
    document = efficiencies.TABLE.read_text()
    for name in CONV:
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


def main(arguments: Sequence[str]) -> None:
    """Print the fitted numbers and the scores."""
    folder = shared_folder("")
    if folder is None or not (folder / TABLE).is_file():
        print("no public measurements beside the repository; set SCHEDCAST_SHARED")
        return
    steps = [step_ops(row) for row in read(folder / TABLE)[0]]
    ops = fit_efficiencies.ops_of(folder)
    table = efficiencies.table()["gpu"]
    fitted = fit(steps, table)
    print("fitted:", *(f"{name} {value:.2g}" for name, value in fitted.numbers.items()), f"GDDR {fitted.gddr} (in machines.json)")
    by_chip = leave_out(steps, ops, table, "chip")
    print_scores(steps, by_chip, "chip")
    if "--write" in arguments:
        of_device = [step for step in steps if not step.waits_for_host]
        known = [step for step in of_device if step.row.chip not in UNLIKE]
        precisions = {name: rms_log([s for s in known if s.row.job.precision == name], by_chip) for name in ("fp32", "tf32", "amp-fp16")}
        write(with_numbers(table, fitted.numbers, precisions), of_device, by_chip)
    print_scores(steps, leave_out(steps, ops, table, "model"), "model")


if __name__ == "__main__":
    main(sys.argv[1:])
