"""Published steps and speed-ups beside what presets predict for them: python -m tests.benchmarks.published [--write] [--rows]

First the rows of the shared table of measured steps, where it is (`measured_steps`), scored by GPU, model, precision and batch; with
`--rows` nothing else. Then the figures of `simulator/predict/published.json`.

`--write` puts the predictions into `simulator/predict/published.json`, from which the accuracy of presets is computed. Run it after any
change of the table of efficiencies, of the machines or of the engine. The last lines score the intervals: nine of ten published figures
should lie in them.
"""

import json
import sys
from collections.abc import Sequence
from typing import Any

from simulator.model.job import Job
from simulator.predict.discrepancy import DATA, PublishedSpeedup, PublishedStep, published, speedup_accuracy, step_accuracy
from simulator.predict.forecast import Forecast, forecast, paired_interval
from simulator.predict.preset import preset_costs
from simulator.strategies.registry import family
from tests.benchmarks.measured_steps import TABLE, read
from tests.benchmarks.measured_steps import predicted as row_forecast
from tests.benchmarks.step_scores import GROUPS, ROW_HEAD, ScoredRow, group_lines, left_out_lines, row_line, total_line
from tests.support.jobs import planned
from tests.support.shared_data import shared_folder


def predicted(entry: PublishedStep) -> Forecast:
    """The forecast of a published step."""
    job = Job(entry.model, entry.batch, optimizer=entry.optimizer, form=entry.form, precision=entry.precision)
    machine, model = preset_costs(job, entry.machine, entry.devices)
    return forecast(planned(entry.strategy, job, machine, model), machine, model)


def pair(entry: PublishedSpeedup) -> tuple[Forecast, Forecast]:
    """The forecasts of a published speed-up: of what it is over, and of the strategy."""
    figures = {"source": "", "machine": entry.machine, "model": entry.model, "published": 1.0, "predicted": 1.0, **entry.job}
    one = {"devices": 1, "batch": entry.batch // entry.devices} if entry.devices else {"batch": entry.batch}
    return (
        predicted(PublishedStep(**figures, strategy=entry.over, **one)),
        predicted(PublishedStep(**figures, strategy=entry.strategy, batch=entry.batch, devices=entry.devices)),
    )


def within(value: float, interval: tuple[float, float]) -> bool:
    """Whether a published figure lies in a predicted interval."""
    return interval[0] <= value <= interval[1]


def main(arguments: Sequence[str]) -> None:
    """Print the tables."""
    print_measured_steps()
    if "--rows" in arguments:
        return
    document: dict[str, Any] = json.loads(DATA.read_text())
    inside = {"steps": [], "speedups": []}
    print("| machine | job | strategy | published | predicted (90 %) | log error |\n|---|---|---|---|---|---|")
    for entry, row in zip(published().steps, document["steps"], strict=True):
        result = predicted(entry)
        row["predicted"] = float(f"{result.timeline.step_s:.4g}")
        inside["steps"].append(within(entry.published, result.interval_s))
        _print(entry, row["predicted"], result.interval_s, "s")
    for entry, row in zip(published().speedups, document["speedups"], strict=True):
        base, result = pair(entry)
        factor = entry.devices or 1
        interval = tuple(factor * bound for bound in paired_interval(base, result))
        row["predicted"] = float(f"{factor * base.timeline.step_s / result.timeline.step_s:.4g}")
        inside["speedups"].append(within(entry.published, interval))
        _print(entry, row["predicted"], interval, "x")
    if "--write" in arguments:
        DATA.write_text(text(document))
        published.cache_clear()
    by_family = {family(entry.strategy): speedup_accuracy(entry.strategy) for entry in published().speedups}
    print(f"\nAccuracy (of the logarithm): steps {step_accuracy():.2f}, speed-ups", *(f"{name} {s:.2f}" for name, s in by_family.items()))
    print("Within the interval:", *(f"{sum(hits)} of {len(hits)} {what}" for what, hits in inside.items()))


def print_measured_steps() -> None:
    """Predict every row of the shared table that can be predicted, and print errors and the coverage of intervals."""
    folder = shared_folder("")
    if folder is None or not (folder / TABLE).is_file():
        print("no public measurements beside the repository; set SCHEDCAST_SHARED\n")
        return
    rows, left_out = read(folder / TABLE)
    print(ROW_HEAD)
    scored = []
    for row in rows:
        result = row_forecast(row)
        scored.append(ScoredRow(row, result.timeline.step_s, result.interval_s))
        print(row_line(scored[-1]), flush=True)
    for name in GROUPS:
        print("\n".join(group_lines(scored, name)))
    print(total_line("all", scored))
    print("\n".join(left_out_lines(left_out)), end="\n\n")


def _print(entry: PublishedStep | PublishedSpeedup, value: float, interval: tuple[float, float], unit: str) -> None:
    error = entry.model_copy(update={"predicted": value}).error
    shown = f"{entry.published:.4g} {unit} | {value:.4g} {unit} ({interval[0]:.4g} to {interval[1]:.4g}) | {error:+.2f}"
    print(f"| {entry.machine} | {entry.model}, {entry.batch} | {entry.strategy} | {shown} |", flush=True)


def text(document: dict[str, Any]) -> str:
    """The text of `published.json`, one entry a line."""
    groups = [f'  "sources": {{\n{_lines(f"{json.dumps(name)}: {json.dumps(about)}" for name, about in document["sources"].items())}\n  }}']
    groups += [f'  "{name}": [\n{_lines(json.dumps(entry) for entry in document[name])}\n  ]' for name in ("steps", "left_out", "speedups")]
    return "{\n" + ",\n".join(groups) + "\n}\n"


def _lines(entries) -> str:
    return ",\n".join(f"    {entry}" for entry in entries)


if __name__ == "__main__":
    main(sys.argv[1:])
