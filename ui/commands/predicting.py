"""`stepcast predict`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import typer
from rich.console import Console

from calibrate.placement import Placement, check_names
from calibrate.sources import costs_for
from simulator.costs.model import CostModel
from simulator.job import Job
from simulator.machine.machine import Machine
from simulator.plan.text import outline, render
from simulator.predict.forecast import Forecast, forecast_many, prediction
from simulator.predict.largest_batch import with_batch_words, with_largest_batch
from simulator.strategies import registry as strategies
from traces.comparison import PYTORCH, Prediction
from traces.errors import StepcastError
from traces.outputs import check_outputs
from ui import jobs as shared_jobs
from ui.commands import requests, schedules
from ui.commands.job_options import listed_values
from ui.commands.output import print_document, print_then_write
from ui.kept import check_mode
from ui.text import fits, labels, sentences, tables, waterfalls
from ui.text.machines import partition_words
from ui.text.predictions import place, predictions_document, predictions_table


@dataclass(frozen=True)
class Answer:
    """One strategy's prediction for a job on a machine, or the reason why there is none."""

    job: Job
    machine: Machine
    model: CostModel
    strategy: str
    shared: Mapping[str, str]
    base: Forecast | StepcastError
    chosen: Forecast | StepcastError
    plain: Forecast | StepcastError
    mode: str = "eager"

    @cached_property
    def refusal(self) -> StepcastError | None:
        """Why there is no prediction, with the largest batch that fits if the job is too large."""
        error = next((forecast for forecast in (self.base, self.chosen) if isinstance(forecast, StepcastError)), None)
        return error and with_batch_words(error, self.job, self.strategy, self.shared, self.model, self.mode)

    @property
    def known_plain(self) -> Forecast | None:
        """The forecast of plain PyTorch, if there is one."""
        return None if isinstance(self.plain, StepcastError) else self.plain

    @property
    def rows(self) -> list[Prediction]:
        """The predictions of plain PyTorch and of the baseline, then this one."""
        forecasts = {id(f): f for f in (self.known_plain, self.base, self.chosen) if f is not None}.values()
        return [self.prediction if f is self.chosen else prediction(f, self.base, self.job.precision, self.known_plain) for f in forecasts]

    @cached_property
    def prediction(self) -> Prediction:
        """The document of the prediction, with the largest batch that fits if this one does not."""
        document = prediction(self.chosen, self.base, self.job.precision, self.known_plain)
        return with_largest_batch(document, self.job, self.strategy, self.shared, self.chosen, self.model)

    def document(self, show_plan: bool) -> dict:
        """The JSON object of the prediction."""
        return self.prediction.document() | ({"plan": render(self.chosen.plan)} if show_plan else {})

    @property
    def place(self) -> dict[str, object]:
        """Which combination this is."""
        return place(self.job.model, self.job.batch, self.machine.name)


def predict(
    jobs: Sequence[Job],
    texts: list[str],
    pairs: list[str],
    profile: Path | None,
    machines: list[str],
    placement: Placement,
    timeline: Path | None,
    show_plan: bool,
    as_json: bool,
    schedule: Path | None = None,
) -> None:
    """Predict every combination of a job, a machine and a strategy, and print them. Exit with 1 if one does not fit in memory.

    Without `texts`, all strategies that can use the machine's devices; without `profile` and `machines`, this machine.
    """
    check_names(placement)
    texts, shared = list(dict.fromkeys(texts)), requests.requested(texts, pairs)[1]
    names = listed_values(machines) or [None]
    one = len(jobs) == len(names) == len(texts) == 1
    if timeline is not None and not one:
        raise StepcastError(f"--timeline {timeline} takes one prediction; give one --strategy, one --batch and one --machine")
    order = schedules.opened(schedule, texts, shared)
    if order.writes and not len(jobs) == len(names) == 1:
        raise StepcastError(f"--schedule {schedule} does not exist, and writing it takes one --batch and one --machine; give one of each")
    check_outputs({"--timeline": timeline, **order.outputs}, [*requests.inputs(jobs[0].model, profile), *order.inputs])
    texts, shared = list(order.texts), order.options
    targets = [target(jobs[0], profile, name, placement) for name in names]
    answers = [
        Answer(job, machine, model, text, shared, forecasts["baseline"], forecasts[text], forecasts[PYTORCH], placement.mode)
        for machine, model in targets
        for job in jobs
        for chosen in [texts or strategies.names(len(machine.devices))]
        for forecasts in [dict(forecast_many(job, chosen, shared, machine, model, placement.mode))]
        for text in (chosen if one else dict.fromkeys([PYTORCH, *chosen]))
    ]
    predicted = [answer for answer in answers if answer.refusal is None]
    if not predicted:
        raise answers[0].refusal
    for _, model in targets:
        shared_jobs.caution(model, profile)
    shared_jobs.caution_precision((machine for machine, _ in targets), jobs[0].precision)
    save = order.writers({answer.strategy: answer.chosen for answer in predicted})
    if one:
        (answer,) = answers
        save += [lambda: answer.chosen.timeline.save(timeline)] if timeline is not None else []
        print_then_write(lambda: _print_one(answer, show_plan, as_json), *save)
    else:
        print_then_write(lambda: _print_many(answers, show_plan, as_json), *save)
    if any(answer.strategy in texts for answer in answers if answer.refusal is not None):
        raise typer.Exit(2)
    if not all(answer.chosen.fits for answer in predicted if answer.strategy in texts or answer.strategy != PYTORCH):
        raise typer.Exit(1)


def target(job: Job, profile: Path | None, name: str | None, placement: Placement) -> tuple[Machine, CostModel]:
    """The machine called `name`, or that of the profile, and its costs. Raises StepcastError if it is a CPU and a GPU is asked for."""
    machine, model = costs_for(job, profile, name, placement)
    check_mode(machine, placement.mode)
    if placement.device != "cpu" and machine.devices[0].kind == "cpu":
        raise StepcastError(f"--device {placement.device}: machine {machine.name} is a CPU; leave it out or choose a GPU's machine")
    return machine, model


def _print_one(answer: Answer, show_plan: bool, as_json: bool) -> None:
    """Print the prediction, the baseline's above it, and why they differ."""
    if as_json:
        print_document(answer.document(show_plan))
        return
    document, chosen = answer.prediction, answer.chosen
    console = Console(width=max(120, Console().width))
    here = shared_jobs.measured_here(answer.model)
    for line in fits.fit_words(document):
        console.print(line, style="bold red", highlight=False, markup=False)
    console.print(tables.prediction_table(answer.rows, here))
    words = [*sentences.prediction_words(document, here), *waterfalls.prediction_words(document)]
    if divided := labels.division(chosen.plan.semantics):
        words.insert(0, f"Layers are divided by {divided}.")
    for line in [*filter(None, [partition_words(answer.machine)]), *words]:
        console.print(f"- {line}", highlight=False, markup=False)
    if document.waterfall:
        console.print(waterfalls.terminal_table(waterfalls.prediction_bars(document)))
    if show_plan:
        console.print(f"\n{outline(chosen.plan)}", highlight=False, markup=False, soft_wrap=True, end="")


def _print_many(answers: Sequence[Answer], show_plan: bool, as_json: bool) -> None:
    """Print one row per prediction, then what was refused."""
    predicted = [answer for answer in answers if answer.refusal is None]
    refused = [answer for answer in answers if answer.refusal is not None]
    if as_json:
        refusals = [answer.place | {"strategy": answer.strategy, "why": str(answer.refusal)} for answer in refused]
        print_document(predictions_document([answer.place | answer.document(show_plan) for answer in predicted], refusals))
        return
    console = Console(width=max(120, Console().width))
    console.print(predictions_table([(answer.job.batch, answer.machine.name, answer.prediction) for answer in predicted]))
    lines = [partition_words(machine) for machine in {answer.machine.name: answer.machine for answer in answers}.values()]
    lines += [f"{answer.strategy}, batch {answer.job.batch} on {answer.machine.name}: {answer.refusal}" for answer in refused]
    for line in filter(None, lines):
        console.print(f"- {line}", highlight=False, markup=False)
    for answer in predicted if show_plan else ():
        console.print(f"\n{outline(answer.chosen.plan)}", highlight=False, markup=False, soft_wrap=True, end="")
