"""`stepcast run`: train by a plan, and beside it by plain PyTorch or other plans."""

import statistics
import sys
from pathlib import Path

from calibrate.cpu.testbed import Testbed
from calibrate.placement import Placement
from calibrate.planned import plan_all, require_memory_together
from calibrate.profiles import foreign
from calibrate.testbeds import testbed_for
from calibrate.training import AUTOGRAD, Training, finite
from executors.run import WARM_UP, Run
from simulator.costs.model import CostModel
from simulator.job import Job
from simulator.predict.forecast import Forecast
from simulator.strategies import registry as strategies
from traces.errors import StepcastError, UnknownNameError
from traces.files import check_writable
from traces.profile import Profile
from traces.training import ONE_BATCH, TrainingRun, largest_difference
from ui import jobs
from ui.commands import requests
from ui.commands.output import print_document
from ui.reports import training as training_report
from ui.text import trainings as training_words
from ui.text.units import with_unit

#: Some hundred bytes of a metrics file each.
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
) -> None:
    """Execute a plan and what it is to be held against; refuse what does not fit. `places`: of metrics, timeline and page.

    After Ctrl-C, metrics and page of what was completed are written before KeyboardInterrupt goes on.
    """
    metrics, timeline, out = places
    testbed, mode = testbed_for(placement, job.precision), placement.mode
    if not 2 <= steps <= MOST_STEPS:
        raise StepcastError(f"--steps is {steps}; expected 2 (the first is not counted) to {MOST_STEPS}")
    for place in (metrics, timeline):
        if place is not None:
            check_writable(place)
    if out is not None:
        check_writable(out, folder=True)
    profile = Profile.load(profile_path) if profile_path is not None else None
    found = _planned(job, text, beside, pairs, testbed, profile, mode)
    if profile is not None:
        foreign(profile, profile_path, testbed.identity)
    training = _begun(job, testbed, found, AUTOGRAD in beside, steps, mode)
    predicted_s = found[text].timeline.step_s if profile is not None else None
    try:
        with jobs.progress(f"training {job.label}", as_json) as progress:
            for _ in training.turns(steps, progress):
                pass
        done = training.finish(timeline is not None)
    except KeyboardInterrupt:
        if training.curves()[0].losses:
            _write(_document(training, found[text], mode, None, predicted_s), metrics, out)
        raise
    document = _document(training, found[text], mode, done, predicted_s)
    _write(document, metrics, out)
    if timeline is not None:
        done.timeline.save(timeline)
    if as_json:
        print_document(document.document())
    else:
        _tell(document)


def _planned(
    job: Job, text: str, beside: list[str], pairs: list[str], testbed: Testbed, profile: Profile | None, mode: str
) -> dict[str, Forecast]:
    """Forecasts of the strategies to train by, the one that was asked for first. Raises StepcastError where one cannot run."""
    others = [name for name in dict.fromkeys(beside) if name != AUTOGRAD]
    if text in others:
        raise StepcastError(f"--beside {text} is the strategy itself; name another, or {AUTOGRAD}")
    known = strategies.names()
    for name in others:
        if name.partition(":")[0] not in known:
            raise UnknownNameError("name for --beside", name, [AUTOGRAD, *known])
    chosen, shared = requests.requested([text, *others], pairs)
    machine = testbed.machine(profile)
    found, skipped = plan_all(job, chosen, shared, machine, CostModel(machine, profile), mode)
    if skipped:
        raise StepcastError(skipped[0].status.removeprefix("skipped: "))
    if beside:
        require_memory_together(found.values(), calibrate=False)
    return found


def _begun(job: Job, testbed: Testbed, found: dict[str, Forecast], autograd: bool, steps: int, mode: str) -> Training:
    testbed.open(next(iter(found.values())).machine, [])
    unit = testbed.backend.unit
    if mode == "graph" and steps < WARM_UP + 2 * unit:
        raise StepcastError(f"--steps is {steps}; graphs of {unit} iterations need at least {WARM_UP + 2 * unit}")
    return Training.begin(job, testbed, {name: forecast.plan for name, forecast in found.items()}, autograd)


def _document(training: Training, predicted: Forecast, mode: str, done: Run | None, predicted_s: float | None) -> TrainingRun:
    """What was run and measured; `done` is None after Ctrl-C."""
    curves = training.curves()
    step_runs_s = training.first.steps_s
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
        data=training.batches.name if training.batches is not None else ONE_BATCH,
        curves=curves,
        max_loss_difference=largest_difference(curves[0], curves[1:]),
        complete=done is not None,
    )


def _write(document: TrainingRun, metrics: Path | None, out: Path | None) -> None:
    if metrics is not None:
        document.save(metrics)
    if out is not None:
        print(f"report: {training_report.write(out, document)}", file=sys.stderr)


def _tell(document: TrainingRun) -> None:
    expected = f", predicted {with_unit(document.predicted_step_s)}" if document.predicted_step_s is not None else ""
    print(f"{document.curves[0].name}: {with_unit(document.step_s)} per step (median of {len(document.step_runs_s)}){expected}")
    for line in training_words.sentences(document):
        print(line)
