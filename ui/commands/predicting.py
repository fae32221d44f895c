"""`stepcast predict`."""

from pathlib import Path

import typer
from rich.console import Console

from calibrate.placement import Placement, check_names
from calibrate.sources import costs_for
from simulator.job import Job
from simulator.plan.text import outline, render
from simulator.predict.explain import explain
from simulator.predict.forecast import forecast_many, prediction
from traces.errors import StepcastError
from traces.files import check_writable
from ui import jobs
from ui.commands import requests
from ui.commands.output import print_document
from ui.text import sentences, tables


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
    document = prediction(chosen, base, job.precision)
    if timeline is not None:
        chosen.timeline.save(timeline)
    jobs.caution(model, profile)
    if as_json:
        print_document(document.document() | ({"plan": render(chosen.plan)} if show_plan else {}))
    else:
        console = Console(width=max(120, Console().width))
        shown = [prediction(base, base, job.precision), document] if chosen is not base else [document]
        here = jobs.measured_here(model)
        console.print(tables.prediction_table(shown, here))
        for line in [*sentences.prediction_words(document, here), *(explain(base.timeline, chosen.timeline) if chosen is not base else [])]:
            console.print(f"- {line}", highlight=False, markup=False)
        if show_plan:
            console.print(f"\n{outline(chosen.plan)}", highlight=False, markup=False, soft_wrap=True, end="")
    if not document.fits:
        raise typer.Exit(1)
