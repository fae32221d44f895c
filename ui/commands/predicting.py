"""`stepcast predict`."""

from pathlib import Path

import typer
from rich.console import Console

from calibrate.placement import Placement, check_names
from calibrate.sources import costs_for
from simulator.job import Job
from simulator.plan.text import outline, render
from simulator.predict.forecast import forecast_many, prediction
from simulator.predict.largest_batch import with_largest_batch
from traces.errors import StepcastError
from traces.files import check_writable
from ui import jobs
from ui.commands import requests
from ui.commands.output import print_document
from ui.text import fits, sentences, tables, waterfalls


def predict(
    job: Job,
    strategy: str,
    pairs: list[str],
    profile: Path | None,
    machine: str | None,
    placement: Placement,
    timeline: Path | None,
    show_plan: bool,
    as_json: bool,
) -> None:
    """Predict a strategy and the baseline, and print them. Exit with 1 if the strategy does not fit in memory."""
    check_names(placement)
    device, mode = placement.device, placement.mode
    _, shared = requests.requested([strategy], pairs)
    if timeline is not None:
        check_writable(timeline)
    target, model = costs_for(job, profile, machine, placement)
    if mode == "graph" and target.devices[0].kind == "cpu":
        raise StepcastError(f"--mode graph needs CUDA; machine {target.name} is a CPU; use --mode eager or a GPU's machine")
    if device != "cpu" and target.devices[0].kind == "cpu":
        raise StepcastError(f"--device {device}: machine {target.name} is a CPU; leave it out or choose a GPU's machine")
    forecasts = dict(forecast_many(job, [strategy], shared, target, model, mode))
    for forecast in (forecasts["baseline"], forecasts[strategy]):
        if isinstance(forecast, StepcastError):
            raise forecast
    chosen, base = forecasts[strategy], forecasts["baseline"]
    document = with_largest_batch(prediction(chosen, base, job.precision), job, strategy, shared, chosen, model)
    if timeline is not None:
        chosen.timeline.save(timeline)
    jobs.caution(model, profile)
    if as_json:
        print_document(document.document() | ({"plan": render(chosen.plan)} if show_plan else {}))
    else:
        console = Console(width=max(120, Console().width))
        shown = [prediction(base, base, job.precision), document] if chosen is not base else [document]
        for line in fits.fit_words(document):
            console.print(line, style="bold red", highlight=False, markup=False)
        console.print(tables.prediction_table(shown))
        for line in [*sentences.prediction_words(document), *waterfalls.prediction_words(document)]:
            console.print(f"- {line}", highlight=False, markup=False)
        if document.waterfall:
            console.print(waterfalls.terminal_table(waterfalls.prediction_bars(document)))
        if show_plan:
            console.print(f"\n{outline(chosen.plan)}", highlight=False, markup=False, soft_wrap=True, end="")
    if not document.fits:
        raise typer.Exit(1)
