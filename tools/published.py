"""Published steps and speed-ups next to what presets predict for them: python -m tools.published [--write]

`schedcast judge` does the same for tables of measured steps. `--write` puts the predictions into `simulator/predict/published.json`,
from which the accuracy of presets is computed. Run it after any change of the table of efficiencies, of the machines or of the engine. The
last lines score the intervals: nine of ten published figures should lie in them.
"""

import json
import sys
from collections.abc import Sequence
from typing import Any

from simulator.machine.presets import PYTORCH
from simulator.model.job import Job
from simulator.predict.answers import paired_interval
from simulator.predict.discrepancy import DATA, PublishedSpeedup, PublishedStep, published, speedup_accuracy, step_accuracy
from simulator.predict.forecast import Forecast, forecast
from simulator.predict.target import preset_target
from simulator.strategies.registry import family
from tests.support.jobs import planned


def predicted(entry: PublishedStep, host: str = PYTORCH) -> Forecast:
    """The forecast of a published step that `host` issues."""
    job = Job(entry.model, entry.batch, optimizer=entry.optimizer, form=entry.form, precision=entry.precision)
    target = preset_target(job, entry.machine, entry.devices, host=host)
    machine, model = target.machine, target.costs
    return forecast(planned(entry.strategy, job, machine, model), target)


def pair(entry: PublishedSpeedup) -> tuple[Forecast, Forecast]:
    """The forecasts of a published speed-up: of what it is over, and of the strategy."""
    figures = {"source": "", "machine": entry.machine, "model": entry.model, "published": 1.0, "predicted": 1.0, **entry.job}
    one = {"devices": 1, "batch": entry.batch // entry.devices} if entry.devices else {"batch": entry.batch}
    return (
        predicted(PublishedStep(**figures, strategy=entry.over, **one), entry.host),
        predicted(PublishedStep(**figures, strategy=entry.strategy, batch=entry.batch, devices=entry.devices), entry.host),
    )


def within(value: float, interval: tuple[float, float]) -> bool:
    """Whether a published figure lies in a predicted interval."""
    return interval[0] <= value <= interval[1]


def main(arguments: Sequence[str]) -> None:
    """Print the tables."""
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
