"""Validation: predicted against measured step times of one job under several strategies, on this machine."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from calibrate.numerics import Expected, compare, reference, steps_to_compare
from calibrate.planned import plan_calibrated, require_memory_together, skipped_row
from calibrate.rounds import ROUNDS, Candidate, RoundTimes, run_rounds
from calibrate.testbed import Progress, Testbed, no_progress
from executors.measured import timeline_of
from executors.tensors import job_tensors
from simulator.costs.model import CostModel
from simulator.job import Job
from simulator.models.built import Built
from simulator.models.factory import training_step
from simulator.predict.forecast import Forecast, forecast
from traces.comparison import INTERLEAVED, PROFILE, Comparison, Validation, ValidationResult
from traces.profile import Profile, Stats

BASELINE = "baseline"


@dataclass
class Outcome:
    """The result of `validate`: the document, and by label the forecasts and the pairs of timelines.

    `same_numbers` is whether every strategy computed what plain PyTorch computes.
    """

    validation: Validation
    comparisons: dict[str, Comparison]
    forecasts: dict[str, Forecast]
    same_numbers: bool
    rejected_rounds: int


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
) -> Outcome:
    """Run the baseline and every requested strategy on `testbed`, and compare their step times with predictions.

    With `calibrate` the plans' keys are measured and added to `profile` (on an interleaved testbed all of them, in the same rounds as the
    steps). Without, predictions use the profile as it is. With `timelines` the tasks are timed too, which takes extra runs on a GPU.

    Strategies that cannot be planned for the job, or do not fit, are reported as skipped before anything is allocated. If the baseline
    is one of them, all are skipped.
    """
    planned, skipped = plan_calibrated(testbed, job, [BASELINE, *requested], shared_options, profile, calibrate, save_to, progress)
    if BASELINE not in planned:
        skipped += [
            skipped_row(f.plan.strategy, f.plan.options, "the baseline, which it is compared with, cannot run") for f in planned.values()
        ]
        return Outcome(_document(job, testbed, None, None, None, skipped), {}, {}, True, 0)
    interleaved = calibrate and testbed.interleaved
    require_memory_together(planned.values(), interleaved)
    testbed.open(testbed.machine(profile), [f.plan for f in planned.values()] if interleaved else [])
    built = job.build()
    tensors = job_tensors(job, built, job.graph())
    candidates = {label: Candidate(f.plan, testbed.backend.load(f.plan, tensors, job.seed)) for label, f in planned.items()}
    base = candidates[BASELINE]
    second_base = Candidate(base.plan, testbed.backend.load(base.plan, tensors, job.seed))
    plain = reference(job, built, same_masks=False, backend=testbed.backend)
    _check_numerics(job, built, candidates, testbed, tensors, progress)
    times = run_rounds([*candidates.values(), second_base], testbed, plain, progress)
    del plain
    if interleaved:
        testbed.record(profile, times.key_samples)
        profile.anchor_s = _median_s(times.anchor_in_samples_s) or profile.anchor_s
        if save_to is not None:
            profile.save(save_to)
    machine = testbed.machine(profile)
    model = CostModel(machine, profile)
    forecasts = {label: forecast(candidate.plan, machine, model, testbed.mode) for label, candidate in candidates.items()}
    drift = _anchor_drift(times, profile)
    rows, comparisons = _compare(candidates, forecasts, times.counted, drift, interleaved, timelines)
    aa_spread = abs(base.step_s(times.counted) / second_base.step_s(times.counted) - 1)
    document = _document(job, testbed, drift, aa_spread, statistics.median(times.plain_s), [*rows, *skipped])
    same_numbers = all(c.numerics.equal(job.precision) for c in candidates.values())
    return Outcome(document, comparisons, forecasts, same_numbers, times.disturbed)


def _check_numerics(job: Job, built: Built, candidates: Mapping[str, Candidate], testbed: Testbed, tensors, progress: Progress) -> None:
    """Compare each candidate's numbers with plain PyTorch's, and read its peak memory from the allocator."""
    progress(0, ROUNDS + 2, "numerics")
    steps, expected = steps_to_compare(testbed.backend), {}
    for candidate in candidates.values():
        chunks = len(candidate.plan.losses)
        if chunks not in expected:
            with training_step(job.batch):  # real tensors may show errors that fake ones hide, such as a class out of range
                expected[chunks] = Expected.of(job, built, steps, testbed.backend, chunks)
        candidate.numerics = compare(job, built, candidate.plan, testbed.backend, expected[chunks], steps)
        candidate.peak_bytes = testbed.backend.peak_bytes(candidate.plan, tensors, job.seed)
    progress(1, ROUNDS + 2, "warming up")


def _median_s(seconds: Sequence[float]) -> float | None:
    """Median of `seconds` to six digits, or None if there are none."""
    return Stats.of(seconds).median_s if seconds else None


def _anchor_drift(times: RoundTimes, profile: Profile) -> float | None:
    """The anchor's time during the steps as a multiple of its time at calibration, or None if either is unknown."""
    in_steps_s = _median_s(times.anchor_in_steps_s)
    return in_steps_s / profile.anchor_s if in_steps_s and profile.anchor_s else None


def _document(
    job: Job,
    testbed: Testbed,
    drift: float | None,
    aa_spread: float | None,
    plain_s: float | None,
    rows: Sequence[ValidationResult],
) -> Validation:
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
        reference_step_s=plain_s,
        results=tuple(rows),
    )


def _compare(
    candidates: Mapping[str, Candidate],
    forecasts: Mapping[str, Forecast],
    rounds: Sequence[int],
    drift: float | None,
    interleaved: bool,
    timelines: bool,
) -> tuple[list[ValidationResult], dict[str, Comparison]]:
    """A row per candidate and, with `timelines`, its predicted and measured timeline by label."""
    rows, comparisons = [], {}
    for label, candidate in candidates.items():
        row = _row(candidate, candidates[BASELINE], forecasts[label], forecasts[BASELINE], rounds, drift, interleaved)
        if timelines:
            times, predicted = candidate.typical_times(rounds), forecasts[label].timeline
            measured = timeline_of(candidate.plan, times, row.measured_runs_s, predicted.mode, candidate.peak_bytes)
            row = row.model_copy(update={"twin_overhead": candidate.program.twin_overhead})
            comparisons[label] = Comparison(predicted, measured, row)
        rows.append(row)
    return rows, comparisons


def _row(
    candidate: Candidate,
    base: Candidate,
    predicted: Forecast,
    base_predicted: Forecast,
    rounds: Sequence[int],
    drift: float | None,
    interleaved: bool,
) -> ValidationResult:
    """A strategy's row. Keys measured in the rounds already contain the drift, so it corrects only costs from another time."""
    measured_s = candidate.step_s(rounds)
    predicted_s = predicted.timeline.step_s
    peak_bytes = predicted.measured_as(candidate.peak_bytes) or predicted.peak_bytes
    return ValidationResult(
        strategy=candidate.plan.strategy,
        options=dict(candidate.plan.options),
        predicted_step_s=predicted_s,
        predicted_interval_s=predicted.interval_s,
        measured_step_s=measured_s,
        measured_runs_s=tuple(s for r in rounds for s in candidate.steps_s[r]),
        error=predicted_s / measured_s - 1,
        error_drift_corrected=predicted_s * (1.0 if interleaved else drift or 1.0) / measured_s - 1,
        predicted_speedup=base_predicted.timeline.step_s / predicted_s,
        measured_speedup=base.step_s(rounds) / measured_s,
        max_grad_error=_finite(candidate.numerics.max_grad_error),
        max_param_error=_finite(candidate.numerics.max_param_error),
        semantics=dict(candidate.plan.semantics),
        predicted_peak_bytes=max(peak_bytes.values()),
        measured_peak_bytes=max(candidate.peak_bytes.values(), default=None),
        predicted_peak_bytes_by_device=peak_bytes,
        measured_peak_bytes_by_device=candidate.peak_bytes or None,
        shares=predicted.shares,
        calibration=INTERLEAVED if interleaved else PROFILE,
        status="ok",
    )


def _finite(error: float) -> float | None:
    return error if error != float("inf") else None
