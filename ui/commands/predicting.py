"""`schedcast predict`."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import typer
from rich.console import Console

from calibrate.placement import Placement
from calibrate.profiles import costs_for
from simulator.engine.costs.model import CostModel
from simulator.machine.machine import Machine
from simulator.model.job import DEFAULT, Job
from simulator.plan.text import outline, render
from simulator.predict.forecast import Forecast, forecast_many, prediction, references
from simulator.predict.largest_batch import with_fitting, with_fitting_words
from simulator.predict.normal import normal
from simulator.strategies import registry as strategies
from traces.documents.comparison import BASELINE, PYTORCH, Prediction
from traces.documents.predictions import Normal
from traces.errors import Refusal, SchedcastError, required
from traces.outputs import check_outputs
from traces.process import gc_paused
from ui.commands import job_options, schedules
from ui.commands.at_once import Forecasts, measured_at_once
from ui.commands.job_options import listed_values
from ui.commands.output import print_then_write
from ui.present import labels, predictions, sentences, tables, waterfalls
from ui.present.machines import partition_words, unmeasured_words
from ui.present.predictions import place, prediction_document, predictions_document, predictions_table
from ui.present.tables import console as terminal
from ui.present.tables import print_lines
from ui.service import jobs as shared_jobs
from ui.service.cache import check_mode


@dataclass(frozen=True)
class Answer:
    """One strategy's prediction for a job on a machine, or the reason why there is none. `forecasts`: those of the job, by strategy."""

    job: Job
    machine: Machine
    model: CostModel
    strategy: str
    shared: Mapping[str, str]
    forecasts: Mapping[str, Forecast | Refusal]
    mode: str

    @cached_property
    def refusal(self) -> Refusal | None:
        """Why there is no prediction, with what fits if the job is too large."""
        own = self.forecasts[self.strategy]
        return with_fitting_words(own, self.job, self.strategy, self.shared, self.model, self.mode) if isinstance(own, Refusal) else None

    @property
    def forecast(self) -> Forecast:
        """The forecast. Raises the error of the refusal if there is none."""
        return required(self.forecasts[self.strategy])

    @cached_property
    def known(self) -> dict[str, Forecast]:
        """The forecasts of the job that there are."""
        return {text: own for text, own in self.forecasts.items() if isinstance(own, Forecast)}

    @property
    def rows(self) -> list[Prediction]:
        """The predictions of the user's own loops and of the baseline, then this one."""
        texts = [text for text in dict.fromkeys((*references(self.machine), BASELINE, self.strategy)) if text in self.known]
        return [self.prediction if text == self.strategy else self._document(self.known[text]) for text in texts]

    @cached_property
    def prediction(self) -> Prediction:
        """The document of the prediction, with what fits if this one does not."""
        return with_fitting(self._document(self.forecast), self.job, self.strategy, self.shared, self.forecast, self.model)

    def _document(self, forecast: Forecast) -> Prediction:
        base, plain = self.known.get(BASELINE), self.known.get(PYTORCH)
        return prediction(forecast, base, self.model.shown_precision(self.job.precision), plain)

    def document(self, show_plan: bool) -> dict:
        """The JSON object of the prediction, the same whether it is the only one or one of several."""
        return prediction_document(self.place, self.prediction) | ({"plan": render(self.forecast.plan)} if show_plan else {})

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
    calibration: bool | None = None,
    measured: float | None = None,
) -> None:
    """Predict every combination of a job, a machine and a strategy, and print them. Exit with 1 if one does not fit in memory.

    Without `texts`, all strategies that can use the machine's devices; without `profile` and `machines`, this machine. `calibration`:
    whether missing costs are measured first (`at_once.measured_at_once`). `measured`: seconds of a step to compare with the prediction.
    """
    texts, shared = list(dict.fromkeys(texts)), job_options.requested(texts, pairs)[1]
    names = listed_values(machines) or [None]
    one = len(jobs) == len(names) == len(texts) == 1
    if timeline is not None and not one:
        raise SchedcastError(f"--timeline {timeline} takes one prediction; give one --strategy, one --batch and one --machine")
    order = schedules.opened(schedule, texts, shared)
    if order.writes and not len(jobs) == len(names) == 1:
        raise SchedcastError(f"--schedule {schedule} does not exist, and writing it takes one --batch and one --machine; give one of each")
    if measured is not None and not (measured > 0 and len(jobs) == len(names) == 1 and len(texts) < 2):
        raise SchedcastError(
            f"--measured {measured:g} is compared with one prediction; expected seconds above 0, one --batch, one --machine and at most one"
            " --strategy"
        )
    check_outputs({"--timeline": timeline, **order.outputs}, [*job_options.inputs(jobs[0].model, profile), *order.inputs])
    texts, shared = list(order.texts), order.options
    asked = [_asked(jobs, texts, shared, profile, name, placement, calibration, as_json, order.writes) for name in names]
    answers = [
        Answer(job, machine, model, text, shared, forecasts, placement.mode)
        for machine, model, by_job in asked
        for job, forecasts in by_job.items()
        for text in (texts if one else dict.fromkeys([*references(machine), *(texts or strategies.names(len(machine.devices)))]))
    ]
    predicted = [answer for answer in answers if answer.refusal is None]
    if not predicted:
        raise answers[0].refusal.error
    for _, model, _ in asked:
        shared_jobs.caution(model, profile)
    shared_jobs.caution_precision((machine for machine, model, _ in asked if model.precision == DEFAULT), jobs[0].precision)
    print_then_write(
        as_json,
        lambda: _document(answers, one, show_plan, _normal(answers, texts, measured)),
        lambda: (_print_one if one else _print_many)(answers, show_plan, _normal(answers, texts, measured)),
        *order.writers({answer.strategy: answer.forecast for answer in predicted}),
        None if timeline is None else lambda: answers[0].forecast.timeline.save(timeline),
    )
    if any(answer.strategy in texts for answer in answers if answer.refusal is not None):
        raise typer.Exit(2)
    asked_for = (each for each in predicted if each.strategy in texts or each.strategy not in references(each.machine))
    if not all(each.forecast.fits for each in asked_for):
        raise typer.Exit(1)


def _asked(
    jobs: Sequence[Job],
    texts: Sequence[str],
    shared: Mapping[str, str],
    profile: Path | None,
    name: str | None,
    placement: Placement,
    calibration: bool | None,
    quiet: bool,
    runs: bool,
) -> tuple[Machine, CostModel, Forecasts]:
    """A machine, its costs and the forecasts on it, which are made anew if missing costs were measured.

    `runs`: of plans that executors run, as a schedule that is written is one.
    """

    def made() -> tuple[Machine, CostModel, Forecasts]:
        machine, model = target(jobs[0], profile, name, placement)
        chosen = texts or strategies.names(len(machine.devices))

        @gc_paused()  # once for all strategies: each end of a pause walks the heap
        def of(job: Job) -> dict[str, Forecast | Refusal]:
            return dict(forecast_many(job, chosen, shared, machine, model, placement.mode, runs))

        return machine, model, {job: of(job) for job in jobs}

    asked = made()
    _, model, forecasts = asked
    wanted = [own[text] for own in forecasts.values() for text in (texts or own)]
    if all(isinstance(each, Refusal) for each in wanted):
        return asked  # what is refused needs no costs
    return made() if measured_at_once(forecasts, model, profile, placement, calibration, quiet) else asked


def target(job: Job, profile: Path | None, name: str | None, placement: Placement) -> tuple[Machine, CostModel]:
    """The machine called `name`, or that of the profile, and its costs. Raises SchedcastError if it is a CPU and a GPU is asked for."""
    machine, model = costs_for(job, profile, name, placement)
    check_mode(machine, placement.mode)
    if placement.device != "cpu" and machine.devices[0].kind == "cpu":
        raise SchedcastError(f"--device {placement.device}: machine {machine.name} is a CPU; leave it out or choose a GPU's machine")
    return machine, model


def _normal(answers: Sequence[Answer], texts: Sequence[str], measured_s: float | None) -> Normal | None:
    """What is known of the speed of the only strategy asked, else of plain PyTorch; None for several jobs, machines or strategies."""
    first = answers[0]
    if {(answer.job, answer.machine.name) for answer in answers} != {(first.job, first.machine.name)} or len(texts) > 1:
        return None
    usual = first.known.get(PYTORCH) or first.forecasts[BASELINE]
    known = next((answer.forecasts[answer.strategy] for answer in answers if answer.strategy in texts), usual)
    if isinstance(known, Refusal):
        return None
    speed = normal(first.job, known, measured_s)
    return speed if speed.near or speed.groups or measured_s is not None else None


def _document(answers: Sequence[Answer], one: bool, show_plan: bool, speed: Normal | None) -> dict:
    """The JSON object of the only prediction, or that of several and of what was refused."""
    documents = [answer.document(show_plan) for answer in answers if answer.refusal is None]
    refused = [own.place | {"strategy": own.strategy, "why": own.refusal.words} for own in answers if own.refusal is not None]
    return (documents[0] if one else predictions_document(documents, refused)) | ({} if speed is None else {"normal": speed.document()})


def _print_one(answers: Sequence[Answer], show_plan: bool, speed: Normal | None) -> None:
    """Print the only prediction, the baseline's above it, and why they differ."""
    (answer,), console = answers, terminal()
    _print_no_verdict(answers, console)
    print_lines(console, predictions.fit_words(answer.prediction), "bold red", mark="")
    console.print(tables.prediction_table(answer.rows, shared_jobs.measured_here(answer.model)))
    print_lines(console, filter(None, [partition_words(answer.machine), unmeasured_words([answer.machine])]))
    if isinstance(baseline := answer.forecasts[BASELINE], Refusal):
        print_lines(console, [f"There is no baseline to compare with: {baseline.words}"])
    print_normal(speed, console)
    _explain(console, answer, show_plan)


def print_normal(speed: Normal | None, console: Console) -> None:
    """Print how a step compares with a measured one and with published ones, if any of it is known."""
    if speed is not None:
        print_lines(console, predictions.normal_words(speed))
        if speed.near:
            console.print(predictions.near_table(speed))


def _print_no_verdict(answers: Sequence[Answer], console: Console) -> None:
    """Say first if too little was measured for a verdict."""
    here = all(shared_jobs.measured_here(answer.model) for answer in answers)
    words = sentences.no_verdict_words((answer.prediction.measured_share for answer in answers), here)
    print_lines(console, words, "bold yellow", mark="")


def _print_many(answers: Sequence[Answer], show_plan: bool, speed: Normal | None) -> None:
    """Print one row per prediction, then what was refused, and then each prediction as if it were the only one."""
    predicted = [answer for answer in answers if answer.refusal is None]
    refused = [answer for answer in answers if answer.refusal is not None]
    console = terminal()
    _print_no_verdict(predicted, console)
    console.print(predictions_table([(answer.job.batch, answer.machine.name, answer.prediction) for answer in predicted]))
    lines = [partition_words(machine) for machine in {answer.machine.name: answer.machine for answer in answers}.values()]
    lines += assumed_words(predicted)
    lines.append(unmeasured_words(answer.machine for answer in answers))
    lines += [f"{answer.strategy}, batch {answer.job.batch} on {answer.machine.name}: {answer.refusal.words}" for answer in refused]
    print_lines(console, filter(None, lines))
    print_normal(speed, console)
    for answer in (answer for answer in predicted if answer.strategy != PYTORCH):
        heading = f"\n{tables.prediction_label(answer.prediction)}, batch {answer.job.batch} on {answer.machine.name}"
        print_lines(console, [heading], "bold", mark="")
        print_lines(console, predictions.fit_words(answer.prediction), "red", mark="")
        _explain(console, answer, show_plan)


def assumed_words(answers: Iterable[Answer]) -> list[str]:
    """What predictions assume of their models, if anything."""
    return [f"Assumed: {what}." for what in dict.fromkeys(what for answer in answers for what in answer.prediction.assumed)]


def _explain(console: Console, answer: Answer, show_plan: bool) -> None:
    """Print why a prediction is as it is, part by part, and its plan if it is to be shown."""
    document, plan = answer.prediction, answer.forecast.plan
    divided = labels.division(plan.semantics)
    words = sentences.prediction_words(document, shared_jobs.measured_here(answer.model))
    folded, experts = (plan.semantics.get(name) for name in ("folded", "experts"))
    words = [
        *([f"Layers are divided by {divided}."] if divided else []),
        *([f"Experts are {experts}."] if experts else []),
        *words,
        *([f"{folded}."] if folded else []),
    ]
    print_lines(console, [*words, *waterfalls.prediction_words(document)])
    if document.waterfall:
        console.print(waterfalls.terminal_table(waterfalls.prediction_bars(document), console.width))
    if show_plan:
        console.print(f"\n{outline(plan)}", highlight=False, markup=False, soft_wrap=True, end="")
