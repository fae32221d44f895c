"""`schedcast run`: trains by a plan and, to compare, by plain PyTorch or by other plans."""

import logging
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import typer

from calibrate.planned import leaves_room_for_a_check, plan_all, require_memory_together
from calibrate.profiles import target_for, warn_if_foreign
from calibrate.testbed import Testbed
from calibrate.testbeds import monitor_of, testbed_for
from calibrate.training import Repeated, check_evaluable, finite
from executors.program import WARM_UP
from simulator.engine.costs.model import CostModel
from simulator.model.job import Job
from simulator.predict.forecast import Forecast, forecast, forecast_elsewhere, plan_of
from simulator.predict.target import Target
from simulator.strategies import registry as strategies
from traces.documents.comparison import PYTORCH
from traces.documents.profile import Profile
from traces.documents.training import AUTOGRAD, ONE_BATCH, TrainingRun, largest_difference, reached, wins
from traces.errors import SchedcastError, UnknownNameError
from traces.outputs import Output, OutputFolder, check_outputs
from ui.commands import schedules
from ui.commands.bench import wait_for_quiet
from ui.commands.output import TRAINING, print_then_write, write_page
from ui.present import trainings as training_words
from ui.present.terminal import console as terminal
from ui.present.terminal import show
from ui.request import JobRequest
from ui.service.progress import progress_bar

#: By default, accuracy is measured about TIMES times, at least APART iterations apart; not at all in trainings shorter than SHORT.
TIMES, APART, SHORT = 20, 20, 100
#: Seeds at most.
MOST_SEEDS = 1000


@dataclass(frozen=True)
class Goals:
    """The options of `schedcast run` for this."""

    eval_every: int | None = None
    """Iterations between two evaluations; 0: none; None: chosen by the number of steps."""
    seeds: int = 1
    """Trainings with different seeds."""
    target: float | None = None
    """Test accuracy to reach."""
    predict_on: str | None = None
    """Name of a machine for whose predicted step times the curves are drawn."""

    def __post_init__(self):
        if self.eval_every is not None and (self.eval_every < 0 or self.eval_every == 1):
            raise SchedcastError(
                f"--eval-every is {self.eval_every}; expected at least 2 (a single iteration has no step time), or 0 for never"
            )
        if not 1 <= self.seeds <= MOST_SEEDS:
            raise SchedcastError(f"--seeds is {self.seeds}; expected 1 to {MOST_SEEDS}")
        if self.target is not None and not 0 < self.target <= 1:
            raise SchedcastError(f"--target is {self.target}; expected a share of the samples above 0 and at most 1, such as 0.9")
        if self.target is not None and self.eval_every == 0:
            raise SchedcastError(f"--target {self.target} needs evaluations, and --eval-every 0 asks for none; drop one of them")

    def evaluate_every(self, job: Job, steps: int) -> int:
        """Iterations between two evaluations; 0: none. Raises SchedcastError if accuracy is asked for and `job` has none."""
        if self.eval_every == 0:
            return 0
        if self.eval_every is not None:
            check_evaluable(job, f"--eval-every {self.eval_every}")
            return self.eval_every
        if self.target is not None:
            check_evaluable(job, f"--target {self.target}")
        elif steps < SHORT or job.factory.data is None:
            return 0
        return max(min(APART, steps // 4), -(-steps // TIMES), 2)


#: The losses alone.
PLAIN_GOALS = Goals()


#: Steps of a run at most; each takes some hundred bytes of the metrics file.
MOST_STEPS = 200_000


def run(
    request: JobRequest,
    *,
    steps: int,
    beside: list[str],
    places: tuple[Path | None, Path | None, Path | None],
    as_json: bool,
    schedule: Path | None = None,
    goals: Goals = PLAIN_GOALS,
    lr_schedule: str | None = None,
    then: str | None = None,
    wait_s: float = 0.0,
) -> None:
    """Train by the request's only strategy and by those in `beside`.

    `places`: paths of the metrics, the timeline and the page's folder. `lr_schedule`: as in `Job`. `then`: the strategy whose plan the run
    goes on with, `@` and after how many iterations.

    After Ctrl-C, the metrics and the page of the completed steps are written before KeyboardInterrupt is raised again. Raises
    SchedcastError for a plan that does not fit in memory. Exits with 1 if a plan does not compute what plain PyTorch computes.
    """
    metrics, timeline, out = places
    beside = [AUTOGRAD if name == PYTORCH else name for name in beside]  # the name of its curve
    job, profile_path = replace(request.job(), lr_schedule=lr_schedule), request.profile
    testbed = testbed_for(request.placement(), job.precision)
    job = job.on(testbed.identity.kind)
    mode = testbed.mode  # the placement's, unless this machine cannot run plans in it
    if not 2 <= steps <= MOST_STEPS:
        raise SchedcastError(f"--steps is {steps}; expected 2 (the first is not counted) to {MOST_STEPS}")
    if then is not None:
        request = _going_on(request, then, steps, schedule)
    every = goals.evaluate_every(job, steps)
    folder = None if out is None else OutputFolder(out, TRAINING)
    shared = {"iterations": str(steps), **request.shared}  # of strategies that plan the whole run
    order = schedules.opened(schedule, _chosen(request, beside), shared)
    text, chosen = order.texts[0], list(order.texts)
    outputs: dict[str, Output] = {"--metrics": metrics, "--timeline": timeline, "--out": folder, **order.outputs}
    check_outputs(outputs, [*request.inputs, *order.inputs])
    profile = Profile.load(profile_path) if profile_path is not None else None
    forecasts = _planned(job, chosen, order.options, testbed, profile, mode)
    if beside:
        require_memory_together(forecasts.values(), calibrate=False)
    if profile is not None and profile_path is not None:
        warn_if_foreign(profile, profile_path, testbed.identity)
    autograd = AUTOGRAD in beside
    seconds = _predicted(job, forecasts, order.options, autograd=autograd, predict_on=goals.predict_on, profile=profile, mode=mode)
    wait_for_quiet(testbed, wait_s, as_json)
    training = _begun(job, testbed, forecasts, autograd=autograd, steps=steps, mode=mode, every=every, seeds=goals.seeds)
    others = monitor_of(testbed)()

    def document(complete: bool) -> TrainingRun:
        drawn = _document(training, forecasts[text], mode, complete)
        expected = forecasts[text].timeline.step_s if profile is not None else None
        return _judged(drawn.model_copy(update={"predicted_step_s": expected, "busy_share": others.stop().busy_share}), seconds, goals)

    try:
        with progress_bar(f"training {job.label}", as_json) as progress:
            training.train(steps, timeline is not None, progress)
    except KeyboardInterrupt:
        if training.curves():
            print_then_write(False, dict, lambda: None, *_writers(document(False), metrics, out))
        raise
    finished = document(True)
    measured = training.done.timeline if training.done is not None else None
    save = None if timeline is None or measured is None else lambda: measured.save(timeline)
    writers = (*_writers(finished, metrics, out), save, *order.writers(forecasts))
    print_then_write(as_json, finished.document, lambda: show(terminal(), *training_words.blocks(finished), details=False), *writers)
    if training.differences:
        raise typer.Exit(1)


def _going_on(request: JobRequest, then: str, steps: int, schedule: Path | None) -> JobRequest:
    """The request with a strategy that goes on with the plan of `then`."""
    if schedule is not None:
        raise SchedcastError(f"--schedule {schedule} is that of one plan, and --then {then} has another; drop one of the two")
    other, at, before = then.rpartition("@")
    if not at or not before.isdecimal() or not 0 < int(before) < steps:
        raise SchedcastError(f"--then is {then!r}; expected a strategy and an iteration before --steps {steps}, as in gpipe@{steps // 2}")
    (text,) = request.strategies
    option = f"{strategies.THEN}={other.replace(',', '+')}@{before}/{steps}"
    return replace(request, strategies=(strategies.with_options(text, option),))


def _chosen(request: JobRequest, beside: list[str]) -> list[str]:
    """The strategies to train by, that of the request first. Raises SchedcastError for unusable names."""
    (text,), others = request.strategies, [name for name in dict.fromkeys(beside) if name != AUTOGRAD]
    if text in others:
        raise SchedcastError(f"--beside {text} is the strategy itself; name another, or {PYTORCH}")
    names = strategies.names()
    for name in others:
        if name.partition(":")[0] not in names:
            raise UnknownNameError("name for --beside", name, [PYTORCH, *names])
    chosen = replace(request, strategies=(text, *others)).chosen()
    strategies.require_executed(strategies.get(text.partition(":")[0]))
    return chosen


def _planned(
    job: Job, chosen: list[str], shared: dict[str, str], testbed: Testbed, profile: Profile | None, mode: str
) -> dict[str, Forecast]:
    """Forecasts of all strategies to train by, in order. Raises SchedcastError if one cannot run."""
    machine = testbed.machine(profile)
    forecasts, refused = plan_all(job, chosen, shared, Target(machine, CostModel(machine, profile), mode))
    if refused:
        raise next(iter(refused.values())).error
    return forecasts


@dataclass(frozen=True)
class Seconds:
    """Forecasts by the name of a curve, and the machine that they are for."""

    machine: str = ""
    by_curve: Mapping[str, Forecast] = field(default_factory=dict)


def _predicted(
    job: Job,
    forecasts: Mapping[str, Forecast],
    shared: Mapping[str, str],
    autograd: bool,
    predict_on: str | None,
    profile: Profile | None,
    mode: str,
) -> Seconds:
    """The step times of the curves on the machine `predict_on`, or else on this one, if there is a profile.

    Raises SchedcastError if that machine cannot run a strategy. Plain PyTorch has none if it cannot be predicted.
    """
    if predict_on is None and profile is None:
        return Seconds()
    if predict_on is not None:
        target = target_for(job, None, predict_on)
        by_curve = {text: forecast_elsewhere(text, shared, f.plan, job, target) for text, f in forecasts.items()}
    else:
        target = Target.of(CostModel(next(iter(forecasts.values())).machine, profile), mode)
        by_curve = dict(forecasts)
    if autograd:
        try:
            by_curve[AUTOGRAD] = forecast(plan_of(job, PYTORCH, target), target)
        except SchedcastError as error:
            logging.getLogger("schedcast").warning(str(error))
    return Seconds(predict_on or "this machine", by_curve)


def _judged(document: TrainingRun, seconds: Seconds, goals: Goals) -> TrainingRun:
    """The document with the predicted step times of its curves, and when they reach the target."""
    known = {name: {"predicted_step_s": own.timeline.step_s, "predicted_phases": own.phases} for name, own in seconds.by_curve.items()}
    curves = tuple(curve.model_copy(update=known.get(curve.name)) for curve in document.curves)
    changes: dict[str, object] = {"curves": curves, "predicted_on": seconds.machine}
    if goals.target is not None:
        times = tuple(reached(curve, goals.target) for curve in curves)
        changes |= {"target": goals.target, "reached": times, "wins": wins(curves, goals.target)}
    return document.model_copy(update=changes)


def _begun(
    job: Job, testbed: Testbed, forecasts: dict[str, Forecast], autograd: bool, steps: int, mode: str, every: int, seeds: int
) -> Repeated:
    testbed.open(next(iter(forecasts.values())).machine)
    unit = testbed.backend.unit
    if mode == "graph" and steps < WARM_UP + 2 * unit:
        raise SchedcastError(f"--steps is {steps}; graphs of {unit} iterations need at least {WARM_UP + 2 * unit}")
    checked = [name for name, forecast in forecasts.items() if leaves_room_for_a_check(forecast)]
    plans = {name: forecast.plan for name, forecast in forecasts.items()}
    training = Repeated(job, testbed, plans, autograd=autograd, check=checked, evaluate_every=every, seeds=seeds)
    training.begin()
    log = logging.getLogger("schedcast")
    for name in (name for name in forecasts if name not in checked):
        log.warning("%s is not compared with plain PyTorch: there is not enough memory for both", name)
    for line in training.differences:
        log.warning(line)
    return training


def _document(training: Repeated, predicted: Forecast, mode: str, complete: bool) -> TrainingRun:
    """The document of a run, without what is predicted. `complete` is False after Ctrl-C."""
    curves, done, step_runs_s = training.curves(), training.done, training.step_runs_s
    of_first_seed = [curve for curve in curves if curve.seed == curves[0].seed]
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
        max_grad_error=finite(numerics.max_grad_error) if numerics is not None else None,
        max_param_error=finite(numerics.max_param_error) if numerics is not None else None,
        reference_grad_error=finite(numerics.reference_grad_error) if numerics is not None else None,
        reference_param_error=finite(numerics.reference_param_error) if numerics is not None else None,
        first_step_error=finite(numerics.first_error) if numerics is not None and numerics.first_error is not None else None,
        data=training.data or ONE_BATCH,
        curves=curves,
        max_loss_difference=largest_difference(curves[0], of_first_seed[1:]),
        complete=complete,
        mode_reason=str(training.testbed.about().get("mode_reason", "")),
    )


def _writers(document: TrainingRun, metrics: Path | None, out: Path | None) -> list[Callable[[], object] | None]:
    """Functions that write the metrics and the page's folder."""

    def page(folder: Path) -> Path:
        document.save(folder / TRAINING.document)
        return training_words.write(folder, document)

    return [
        None if metrics is None else lambda: document.save(metrics),
        None if out is None else lambda: write_page(partial(page, out), out),
    ]
