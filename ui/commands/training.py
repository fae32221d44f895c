"""`stepcast run`: trains by a plan and, to compare, by plain PyTorch or by other plans."""

import logging
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

import typer

from calibrate.placement import Placement
from calibrate.planned import leaves_room_for_a_check, plan_all, require_memory_together
from calibrate.profiles import warn_if_foreign
from calibrate.testbed import Testbed
from calibrate.testbeds import testbed_for
from calibrate.training import Training, finite
from executors.run import WARM_UP, Run
from simulator.costs.model import CostModel
from simulator.job import Job
from simulator.predict.forecast import Forecast
from simulator.strategies import registry as strategies
from traces.errors import StepcastError, UnknownNameError
from traces.outputs import OutputFolder, check_outputs
from traces.profile import Profile
from traces.curves import AUTOGRAD, largest_difference
from traces.training import ONE_BATCH, TrainingRun
from traces.units import duration
from ui import jobs
from ui.commands import requests, schedules
from ui.commands.output import print_document, print_then_write
from ui.reports import training as training_report
from ui.reports.folders import TRAINING
from ui.text import trainings as training_words

#: Steps of a run at most; each takes some hundred bytes of the metrics file.
MOST_STEPS = 200_000


def run(
    job: Job,
    text: str,
    pairs: list[str],
    profile_path: Path | None,
    steps: int,
    placement: Placement,
    beside: list[str],
    places: tuple[Path | None, Path | None, Path | None],
    as_json: bool,
    schedule: Path | None = None,
) -> None:
    """Train by a plan and by those `beside` it. `places`: paths of the metrics, the timeline and the page's folder.

    After Ctrl-C, the metrics and the page of the completed steps are written before KeyboardInterrupt is raised again. Raises StepcastError
    for a plan that does not fit in memory. Exits with 1 if a plan does not compute what plain PyTorch computes.
    """
    metrics, timeline, out = places
    testbed = testbed_for(placement, job.precision)
    mode = testbed.mode  # the placement's, unless this machine cannot run plans in it
    if not 2 <= steps <= MOST_STEPS:
        raise StepcastError(f"--steps is {steps}; expected 2 (the first is not counted) to {MOST_STEPS}")
    folder = None if out is None else OutputFolder(out, TRAINING)
    chosen, shared = _chosen(text, beside, pairs)
    order = schedules.opened(schedule, chosen, shared)
    outputs = {"--metrics": metrics, "--timeline": timeline, "--out": folder, **order.outputs}
    check_outputs(outputs, [*requests.inputs(job.model, profile_path), *order.inputs])
    profile = Profile.load(profile_path) if profile_path is not None else None
    forecasts = _planned(job, chosen, order.options, testbed, profile, mode)
    if beside:
        require_memory_together(forecasts.values(), calibrate=False)
    if profile is not None:
        warn_if_foreign(profile, profile_path, testbed.identity)
    training = _begun(job, testbed, forecasts, AUTOGRAD in beside, steps, mode)
    predicted_s = forecasts[text].timeline.step_s if profile is not None else None
    try:
        with jobs.progress(f"training {job.label}", as_json) as progress:
            for _ in training.turns(steps, progress):
                pass
        done = training.finish(timeline is not None)
    except KeyboardInterrupt:
        if training.curves()[0].losses:
            print_then_write(lambda: None, *_writers(_document(training, forecasts[text], mode, None, predicted_s), metrics, out))
        raise
    document = _document(training, forecasts[text], mode, done, predicted_s)
    save = [lambda: done.timeline.save(timeline)] if timeline is not None else []
    print_then_write(lambda: _print(document, as_json), *_writers(document, metrics, out), *save, *order.writers(forecasts))
    if training.differences():
        raise typer.Exit(1)


def _chosen(text: str, beside: list[str], pairs: list[str]) -> tuple[list[str], dict[str, str]]:
    """The strategies to train by, the one of --strategy first, and the options of --set. Raises StepcastError for unusable names."""
    others = [name for name in dict.fromkeys(beside) if name != AUTOGRAD]
    if text in others:
        raise StepcastError(f"--beside {text} is the strategy itself; name another, or {AUTOGRAD}")
    names = strategies.names()
    for name in others:
        if name.partition(":")[0] not in names:
            raise UnknownNameError("name for --beside", name, [AUTOGRAD, *names])
    chosen, shared = requests.requested([text, *others], pairs)
    strategies.require_executed(strategies.get(text.partition(":")[0]))
    return chosen, shared


def _planned(
    job: Job, chosen: list[str], shared: dict[str, str], testbed: Testbed, profile: Profile | None, mode: str
) -> dict[str, Forecast]:
    """Forecasts of all strategies to train by, in order. Raises StepcastError if one cannot run."""
    machine = testbed.machine(profile)
    forecasts, skipped = plan_all(job, chosen, shared, machine, CostModel(machine, profile), mode)
    if skipped:
        raise StepcastError(skipped[0].status.removeprefix("skipped: "))
    return forecasts


def _begun(job: Job, testbed: Testbed, forecasts: dict[str, Forecast], autograd: bool, steps: int, mode: str) -> Training:
    testbed.open(next(iter(forecasts.values())).machine, [])
    unit = testbed.backend.unit
    if mode == "graph" and steps < WARM_UP + 2 * unit:
        raise StepcastError(f"--steps is {steps}; graphs of {unit} iterations need at least {WARM_UP + 2 * unit}")
    checked = [name for name, forecast in forecasts.items() if leaves_room_for_a_check(forecast)]
    training = Training.begin(job, testbed, {name: forecast.plan for name, forecast in forecasts.items()}, autograd, checked)
    log = logging.getLogger("stepcast")
    for name in (name for name in forecasts if name not in checked):
        log.warning("%s is not compared with plain PyTorch: there is not enough memory for both", name)
    for line in training.differences():
        log.warning(line)
    return training


def _document(training: Training, predicted: Forecast, mode: str, done: Run | None, predicted_s: float | None) -> TrainingRun:
    """The document of a run. `done` is None after Ctrl-C; `predicted_s` is None without a profile."""
    curves = training.curves()
    step_runs_s = training.first.steps_s
    numerics = training.numerics.get(curves[0].name)
    return TrainingRun(
        job=training.job.describe(),
        strategy=predicted.plan.strategy,
        options=dict(predicted.plan.options),
        mode=mode,
        steps=len(curves[0].losses),
        step_s=statistics.median(step_runs_s) if step_runs_s else None,
        step_runs_s=step_runs_s,
        losses=tuple(map(finite, done.losses)) if done is not None else curves[0].losses,
        peak_bytes=done.peak_bytes if done is not None else {},
        semantics=dict(predicted.plan.semantics),
        predicted_step_s=predicted_s,
        max_grad_error=finite(numerics.max_grad_error) if numerics is not None else None,
        max_param_error=finite(numerics.max_param_error) if numerics is not None else None,
        reference_grad_error=finite(numerics.reference_grad_error) if numerics is not None else None,
        reference_param_error=finite(numerics.reference_param_error) if numerics is not None else None,
        data=training.batches.name if training.batches is not None else ONE_BATCH,
        curves=curves,
        max_loss_difference=largest_difference(curves[0], curves[1:]),
        complete=done is not None,
        mode_reason=str(training.testbed.about().get("mode_reason", "")),
    )


def _writers(document: TrainingRun, metrics: Path | None, out: Path | None) -> list[Callable[[], object]]:
    """Functions that write the metrics and the page's folder."""

    def page() -> None:
        print(f"report: {training_report.write(out, document)}", file=sys.stderr)

    return [*([lambda: document.save(metrics)] if metrics is not None else []), *([page] if out is not None else [])]


def _print(document: TrainingRun, as_json: bool) -> None:
    if as_json:
        print_document(document.document())
        return
    expected = f", predicted {duration(document.predicted_step_s)}" if document.predicted_step_s is not None else ""
    print(f"{document.curves[0].name}: {duration(document.step_s)} per step (median of {len(document.step_runs_s)}){expected}")
    for line in training_words.sentences(document):
        print(line)
