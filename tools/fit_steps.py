"""Fits the GPU rows of convolutions and normalizations in `simulator/engine/costs/efficiencies.json` on published steps.

    python -m tools.fit_steps [--write] [--sample ROWS]

In two stages, on steps that do not wait for the host. First, on steps in FP32 without tensor cores: the shares of the peak that
convolutions reach directly and as Winograd kernels, their shares of the bandwidth, the least time of a kernel, the cost of a small number
of blocks, how many FLOPs a block has that splits a sum, and what GDDR memories reach relative to HBM. Then, on steps in TF32 and mixed
precision and on those of newer desktop cards: how fast an SM's tensor cores are fed, the shares of the bandwidth of convolutions and
normalizations in 16 bits in either layout, the share of the peak of narrow groups, what GDDR6 and GDDR6X reach, and how far such cards
clock above their rated boost. All other rows are those fitted on single ops (`fit_efficiencies`, `fit_products`). The loss is the mean
absolute log error; the rows of a model on a chip together weigh the square root of their number.

Then every chip is excluded in turn, and every model, from the steps and from the single ops, and its rows are predicted with what the
others give: these are the scores, and the deviation of those of chips is the known accuracy of presets (`discrepancy.deviation`).
`--write` puts the numbers of the second stage into the table and the accuracy into `published.json`; those of the first stay, for papers
are predicted with them. A K80's rows are scored, but none is fitted on: it is older than any other GPU of the tables. Nor are those of
`UNFITTED`. `--sample`: rows of a large table (default: SAMPLE).
"""

import argparse
import json
import math
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence, Set
from pathlib import Path
from typing import NamedTuple

import numpy as np

from simulator.engine.costs import efficiencies
from simulator.engine.costs.cost import Z_90
from simulator.engine.costs.efficiencies import (
    CHANNELS_LAST,
    HALF,
    NORM_CHANNELS_LAST,
    NORM_HALF,
    WINOGRAD,
    EfficiencyRow,
    EfficiencyRows,
)
from simulator.engine.costs.site import Number
from simulator.predict.discrepancy import DATA, LEAST, deviation
from simulator.predict.intervals import Sensitivity, step_interval
from simulator.predict.scoreboard.rows import read_folder, sampled
from tests.support.shared_data import shared_folder
from tools import fit_efficiencies, fit_products
from tools.public_ops import Op
from tools.published import text
from tools.step_work import MIXED, StepOps, Work, device_seconds, figures_of_presets, step_ops
from traces.documents.scoreboard import Score, ScoredStep
from traces.errors import SchedcastError

#: The numbers of the first stage and where the search starts.
START = {
    "fp32": 0.8, "winograd": 0.7, "memory": 0.5, "winograd memory": 0.5, "least_s": 5e-6, "idle": 0.3, "split": 4e6, "gddr": 0.8,
}  # fmt: skip
#: The same of the second. The figures of memories, and `boost`, are in `machines.json`.
TENSOR_START = {
    "fed": 1500.0, "half memory": 0.5, "channels-last memory": 0.9, "norm half": 0.5, "norm channels-last": 0.5, "narrow": 0.05,
    "gddr6": 0.85, "gddr6x": 0.85, "boost": 1.1,
}  # fmt: skip
#: How much a number's distance from its start counts in addition to the mean error.
_PULL = 0.01
#: Chips that are scored only.
UNLIKE = frozenset({"k80"})
#: Sources that are scored only: figures of papers that the house reproduces.
UNFITTED = frozenset({"Zhang and Abdelrahman"})
#: Sources of single ops that are excluded with a model.
OF_MODEL = {
    **{name: {"neusight"} for name in ("bert_base", "bert_large", "gpt2", "gpt2_large")},
    "resnet50": {"pytorch", "triosim"},
    "vgg13": {"triosim-trace"},
}
#: Rows of a large table that are fitted on.
SAMPLE = 200
#: The most that the GPU may take of a step from which the host's time is judged.
_LITTLE = 0.7


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
        full = _fit(first, rows, START, {"boost": 1.0}).numbers
    return _fit([step for step in steps if not step.in_first_stage], rows, TENSOR_START, full)


def _fit(steps: Sequence[StepOps], rows: EfficiencyRows, begin: dict[str, float], others: dict[str, float]) -> Fitted:
    """The numbers named in `begin`, from there on. `others`: the other numbers, which stay."""
    from scipy.optimize import minimize

    sizes = Counter((step.row.chip, step.row.model) for step in steps)
    weights = np.array([sizes[step.row.chip, step.row.model] ** -0.5 for step in steps])
    logs, start = np.log([s.row.published_s - s.copy_s for s in steps]), np.log(list(begin.values()))
    work = Work(steps, with_numbers(rows, others), {**begin, **others}, begin)

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
    """Device seconds of every row, by its place, from rows fitted without its `chip`, or without the tenth of models with its own.

    The numbers of the first stage are fitted again if a step that they depend on is excluded, and so are rows of single ops.
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
        results |= {step.place: device_seconds(step, rows, fitted.numbers) for step in left}
    return results


def _left_out(names: Set[str], what: str) -> list[Set[str]]:
    """Each chip by itself, and the models in tenths."""
    ordered = sorted(names)
    return [{name} for name in ordered] if what == "chip" else [{*ordered[first::10]} for first in range(min(10, len(ordered)))]


def errors_of(steps: Iterable[StepOps], device_s: dict[tuple[str, int], float]) -> list[float]:
    """The logarithms of predicted over published."""
    return [math.log(step.seconds(device_s[step.place]) / step.row.published_s) for step in steps]


def scored(steps: Sequence[StepOps], device_s: dict[tuple[str, int], float], what: str) -> list[ScoredStep]:
    """The rows with intervals as wide as the errors of the other chips, or models, when those were excluded, and of other sources' hosts.

    As in a prediction, the step is the longer of what the GPU and what the host takes, each with its error.
    """
    rows = []
    for step in steps:
        row, own_s, known = step.row, device_s[step.place], _known_error(step, steps, device_s, what)
        chains, errors = ({"GPU": own_s}, {"host": step.host_s}), {"GPU": known, "host": host_error(step.row.source, steps, device_s)}
        value = step.seconds(own_s)
        rows.append(
            ScoredStep(
                file=row.file, row=row.number, source=row.source, gpu=row.gpu, machine=row.machine, model=row.model, family="",
                batch=row.job.batch, precision=row.job.precision, layout=row.job.layout, measured_s=row.published_s, predicted_s=value,
                interval_s=step_interval(Sensitivity(value, chains, errors), accuracy=known), waits_for_host=step.waits_for_host,
            )
        )  # fmt: skip
    return rows


def _known_error(step: StepOps, steps: Sequence[StepOps], device_s: dict[tuple[str, int], float], what: str) -> float:
    """The error of a GPU's time that is known without the step: that of other chips, or models, or of other models on the same chip.

    As in `discrepancy.step_accuracy`, a chip whose other models err more than that is known to.
    """
    of_device = [s for s in steps if not s.waits_for_host]
    others = deviation(errors_of((s for s in of_device if getattr(s.row, what) != getattr(step.row, what)), device_s))
    same = [s for s in of_device if s.row.chip == step.row.chip and s.row.model != step.row.model]
    return max(others, deviation(errors_of(same, device_s))) if len(same) >= LEAST else others


def host_errors(steps: Iterable[StepOps], device_s: dict[tuple[str, int], float]) -> dict[str, float]:
    """By source, the root mean square error (of the logarithm) of the host's time in steps whose GPU has little to do."""
    errors = defaultdict(list)
    for step in steps:
        left_s = step.row.published_s - step.copy_s
        if step.waits_for_host and device_s[step.place] < _LITTLE * left_s:
            errors[step.row.source].append(math.log(step.host_s / left_s))
    return {source: fit_efficiencies.rms(own) for source, own in sorted(errors.items())}


def host_error(but: str, steps: Iterable[StepOps], device_s: dict[tuple[str, int], float]) -> float:
    """The error of a host's time by the sources other than `but`. A small number of hosts says little about the next one: Student's t."""
    from scipy.stats import t

    others = [error for source, error in host_errors(steps, device_s).items() if source != but]
    return fit_efficiencies.rms(others) * float(t.ppf(0.95, len(others))) / Z_90 if others else 0.0


def print_scores(steps: Sequence[StepOps], device_s: dict[tuple[str, int], float], what: str) -> None:
    """Print the scores of left-out chips, or models."""
    every = scored(steps, device_s, what)
    of_device = [item for item in every if not item.waits_for_host]
    name = {"chip": "machine", "model": "model"}[what]
    print(f"\nEvery {what} excluded; steps that do not wait for the host:\n| {name} | rows | {' | '.join(_COLUMNS)} |\n{'|---' * 7}|")
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


def write(rows: EfficiencyRows, steps: Sequence[StepOps], device_s: dict[tuple[str, int], float]) -> None:
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
        {"gpu": chip, "errors": [round(error, 3) for error in errors_of(own, device_s)]} for chip, own in sorted(groups.items())
    ]
    DATA.write_text(text(published))


def all_steps(folder: Path, sample: int = SAMPLE) -> list[StepOps]:
    """The work of all rows of the folder's tables that can be predicted."""
    steps = []
    for row in sampled((row for row in read_folder(folder)[0] if row.strategy == "pytorch"), sample)[0]:
        try:
            steps.append(step_ops(row))
        except SchedcastError as error:
            print(f"{row.file}, row {row.number}: {error}", file=sys.stderr)
    return steps


def main(arguments: Sequence[str]) -> None:
    """Print the fitted numbers and the scores."""
    folder = shared_folder("")
    if folder is None:
        print("no public measurements next to the repository; set SCHEDCAST_SHARED")
        return
    parser = argparse.ArgumentParser()
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--sample", type=int, default=SAMPLE)
    options = parser.parse_args(arguments)
    print_fit(all_steps(folder, options.sample), fit_efficiencies.ops_of(folder), options.write)


def print_fit(steps: Sequence[StepOps], ops: Sequence[Op], writes: bool) -> None:
    """Print the fitted numbers and the scores. `writes`: put them where predictions find them, except for those of `machines.json`."""
    table = efficiencies.table()["gpu"]
    fitted = fit(steps, table, again=False)
    print("fitted:", *(f"{name} {value:.2g}" for name, value in fitted.numbers.items()), flush=True)
    by_chip = leave_out(steps, ops, table, "chip")
    print_scores(steps, by_chip, "chip")
    hosts = host_errors(steps, by_chip)
    print(
        "errors of hosts:",
        *(f"{source} {error:.2g}," for source, error in hosts.items()),
        f"of another one {host_error('', steps, by_chip):.2g}",
    )
    if writes:
        of_device = [step for step in steps if not step.waits_for_host]
        known = [step for step in of_device if step.row.chip not in UNLIKE]
        precisions = {name: deviation(errors_of((s for s in known if s.precision == name), by_chip)) for name in ("fp32", "tf32", MIXED)}
        tensor = {name: fitted.numbers[name] for name in TENSOR_START}
        write(with_numbers(table, tensor, precisions), of_device, by_chip)
    print_scores(steps, leave_out(steps, ops, table, "model"), "model")


if __name__ == "__main__":
    main(sys.argv[1:])
