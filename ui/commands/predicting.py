"""`stepcast predict`."""

from pathlib import Path

import typer
from rich.console import Console

from calibrate.placement import Placement, check_names
from calibrate.sources import costs_for
from simulator.job import Job
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
    as_json: bool,
) -> None:
    """Predict a strategy beside the baseline, print it, and exit with 1 when it does not fit."""
    check_names(placement)
    device, mode = placement.device, placement.mode
    _, shared = requests.requested([strategy], pairs)
    if timeline is not None:
        check_writable(timeline)
    here, model = costs_for(job, profile, machine, placement)
    if mode == "graph" and here.devices[0].kind == "cpu":
        raise StepcastError(f"--mode graph needs CUDA; machine {here.name} is a CPU; use --mode eager or a GPU's machine")
    if device != "cpu" and here.devices[0].kind == "cpu":
        raise StepcastError(f"--device {device}: machine {here.name} is a CPU; leave it out or choose a GPU's machine")
    found = dict(forecast_many(job, [strategy], shared, here, model, mode))
    for answer in (found["baseline"], found[strategy]):
        if isinstance(answer, StepcastError):
            raise answer
    chosen, base = found[strategy], found["baseline"]
    document = prediction(chosen, base, job.precision)
    if timeline is not None:
        chosen.timeline.save(timeline)
    jobs.caution(model, profile)
    if as_json:
        print_document(document.document())
    else:
        console = Console(width=max(120, Console().width))
        shown = [prediction(base, base, job.precision), document] if chosen is not base else [document]
        console.print(tables.prediction_table(shown))
        for line in [*sentences.prediction_words(document), *(explain(base.timeline, chosen.timeline) if chosen is not base else [])]:
            console.print(f"- {line}", highlight=False, markup=False)
    if not document.fits:
        raise typer.Exit(1)
