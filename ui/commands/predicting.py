"""`schedcast predict`."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import typer
from rich.console import Console

from calibrate.placement import Placement
from calibrate.profiles import target_for
from simulator.model.job import DEFAULT, Job
from simulator.plan.text import outline, render
from simulator.predict.answers import Answers, answers
from simulator.predict.forecast import Forecast
from simulator.predict.normal import normal
from simulator.predict.target import references
from simulator.strategies import registry as strategies
from traces.documents.comparison import BASELINE, PYTORCH, Prediction
from traces.documents.predictions import Normal
from traces.errors import Refusal, SchedcastError
from traces.outputs import check_outputs
from ui.commands import job_options, schedules
from ui.commands.at_once import measured_at_once
from ui.commands.job_options import listed_values
from ui.commands.output import print_then_write
from ui.present import labels, predictions, sentences, tables, waterfalls
from ui.present.machines import partition_words, unmeasured_words
from ui.present.predictions import answers_document, place, predictions_table
from ui.present.tables import console as terminal
from ui.present.tables import print_lines
from ui.service import jobs as shared_jobs


class Row(NamedTuple):
    """One strategy of the answers about one job on one machine."""

    answers: Answers
    text: str

    @property
    def refusal(self) -> Refusal | None:
        """Why there is no prediction; None if there is one."""
        return self.answers.refusal(self.text)

    @property
    def forecast(self) -> Forecast:
        """The forecast. Raises the error of the refusal if there is none."""
        return self.answers.forecast(self.text)

    @property
    def prediction(self) -> Prediction:
        """The document of the prediction, with what fits if this one does not."""
        return self.answers.fitted(self.text)

    @property
    def place(self) -> dict[str, object]:
        """Which combination this is."""
        return place(self.answers.job.model, self.answers.job.batch, self.answers.target.machine.name)

    @property
    def where(self) -> str:
        """The same in words, but for the model: batch 32 on h100."""
        return f"batch {self.answers.job.batch} on {self.answers.target.machine.name}"


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
    asked = [
        _asked(
            jobs, texts, shared, profile=profile, name=name, placement=placement, calibration=calibration, quiet=as_json, runs=order.writes
        )
        for name in names
    ]
    rows = [Row(each, text) for own in asked for each in own for text in (texts if one else _compared(each, texts))]
    predicted = [row for row in rows if row.refusal is None]
    if not predicted:
        raise rows[0].refusal.error
    targets = [own[0].target for own in asked]
    for target in targets:
        shared_jobs.caution(target.costs, profile)
    shared_jobs.caution_precision((target.machine for target in targets if target.costs.precision == DEFAULT), jobs[0].precision)
    print_then_write(
        as_json,
        lambda: _document(rows, one, show_plan, _normal(rows, texts, measured)),
        lambda: (_print_one if one else _print_many)(rows, show_plan, _normal(rows, texts, measured)),
        *order.writers({row.text: row.forecast for row in predicted}),
        None if timeline is None else lambda: rows[0].forecast.timeline.save(timeline),
    )
    if any(row.text in texts for row in rows if row.refusal is not None):
        raise typer.Exit(2)
    asked_for = (row for row in predicted if row.text in texts or row.text not in references(row.answers.target.machine))
    if not all(row.forecast.fits for row in asked_for):
        raise typer.Exit(1)


def _compared(own: Answers, texts: Sequence[str]) -> list[str]:
    """The strategies of a table: the user's own loops, and those asked for, or all that can use the machine's devices."""
    machine = own.target.machine
    return list(dict.fromkeys([*references(machine), *(texts or strategies.names(len(machine.devices)))]))


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
) -> list[Answers]:
    """The answers about each job on a machine, which are made anew if missing costs were measured.

    `runs`: of plans that executors run, as a schedule that is written is one.
    """

    def made() -> list[Answers]:
        target = target_for(jobs[0], profile, name, placement)
        chosen = texts or strategies.names(len(target.machine.devices))
        return [answers(job, chosen, target, shared, runs) for job in dict.fromkeys(jobs)]

    asked = made()
    wanted = [own.forecasts[text] for own in asked for text in (texts or own.forecasts)]
    if all(isinstance(each, Refusal) for each in wanted):
        return asked  # what is refused needs no costs
    return made() if measured_at_once(asked, profile, placement, calibration, quiet) else asked


def _normal(rows: Sequence[Row], texts: Sequence[str], measured_s: float | None) -> Normal | None:
    """What is known of the speed of the only strategy asked, else of plain PyTorch; None for several jobs, machines or strategies."""
    first = rows[0].answers
    if any(row.answers is not first for row in rows) or len(texts) > 1:
        return None
    known = next((first.forecasts[row.text] for row in rows if row.text in texts), first.known.get(PYTORCH) or first.forecasts[BASELINE])
    if isinstance(known, Refusal):
        return None
    speed = normal(first.job, known, measured_s)
    return speed if speed.near or speed.groups or measured_s is not None else None


def _document(rows: Sequence[Row], one: bool, show_plan: bool, speed: Normal | None) -> dict:
    """The JSON object of the only prediction, or that of several and of what was refused."""
    document = answers_document([(row.place, row.text, row.prediction if row.refusal is None else row.refusal) for row in rows], one)
    if show_plan:
        documents = [document] if one else document["predictions"]
        for own, row in zip(documents, (row for row in rows if row.refusal is None), strict=True):
            own["plan"] = render(row.forecast.plan)
    return document | ({} if speed is None else {"normal": speed.document()})


def _print_one(rows: Sequence[Row], show_plan: bool, speed: Normal | None) -> None:
    """Print the only prediction, the user's own loops' and the baseline's above it, and why they differ."""
    (row,), console = rows, terminal()
    own, target = row.answers, row.answers.target
    _print_no_verdict(rows, console)
    print_lines(console, predictions.fit_words(row.prediction), "bold red", mark="")
    texts = [text for text in dict.fromkeys((*references(target.machine), BASELINE, row.text)) if text in own.known]
    shown = [row.prediction if text == row.text else own.prediction(text) for text in texts]
    console.print(tables.prediction_table(shown, shared_jobs.measured_here(target.costs)))
    print_lines(console, filter(None, [partition_words(target.machine), unmeasured_words([target.machine])]))
    if isinstance(baseline := own.forecasts[BASELINE], Refusal):
        print_lines(console, [f"There is no baseline to compare with: {baseline.words}"])
    print_normal(speed, console)
    _explain(console, row, show_plan)


def print_normal(speed: Normal | None, console: Console) -> None:
    """Print how a step compares with a measured one and with published ones, if any of it is known."""
    if speed is not None:
        print_lines(console, predictions.normal_words(speed))
        if speed.near:
            console.print(predictions.near_table(speed))


def _print_no_verdict(rows: Sequence[Row], console: Console) -> None:
    """Say first if too little was measured for a verdict."""
    here = all(shared_jobs.measured_here(row.answers.target.costs) for row in rows)
    words = sentences.no_verdict_words((row.prediction.measured_share for row in rows), here)
    print_lines(console, words, "bold yellow", mark="")


def _print_many(rows: Sequence[Row], show_plan: bool, speed: Normal | None) -> None:
    """Print one row per prediction, then what was refused, and then each prediction as if it were the only one."""
    predicted, refused = ([row for row in rows if (row.refusal is not None) is failed] for failed in (False, True))
    machines = {row.answers.target.machine.name: row.answers.target.machine for row in rows}
    console = terminal()
    _print_no_verdict(predicted, console)
    console.print(predictions_table([(row.answers.job.batch, row.answers.target.machine.name, row.prediction) for row in predicted]))
    lines = [partition_words(machine) for machine in machines.values()]
    lines += assumed_words(predicted)
    lines.append(unmeasured_words(row.answers.target.machine for row in rows))
    lines += [f"{row.text}, {row.where}: {row.refusal.words}" for row in refused]
    print_lines(console, filter(None, lines))
    print_normal(speed, console)
    for row in (row for row in predicted if row.text != PYTORCH):
        print_lines(console, [f"\n{tables.prediction_label(row.prediction)}, {row.where}"], "bold", mark="")
        print_lines(console, predictions.fit_words(row.prediction), "red", mark="")
        _explain(console, row, show_plan)


def assumed_words(rows: Iterable[Row]) -> list[str]:
    """What predictions assume of their models, if anything."""
    return [f"Assumed: {what}." for what in dict.fromkeys(what for row in rows for what in row.prediction.assumed)]


def _explain(console: Console, row: Row, show_plan: bool) -> None:
    """Print why a prediction is as it is, part by part, and its plan if it is to be shown."""
    document, plan = row.prediction, row.forecast.plan
    divided = labels.division(plan.semantics)
    words = sentences.prediction_words(document, shared_jobs.measured_here(row.answers.target.costs))
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
