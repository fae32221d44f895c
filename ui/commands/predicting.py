"""`schedcast predict`."""

from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import typer
from rich.console import Console

from simulator.plan.text import outline
from simulator.predict.answers import Answers
from simulator.predict.forecast import Forecast
from simulator.predict.normal import normal
from traces.documents.comparison import BASELINE, PYTORCH, Prediction
from traces.documents.predictions import Normal, Predictions
from traces.errors import Refusal, SchedcastError
from traces.outputs import check_outputs
from ui.commands import schedules
from ui.commands.at_once import measured_at_once
from ui.commands.output import print_then_write
from ui.present import labels, predictions
from ui.present.machines import partition_words, unmeasured_words
from ui.present.predictions import predictions_table
from ui.present.terminal import console as terminal
from ui.present.terminal import print_lines, show
from ui.request import JobRequest
from ui.service.cautions import caution, measured_here


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
    def measured_here(self) -> bool:
        """Whether measured costs are this machine's."""
        return measured_here(self.answers.target.costs)

    @property
    def where(self) -> str:
        """Which combination this is, but for the model: batch 32 on h100."""
        return f"batch {self.answers.job.batch} on {self.answers.target.machine.name}"


def predict(
    requests: Sequence[JobRequest],
    *,
    timeline: Path | None,
    show_plan: bool,
    as_json: bool,
    details: bool = False,
    schedule: Path | None = None,
    calibration: bool | None = None,
    measured: float | None = None,
) -> None:
    """Predict every strategy of requests that differ in batch and machine, and print them. Exit with 1 if one does not fit in memory.

    Without strategies, one of the plain loops must fit; `details`: explain them too. `calibration`: whether missing costs are
    measured first (`at_once.measured_at_once`). `measured`: seconds of a step to compare with the prediction.
    """
    first, single = requests[0], len(requests) == 1
    texts = list(dict.fromkeys(first.settled.strategies if single else first.strategies))
    one = single and len(texts) == 1
    if timeline is not None and not one:
        raise SchedcastError(f"--timeline {timeline} takes one prediction; give one --strategy, one --batch and one --machine")
    order = schedules.opened(schedule, texts, first.shared)
    if order.writes and not single:
        raise SchedcastError(f"--schedule {schedule} does not exist, and writing it takes one --batch and one --machine; give one of each")
    if measured is not None and not (measured > 0 and single and len(texts) < 2):
        raise SchedcastError(
            f"--measured {measured:g} is compared with one prediction; expected seconds above 0, one --batch, one --machine and at most one"
            " --strategy"
        )
    check_outputs({"--timeline": timeline, **order.outputs}, [*first.inputs, *order.inputs])
    texts, requests = list(order.texts), [order.followed(request) for request in requests]
    asked = [
        _asked([each for each in requests if each.machine == machine], order.writes, calibration, quiet=as_json)
        for machine in dict.fromkeys(each.machine for each in requests)
    ]
    answered = [*chain.from_iterable(asked)]
    rows = [Row(own, text) for own in answered for text in own.rows(single)]
    if one and (why := answered[0].refusal(texts[0])) is not None:
        raise why.error
    predicted = [row for row in rows if row.refusal is None]
    if not predicted:
        raise next(refusal.error for row in rows if (refusal := row.refusal) is not None)
    caution([own[0].target for own in asked], first)
    print_then_write(
        as_json,
        lambda: _document(answered, show_plan, _normal(rows, texts, measured)),
        lambda: (
            _print_one(rows[0], show_plan, _normal(rows, texts, measured))
            if one
            else _print_many(rows, bool(texts), details, show_plan, _normal(rows, texts, measured))
        ),
        *order.writers({row.text: row.forecast for row in predicted}),
        None if timeline is None else lambda: rows[0].forecast.timeline.save(timeline),
    )
    if any(row.text in texts for row in rows if row.refusal is not None):
        raise typer.Exit(2)
    fitting = [row for row in predicted if row.forecast.fits]
    if texts:
        every = all(row in fitting for row in predicted if row.text in texts)
    else:
        every = {row.where for row in fitting} == {row.where for row in rows}
    if not every:
        raise typer.Exit(1)


def _asked(requests: Sequence[JobRequest], runs: bool, calibration: bool | None, quiet: bool) -> list[Answers]:
    """The answers to requests about one machine, predicted again if missing costs were measured. `runs`: only of plans that can run."""
    jobs = [request.job() for request in requests]

    def made() -> list[Answers]:
        target = requests[0].target(jobs[0])
        return [request.answers(job, target, runs) for request, job in zip(requests, jobs, strict=True)]

    asked = made()
    wanted = [own.forecasts[text] for own in asked for text in (own.asked or own.forecasts)]
    if all(isinstance(each, Refusal) for each in wanted):
        return asked  # what is refused needs no costs
    return made() if measured_at_once(asked, requests[0], calibration, quiet) else asked


def _normal(rows: Sequence[Row], texts: Sequence[str], measured_s: float | None) -> Normal | None:
    """What is known of the speed of the only requested strategy, else of plain PyTorch; None for several jobs, machines or strategies."""
    first = rows[0].answers
    if any(row.answers is not first for row in rows) or len(texts) > 1:
        return None
    known = first.forecasts[first.headline]
    if isinstance(known, Refusal):
        return None
    speed = normal(first.job, known, measured_s)
    return speed if speed.near or speed.groups or measured_s is not None else None


def _document(asked: Sequence[Answers], show_plan: bool, speed: Normal | None) -> dict:
    """The JSON object of what was predicted and what was refused."""
    document = Predictions.of(chain.from_iterable(own.told(len(asked) == 1, plans=show_plan) for own in asked))
    return document.document() | ({} if speed is None else {"normal": speed.document()})


def _print_one(row: Row, show_plan: bool, speed: Normal | None) -> None:
    """Print the only prediction, below those of the user's own loops and of the baseline, and why they differ."""
    own, target, console = row.answers, row.answers.target, terminal()
    print_lines(console, predictions.usual_words([row.prediction]), mark="")
    _print_no_verdict([row], console)
    ending = predictions.ending_words(row.prediction)
    print_lines(console, [words for words in predictions.fit_words(row.prediction) if words not in ending], "bold red", mark="")
    shown = [row.prediction if text == row.text else own.prediction(text) for text in own.table if text in own.known]
    show(console, predictions.prediction_table(shown, row.measured_here))
    print_lines(console, predictions.too_large_words(own.too_large))
    print_lines(console, filter(None, [partition_words(target.machine), unmeasured_words([target.machine])]))
    if isinstance(baseline := own.forecasts[BASELINE], Refusal):
        print_lines(console, [f"There is no baseline to compare with: {baseline.words}"])
    print_normal(speed, console)
    _explain(console, row, show_plan)
    print_lines(console, ending, "bold red", mark="")


def print_normal(speed: Normal | None, console: Console) -> None:
    """Print how a step compares with a measured one and with published ones, if there are any."""
    if speed is not None:
        show(console, *predictions.normality(speed))


def _print_no_verdict(rows: Sequence[Row], console: Console) -> None:
    """Say first if too little was measured for a verdict."""
    here = all(row.measured_here for row in rows)
    words = labels.no_verdict_words((row.prediction.measured_share for row in rows), here)
    print_lines(console, words, "bold yellow", mark="")


def _print_many(rows: Sequence[Row], asked: bool, details: bool, show_plan: bool, speed: Normal | None) -> None:
    """Print one row per prediction, then refusals, and then each prediction as if it were the only one.

    Unless strategies were `asked` for, the last part is printed only with `details` or plans, and for a job that does not fit, with what
    would fit.
    """
    explained = asked or details or show_plan
    predicted = [row for row in rows if row.refusal is None and row.text not in row.answers.too_large]
    machines = {row.answers.target.machine.name: row.answers.target.machine for row in rows}
    console = terminal()
    print_lines(console, predictions.usual_words([row.prediction for row in predicted]), mark="")
    _print_no_verdict(predicted, console)
    show(console, predictions_table([(row.answers.job.batch, row.answers.target.machine.name, row.prediction) for row in predicted]))
    lines = list(dict.fromkeys(line for row in predicted for line in predictions.too_large_words(row.answers.too_large)))
    lines += [partition_words(machine) for machine in machines.values()]
    lines += assumed_words(predicted)
    lines.append(unmeasured_words(row.answers.target.machine for row in rows))
    lines += [f"{row.text}, {row.where}: {refusal.words}" for row in rows if (refusal := row.refusal) is not None]
    print_lines(console, filter(None, lines))
    print_normal(speed, console)
    for row in predicted:
        words = predictions.fit_words(row.prediction)
        if (asked and row.text == PYTORCH) or not (words or explained):
            continue
        print_lines(console, [f"\n{predictions.prediction_label(row.prediction)}, {row.where}"], "bold", mark="")
        print_lines(console, words, "red", mark="")
        if explained:
            _explain(console, row, show_plan)
    if not explained:
        console.print("--details says where the time goes; --strategy NAME also predicts a schedule.", highlight=False)


def assumed_words(rows: Iterable[Row]) -> list[str]:
    """What predictions assume of their models, if anything."""
    return [f"Assumed: {what}." for what in dict.fromkeys(what for row in rows for what in row.prediction.assumed)]


def _explain(console: Console, row: Row, show_plan: bool) -> None:
    """Print why a prediction is as it is, part by part, and its plan if it is to be shown."""
    plan = row.forecast.plan
    show(console, *predictions.explained(row.prediction, row.measured_here, plan.semantics))
    if show_plan:
        console.print(f"\n{outline(plan)}", highlight=False, markup=False, soft_wrap=True, end="")
