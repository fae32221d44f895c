"""Validation: predicted against measured step times of one job under several strategies, on this machine.

Everything is interleaved in short rounds: a few steps of every strategy, of the baseline once more (the A/A spread), and of plain PyTorch,
before each of which (on the CPU) every key is measured once. A machine that speeds up or slows down then does so for all of them; where its
speed changes within a second, as shared ones' does, only the number of samples helps.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from calibrate.cpu.session import Progress
from calibrate.cpu.testbed import CpuTestbed, Testbed, anchor_median
from calibrate.numerics import Expected, Numerics, compare, reference, steps_to_compare
from calibrate.planned import plan_all, require_memory_together, skipped_row
from executors.measured import Measured, timeline_of
from executors.reference import Reference
from executors.run import WARM_UP, Executable
from executors.tensors import job_tensors
from simulator.costs.model import CostModel
from simulator.job import Job
from simulator.machine.machine import Machine
from simulator.models.built import Built
from simulator.models.factory import training_step
from simulator.plan.plan import Plan
from simulator.predict.forecast import Forecast, forecast
from simulator.strategies import registry as strategies
from traces.comparison import Comparison, Validation, ValidationResult
from traces.profile import Profile

#: Rounds that count; each gives every strategy some step times.
ROUNDS = 10
BASELINE = "baseline"
#: How often plans that depend on costs are made anew when their keys have been measured.
PREVIEWS = 4


@dataclass
class Candidate:
    """One strategy in a validation: its plan, its program, and what was measured of it."""

    plan: Plan
    program: Executable
    steps_s: list[list[float]] = field(default_factory=list)  # by round
    chunks: list[list[Measured]] = field(default_factory=list)  # by round
    numerics: Numerics | None = None
    peak_bytes: dict[str, int] = field(default_factory=dict)  # by device

    def run(self, steps: int) -> None:
        """Run a chunk; its first step, which starts with other tasks' data in the caches, does not count."""
        chunk = self.program.run(steps)
        self.chunks.append(list(chunk.times))
        self.steps_s.append(list(chunk.steps_s))

    def step_s(self, rounds: Sequence[int]) -> float:
        """Median step time over the given rounds."""
        return statistics.median(s for r in rounds for s in self.steps_s[r])

    def typical(self, rounds: Sequence[int]) -> list[Measured]:
        """Task times of the chunk whose last step, the one that pictures show, took nearest to the median, or of a run made for them."""
        if not self.chunks[rounds[0]]:
            return self.program.trace()
        middle = self.step_s(rounds)
        return self.chunks[min(rounds, key=lambda r: abs(self.steps_s[r][-1] - middle))]


@dataclass
class Outcome:
    """What `validate` found: the document, and per strategy the two timelines and the plan."""

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
    calibrate: bool = True,
    save_to: Path | None = None,
    progress: Progress = lambda done, total, text: None,
    testbed: Testbed | None = None,
    mode: str = "eager",
    timelines: bool = True,
) -> Outcome:
    """Run every requested strategy (baseline is always among them) and compare with its prediction.

    With `calibrate`, the plans' keys are measured (on the CPU anew, in the same rounds) and added to `profile`; without, predictions rest
    on the profile as it is. Strategies that cannot be planned for the job, or do not fit, are reported as skipped, and before anything is
    allocated; without a baseline there is nothing to compare with, and all are. `testbed`: where; default: the CPU.
    `timelines`: whether to measure the tasks' times too, for the comparisons, which takes further runs on a GPU.
    """
    testbed = testbed or CpuTestbed()
    planned, skipped = _planned(job, requested, shared_options, profile, calibrate, save_to, progress, testbed, mode)
    if BASELINE not in planned:
        skipped += [
            skipped_row(f.plan.strategy, f.plan.options, "the baseline, which it is held against, cannot run") for f in planned.values()
        ]
        return Outcome(_document(job, testbed, mode, None, None, None, skipped), {}, {}, True, 0)
    interleaved = calibrate and testbed.interleaved
    require_memory_together(planned.values(), interleaved)
    testbed.open(testbed.machine(profile), [f.plan for f in planned.values()] if interleaved else [])
    built = job.build()
    tensors = job_tensors(job, built, job.graph())
    candidates = {label: Candidate(found.plan, testbed.backend.load(found.plan, tensors, job.seed)) for label, found in planned.items()}
    base = candidates[BASELINE]
    again = Candidate(base.plan, testbed.backend.load(base.plan, tensors, job.seed))
    plain = reference(job, built, same_masks=False, backend=testbed.backend)
    _check_numerics(job, built, candidates, testbed, tensors, progress)
    rounds = _rounds([*candidates.values(), again], testbed, plain, progress)
    del plain
    drift = _take_over(testbed, profile, rounds, interleaved, save_to)
    machine = testbed.machine(profile)
    model = CostModel(machine, profile)
    forecasts = {label: forecast(candidate.plan, machine, model, mode) for label, candidate in candidates.items()}
    rows, comparisons = _compared(candidates, forecasts, rounds, drift, interleaved, timelines)
    spread = abs(base.step_s(rounds.chosen) / again.step_s(rounds.chosen) - 1)
    document = _document(job, testbed, mode, drift, spread, statistics.median(rounds.plain_s), [*rows, *skipped])
    same = all(c.numerics.equal(job.precision) for c in candidates.values())
    return Outcome(document, comparisons, forecasts, same, rounds.rejected)


def _planned(
    job: Job,
    requested,
    shared_options,
    profile: Profile,
    calibrate: bool,
    save_to: Path | None,
    progress: Progress,
    testbed: Testbed,
    mode: str,
) -> tuple[dict[str, Forecast], list[ValidationResult]]:
    """Forecasts by label, and skipped rows. Strategies plan with costs, so after missing keys were measured they plan once more, which may
    be another plan with keys of its own.

    Where keys are measured in the rounds, those of strategies whose plan depends on costs are measured roughly before. Then lanes that
    share a memory are run beside each other.
    """

    def plan() -> tuple[dict[str, Forecast], list[ValidationResult], Machine]:
        machine = testbed.machine(profile)
        return *plan_all(job, [BASELINE, *requested], shared_options, machine, CostModel(machine, profile), mode), machine

    found, skipped, machine = plan()
    if calibrate and not testbed.interleaved:
        for _ in range(2):
            if testbed.calibrate([f.plan for f in found.values()], machine, profile, save_to, progress):
                found, skipped, machine = plan()
    elif calibrate:
        for _ in range(PREVIEWS):
            dependent = [f.plan for label, f in found.items() if strategies.get(label.partition(":")[0]).uses_costs]
            if not dependent or not testbed.preview(dependent, machine, profile):
                break
            found, skipped, machine = plan()
        testbed.measure_contention([f.plan for f in found.values()], machine, profile)
    return found, skipped


def _check_numerics(job: Job, built: Built, candidates: Mapping[str, Candidate], testbed: Testbed, tensors, progress: Progress) -> None:
    progress(0, ROUNDS + 2, "numerics")
    steps, expected = steps_to_compare(testbed.backend), {}
    for candidate in candidates.values():
        parts = len(candidate.plan.losses)
        if parts not in expected:
            with training_step(job.batch):  # real tensors may show what fake ones did not: a class that is out of range
                expected[parts] = Expected.of(job, built, steps, testbed.backend, parts)
        candidate.numerics = compare(job, built, candidate.plan, testbed.backend, expected[parts], steps)
        candidate.peak_bytes = testbed.backend.peak_bytes(candidate.plan, tensors, job.seed)
    progress(1, ROUNDS + 2, "warming up")


def _take_over(testbed: Testbed, profile: Profile, rounds: "_Rounds", interleaved: bool, save_to: Path | None) -> float | None:
    """Put what was measured into the profile; the anchor's time in the steps as a multiple of that at calibration."""
    if interleaved:
        testbed.take_over(profile, rounds.visits)
        profile.anchor_s = anchor_median(rounds.anchor_calibration_s) or profile.anchor_s
        if save_to is not None:
            profile.save(save_to)
    return anchor_median(rounds.anchor_steps_s) / profile.anchor_s if rounds.anchor_steps_s and profile.anchor_s else None


def _document(
    job: Job,
    testbed: Testbed,
    mode: str,
    drift: float | None,
    spread: float | None,
    plain_s: float | None,
    rows: Sequence[ValidationResult],
) -> Validation:
    return Validation(
        model=job.model,
        batch_size=job.batch,
        optimizer=f"{job.optimizer}:{job.form}",
        precision=job.precision,
        mode=mode,
        device=testbed.about(),
        anchor_drift=drift,
        aa_spread=spread,
        reference_step_s=plain_s,
        results=tuple(rows),
    )


@dataclass
class _Rounds:
    """`visits`: of the keys, those in the chosen rounds; number 0 was the warm-up's."""

    chosen: list[int]
    visits: list[int]
    rejected: int
    plain_s: list[float]
    anchor_steps_s: list[float]
    anchor_calibration_s: list[float]


def _rounds(everyone: list[Candidate], testbed: Testbed, plain: Reference, progress: Progress) -> _Rounds:
    """Warm up, then interleave until ROUNDS rounds were undisturbed, at most half as many again; where too few were, all count."""
    for candidate in everyone:
        candidate.program.run(WARM_UP + candidate.program.unit)
    testbed.plain_s(plain, WARM_UP)
    testbed.visit(0)
    total = ROUNDS + 2
    quiet: list[int] = []
    plain_s: list[list[float]] = []
    anchors: list[tuple[list[float], list[float]]] = []
    most, several = ROUNDS + ROUNDS // 2, len(everyone)
    for turn in range(most):
        watch = testbed.watch()
        in_steps, in_calibration = [], []
        for place in range(several):
            in_calibration += testbed.visit(1 + turn * several + place)
            candidate = everyone[(turn + place) % several]
            candidate.run(testbed.periods * candidate.program.unit)
            if candidate.plan is everyone[-1].plan:  # the baseline's; beside other lanes the anchor takes longer without any drift
                in_steps += testbed.anchors()
        anchors.append((in_steps, in_calibration))
        plain_s.append(testbed.plain_s(plain, testbed.plain_steps)[1:])
        if not watch.stop().rejected:
            quiet.append(turn)
        progress(min(2 + turn, total - 1), total, f"round {turn + 1}")
        if len(quiet) >= ROUNDS or (turn + 1 >= ROUNDS and len(quiet) >= ROUNDS // 2):
            break
    progress(total, total, "done")
    done = len(plain_s)
    chosen = quiet if len(quiet) >= ROUNDS // 2 else list(range(done))
    return _Rounds(
        chosen,
        [1 + r * several + place for r in chosen for place in range(several)],
        done - len(quiet),
        [s for r in chosen for s in plain_s[r]],
        [s for r in chosen for s in anchors[r][0]],
        [s for r in chosen for s in anchors[r][1]],
    )


def _compared(
    candidates: Mapping[str, Candidate],
    forecasts: Mapping[str, Forecast],
    rounds: _Rounds,
    drift: float | None,
    interleaved: bool,
    timelines: bool,
) -> tuple[list[ValidationResult], dict[str, Comparison]]:
    """A row per contender, and with `timelines` its predicted beside its measured one."""
    rows, comparisons = [], {}
    for label, candidate in candidates.items():
        row = _row(candidate, candidates[BASELINE], forecasts[label], forecasts[BASELINE], rounds.chosen, drift, interleaved)
        if timelines:
            times, mode = candidate.typical(rounds.chosen), forecasts[label].timeline.mode
            measured = timeline_of(candidate.plan, times, row.measured_runs_s, mode, candidate.peak_bytes)
            row = row.model_copy(update={"twin_overhead": candidate.program.twin_overhead})
            comparisons[label] = Comparison(forecasts[label].timeline, measured, row)
        rows.append(row)
    return rows, comparisons


def _row(candidate, base, predicted: Forecast, base_predicted: Forecast, rounds, drift, interleaved) -> ValidationResult:
    runs = tuple(s for r in rounds for s in candidate.steps_s[r])
    measured = candidate.step_s(rounds)
    step_s = predicted.timeline.step_s
    there = predicted.measured_as(candidate.peak_bytes)
    return ValidationResult(
        strategy=candidate.plan.strategy,
        options=dict(candidate.plan.options),
        predicted_step_s=step_s,
        predicted_interval_s=predicted.interval_s,
        measured_step_s=measured,
        measured_runs_s=runs,
        error=step_s / measured - 1,
        error_drift_corrected=step_s * (drift or 1.0) / measured - 1,
        predicted_speedup=base_predicted.timeline.step_s / step_s,
        measured_speedup=base.step_s(rounds) / measured,
        max_grad_error=_finite(candidate.numerics.max_grad_error),
        max_param_error=_finite(candidate.numerics.max_param_error),
        semantics=dict(candidate.plan.semantics),
        predicted_peak_bytes=max((there or predicted.peak_bytes).values()),
        measured_peak_bytes=max(candidate.peak_bytes.values(), default=None),
        predicted_peak_bytes_by_device=there or predicted.peak_bytes,
        measured_peak_bytes_by_device=candidate.peak_bytes or None,
        shares=predicted.shares,
        calibration="interleaved" if interleaved else "profile",
        status="ok",
    )


def _finite(error: float) -> float | None:
    return error if error != float("inf") else None
