"""Validation: predicted against measured step times of one job under several strategies, on this machine."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import torch

from calibrate.numerics import Numerics, References, compare, steps_to_compare
from calibrate.planned import plan_calibrated, require_memory_together, skipped_row, validation_seconds
from calibrate.rounds import ROUNDS, Candidate, RoundTimes, run_rounds
from calibrate.testbed import Progress, Testbed, no_progress
from executors import in_turn
from executors.measured import step_without_reference_s
from executors.tensors import job_tensors
from simulator.engine.costs.model import CostModel
from simulator.model.built import Built
from simulator.model.job import Job
from simulator.plan.plan import Plan
from simulator.predict.answers import paired_interval
from simulator.predict.forecast import Forecast, forecast
from simulator.predict.target import Target, references
from simulator.predict.waterfall import measured_waterfall
from simulator.strategies import registry as strategies
from simulator.strategies.options import option_values
from traces.documents.comparison import (
    BASELINE,
    INTERLEAVED,
    OTHER_LOOPS,
    PROFILE,
    PYTORCH,
    PYTORCH_GRAPH,
    Comparison,
    Validation,
    ValidationResult,
)
from traces.documents.profile import Profile, Stats
from traces.documents.verdict import is_busy, measured_speedup
from traces.errors import Refusal, SchedcastError


@dataclass(frozen=True)
class Against:
    """What the rows are compared with, and how they were measured.

    `base` and `predicted`: the baseline, measured and predicted. `drift`: the reference kernel's time during the steps as a multiple of its
    time at calibration; None if either is unknown. `interleaved`: whether keys were measured in the rounds: then they
    contain the drift, which corrects only costs from another time. `comparisons`: how many rows are compared with each other.
    """

    base: Candidate
    predicted: Forecast
    times: RoundTimes
    drift: float | None
    aa_spread: float
    interleaved: bool
    comparisons: int = 1


def strategy_row(candidate: Candidate, predicted: Forecast, against: Against) -> ValidationResult:
    """A strategy's row, with its speed-up over plain PyTorch and its numbers."""
    steps_s = candidate.by_round(against.times.counted)
    over_plain = measured_speedup(against.times.plain_s, steps_s, against.aa_spread, against.comparisons)
    peak_bytes = predicted.measured_as(candidate.peak_bytes) or predicted.peak_bytes
    return _row(predicted, candidate.step_s(against.times.counted), steps_s, against, candidate is against.base).model_copy(
        update={
            "against_pytorch": over_plain.value,
            "against_pytorch_interval": over_plain.interval,
            "max_grad_error": _finite(candidate.checked.max_grad_error),
            "max_param_error": _finite(candidate.checked.max_param_error),
            "reference_grad_error": _finite(candidate.checked.reference_grad_error),
            "reference_param_error": _finite(candidate.checked.reference_param_error),
            "first_step_error": _finite(candidate.checked.first_error),
            "predicted_peak_bytes": max(peak_bytes.values()),
            "measured_peak_bytes": max(candidate.peak_bytes.values(), default=None),
            "predicted_peak_bytes_by_device": peak_bytes,
            "measured_peak_bytes_by_device": candidate.peak_bytes or None,
        }
    )


def loop_row(predicted: Forecast, against: Against) -> ValidationResult:
    """The row of plain PyTorch. Nothing measures its memory. Its numbers are compared with those of a second run of it."""
    numerics = against.base.checked
    return _loop_row(predicted, against.times.plain_s, against).model_copy(
        update={
            "against_pytorch": 1.0,
            "max_grad_error": _finite(numerics.reference_grad_error),
            "max_param_error": _finite(numerics.reference_param_error),
        }
    )


def parallel_row(predicted: Forecast, steps_s: Sequence[Sequence[float]], against: Against) -> ValidationResult:
    """The row of one of PyTorch's loops in several processes. Nothing measures its memory or its numbers."""
    over_plain = measured_speedup(against.times.plain_s, steps_s, against.aa_spread, against.comparisons)
    return _loop_row(predicted, steps_s, against).model_copy(
        update={"against_pytorch": over_plain.value, "against_pytorch_interval": over_plain.interval}
    )


def _loop_row(predicted: Forecast, steps_s: Sequence[Sequence[float]], against: Against) -> ValidationResult:
    return _row(predicted, median(s for steps in steps_s for s in steps), steps_s, against, False)


def _row(predicted: Forecast, measured_s: float, steps_s: Sequence[Sequence[float]], against: Against, is_base: bool) -> ValidationResult:
    over_base = measured_speedup(against.base.by_round(against.times.counted), steps_s, against.aa_spread, against.comparisons)
    predicted_s = predicted.timeline.step_s
    drift = 1.0 if against.interleaved else against.drift or 1.0
    return ValidationResult(
        strategy=predicted.plan.strategy,
        options=dict(predicted.plan.options),
        predicted_step_s=predicted_s,
        predicted_interval_s=predicted.interval_s,
        measured_step_s=measured_s,
        measured_runs_s=tuple(s for steps in steps_s for s in steps),
        error=predicted_s / measured_s - 1,
        error_drift_corrected=predicted_s * drift / measured_s - 1,
        predicted_speedup=against.predicted.timeline.step_s / predicted_s,
        predicted_speedup_interval=None if is_base else paired_interval(against.predicted, predicted),
        measured_speedup=over_base.value,
        measured_speedup_interval=None if is_base else over_base.interval,
        max_grad_error=None,
        max_param_error=None,
        semantics=dict(predicted.plan.semantics),
        predicted_peak_bytes=max(predicted.peak_bytes.values()),
        measured_peak_bytes=None,
        predicted_peak_bytes_by_device=predicted.peak_bytes,
        shares=predicted.shares,
        calibration=INTERLEAVED if against.interleaved else PROFILE,
        status="ok",
    )


def _finite(error: float | None) -> float | None:
    return error if error != float("inf") else None


@dataclass
class Outcome:
    """The result of `validate`: the document, and by label the forecasts, the pairs of timelines, and the step times by round.

    `same_numbers` is whether every strategy computed what plain PyTorch computes.
    """

    validation: Validation
    comparisons: dict[str, Comparison]
    forecasts: dict[str, Forecast]
    same_numbers: bool
    rejected_rounds: int
    steps_s: dict[str, list[list[float]]] = field(default_factory=dict)


def validate(
    job: Job,
    requested: Sequence[str],
    shared_options: dict[str, str],
    profile: Profile,
    testbed: Testbed,
    *,
    calibrate: bool = True,
    save_to: Path | None = None,
    progress: Progress = no_progress,
    timelines: bool = True,
    rounds: int = ROUNDS,
    announce: Callable[[float], None] = lambda seconds: None,
) -> Outcome:
    """Run the baseline and every requested strategy on `testbed`, and compare their step times with predictions.

    With `calibrate` the plans' keys are measured and added to `profile` (on an interleaved testbed all of them, in the same rounds as the
    steps). Without, predictions use the profile as it is. With `timelines` the tasks are timed too, which takes extra runs on a GPU.
    `rounds` is the number of rounds that count. `announce` receives about how many seconds all this takes, before it begins.

    Plain PyTorch and its other loops (`Testbed.other_loops`) are predicted too, and timed in the same rounds. Strategies that cannot
    be planned for the job, or do not fit, are reported as skipped before anything is allocated. If the baseline is one of them, all are
    skipped.
    """

    def estimate(forecasts: Mapping[str, Forecast]) -> None:
        if BASELINE in forecasts:
            programs = {label: f for label, f in forecasts.items() if label not in (PYTORCH, *OTHER_LOOPS)}
            parallel = [forecasts[label] for label in OTHER_LOOPS if label in forecasts]
            announce(validation_seconds(programs, testbed, rounds, calibrate, parallel))

    profile.measuring(job.model)
    loops = [text for text in references(testbed.machine(profile)) if text in (PYTORCH, *testbed.other_loops)]
    planned, refused = plan_calibrated(
        testbed,
        job,
        [*loops, BASELINE, *requested],
        shared_options=shared_options,
        profile=profile,
        calibrate=calibrate,
        save_to=save_to,
        progress=progress,
        announce=estimate,
    )
    loop, rows_of = planned.pop(PYTORCH, None), {}
    parallel = {text: planned.pop(text) for text in OTHER_LOOPS if text in planned}
    for label, refusal in refused.items():
        strategy, options = strategies.parse(label, shared_options)
        rows_of[label] = skipped_row(strategy.name, option_values(options), refusal.words)
    plain_row, parallel_rows = rows_of.pop(PYTORCH, None), {text: rows_of.pop(text) for text in OTHER_LOOPS if text in rows_of}
    skipped = list(rows_of.values())
    if BASELINE not in planned:
        skipped += [
            skipped_row(f.plan.strategy, f.plan.options, "the baseline, which it is compared with, cannot run") for f in planned.values()
        ]
        return Outcome(
            _document(job, testbed, None, aa_spread=None, plain_s=(), rows=skipped, plain=plain_row, parallel=parallel_rows.values()),
            {},
            {},
            True,
            0,
        )
    interleaved = calibrate and testbed.interleaved
    together = [*planned.values(), planned[BASELINE]]
    try:
        require_memory_together(together, interleaved, list(parallel.values()))
    except SchedcastError as error:
        if parallel.pop(PYTORCH_GRAPH, None) is None:
            raise
        parallel_rows[PYTORCH_GRAPH] = skipped_row(PYTORCH_GRAPH, {}, Refusal.by(error).words)
        require_memory_together(together, interleaved, list(parallel.values()))
    testbed.open(testbed.machine(profile))
    built = job.build()
    tensors = job_tensors(job, built, job.graph())
    plans = {label: f.plan for label, f in planned.items()}
    checked = _check_numerics(job, built, plans, testbed, tensors, lambda text: progress(0, rounds + 2, text))
    progress(1, rounds + 2, "warming up")

    def candidate(label: str) -> Candidate:
        plan = planned[label].plan
        return Candidate(plan, in_turn.load(testbed.backend, plan, tensors, job.seed), *checked[label])

    candidates = {label: candidate(label) for label in planned}
    base, second_base = candidates[BASELINE], candidate(BASELINE)
    plain, sampled_for = testbed.plain_loop(job, built, same_masks=False), profile if interleaved else None
    loop_plan, others = loop.plan if loop is not None else None, {}
    for text, own in parallel.items():
        try:
            others[text] = own.plan, testbed.other_loop(job, text)
        except SchedcastError as error:
            parallel_rows[text] = skipped_row(text, {}, Refusal.by(error).words)
    times = run_rounds(
        [*candidates.values(), second_base],
        testbed,
        plain,
        progress=progress,
        rounds=rounds,
        sampled_for=sampled_for,
        loop=loop_plan,
        others=[*others.values()],
    )
    sampled = testbed.record(profile, times.key_samples, times.loop_samples) if interleaved else {}
    if interleaved:
        profile.anchor_s = _median_s(times.reference_in_samples_s) or profile.anchor_s
        if save_to is not None and not is_busy(times.busy_share):  # no later prediction should use these costs
            profile.save(save_to)
    machine = testbed.machine(profile)
    model = CostModel(machine, profile, sampled=sampled)
    forecasts = {label: forecast(candidate.plan, Target(machine, model, testbed.mode)) for label, candidate in candidates.items()}
    in_steps_s = _median_s(times.reference_in_steps_s)
    drift = in_steps_s / profile.anchor_s if in_steps_s and profile.anchor_s else None
    aa_spread = abs(base.step_s(times.counted) / second_base.step_s(times.counted) - 1)
    against = Against(
        base,
        predicted=forecasts[BASELINE],
        times=times,
        drift=drift,
        aa_spread=aa_spread,
        interleaved=interleaved,
        comparisons=len(candidates),
    )
    rows, comparisons = _compare(candidates, forecasts, against, timelines)
    if loop is not None:
        plain_row = loop_row(forecast(loop.plan, Target(machine, model)), against)
    for (text, (plan, _)), own_s in zip(others.items(), times.others_s, strict=True):
        parallel_rows[text] = parallel_row(forecast(plan, Target(machine, model)), own_s, against)
    plain_s = [s for steps_s in times.plain_s for s in steps_s]
    document = _document(
        job, testbed, drift, aa_spread=aa_spread, plain_s=plain_s, rows=[*rows, *skipped], plain=plain_row, parallel=parallel_rows.values()
    ).model_copy(update={"busy_share": times.busy_share, "comparisons": len(candidates)})
    same_numbers = all(c.checked.equal(job.precision) for c in candidates.values())
    steps_s = {label: candidate.by_round(times.counted) for label, candidate in candidates.items()}
    return Outcome(document, comparisons, forecasts, same_numbers, times.disturbed, steps_s)


def _check_numerics(
    job: Job, built: Built, plans: Mapping[str, Plan], testbed: Testbed, tensors: Mapping[str, torch.Tensor], show: Callable[[str], None]
) -> dict[str, tuple[Numerics, dict[str, int]]]:
    """Compare each plan's numbers with plain PyTorch's, and read its peak memory from the allocator. Returns both by the plan's label.

    This precedes the rounds, in which all programs are in memory: here only one program is in memory at a time, in addition to plain
    PyTorch's results.
    """
    steps = steps_to_compare(testbed.backend)
    references = References(job, built, steps, testbed.backend)
    checked = {}
    for label in sorted(plans, key=lambda label: references.key(plans[label])):
        show(f"numbers of {label}")
        plan, backend = plans[label], testbed.backend
        numerics = references.judged(plan, compare(job, built, plan, backend, references.of(plan), steps), backend)
        checked[label] = numerics, in_turn.peak_bytes(backend, plan, tensors, job.seed)
    return checked


def _median_s(seconds: Sequence[float]) -> float | None:
    """Median of `seconds` to six digits, or None if there are none."""
    return Stats.from_samples(seconds).median_s if seconds else None


def _document(
    job: Job,
    testbed: Testbed,
    drift: float | None,
    aa_spread: float | None,
    plain_s: Sequence[float],
    rows: Sequence[ValidationResult],
    plain: ValidationResult | None,
    parallel: Iterable[ValidationResult],
) -> Validation:
    threads, waiting = (testbed.plain_threads if plain_s else None) or (None, None)
    return Validation(
        model=job.model,
        batch_size=job.batch,
        image_size=job.image_size,
        optimizer=f"{job.optimizer}:{job.form}",
        precision=job.precision,
        mode=testbed.mode,
        device=testbed.about(),
        anchor_drift=drift,
        aa_spread=aa_spread,
        reference_step_s=median(plain_s) if plain_s else None,
        results=tuple(rows),
        reference_threads=threads,
        reference_waiting=waiting,
        reference_runs_s=tuple(plain_s),
        pytorch=plain,
        parallel=tuple(sorted(parallel, key=lambda row: OTHER_LOOPS.index(row.strategy))),
    )


def _compare(
    candidates: Mapping[str, Candidate], forecasts: Mapping[str, Forecast], against: Against, timelines: bool
) -> tuple[list[ValidationResult], dict[str, Comparison]]:
    """A row per candidate and, with `timelines`, its predicted and measured timeline by label."""
    rows, comparisons = [], {}
    for label, candidate in candidates.items():
        row = strategy_row(candidate, forecasts[label], against)
        if timelines:
            times, predicted = candidate.typical_times(against.times.counted), forecasts[label].timeline
            measured = in_turn.timeline_of(candidate.plan, times, row.measured_runs_s, predicted.mode, candidate.peak_bytes)
            switches = bool(candidate.plan.earlier)  # then no one step is recorded: the timeline shows the switch
            recorded_s = row.steps_s[1] if switches else step_without_reference_s(times)
            parts = measured_waterfall(forecasts[label].parts, measured, row.steps_s[1], recorded_s)
            row = row.model_copy(update={"tracing_overhead": candidate.program.tracing_overhead, "waterfall": parts})
            comparisons[label] = Comparison(predicted, measured, row)
        rows.append(row)
    return rows, comparisons
