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
from calibrate.cpu.testbed import CpuStand, Stand, anchor_median
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
class Contender:
    """One strategy in a validation: its plan, its program, and what was measured of it."""

    plan: Plan
    program: Executable
    steps_s: list[list[float]] = field(default_factory=list)  # by round
    chunks: list[list[Measured]] = field(default_factory=list)  # by round
    numerics: Numerics | None = None
    peak_bytes: dict[str, int] = field(default_factory=dict)  # by device

    def run(self, steps: int) -> None:
        """Run a chunk; its first step, which starts with other tasks' data in the caches, does not count."""
        passage = self.program.run(steps)
        self.chunks.append(list(passage.times))
        self.steps_s.append(list(passage.steps_s))

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
    stand: Stand | None = None,
    mode: str = "eager",
    timelines: bool = True,
) -> Outcome:
    """Run every requested strategy (baseline is always among them) and compare with its prediction.

    With `calibrate`, the plans' keys are measured (on the CPU anew, in the same rounds) and added to `profile`; without, predictions rest
    on the profile as it is. Strategies that cannot be planned for the job, or do not fit, are reported as skipped, and before anything is
    allocated; without a baseline there is nothing to compare with, and all are. `stand`: where; default: the CPU.
    `timelines`: whether to measure the tasks' times too, for the comparisons, which takes further runs on a GPU.
    """
    stand = stand or CpuStand()
    planned, skipped = _planned(job, requested, shared_options, profile, calibrate, save_to, progress, stand, mode)
    if BASELINE not in planned:
        skipped += [
            skipped_row(f.plan.strategy, f.plan.options, "the baseline, which it is held against, cannot run") for f in planned.values()
        ]
        return Outcome(_document(job, stand, mode, None, None, None, skipped), {}, {}, True, 0)
    interleaved = calibrate and stand.interleaved
    require_memory_together(planned.values(), interleaved)
    stand.open(stand.machine(profile), [f.plan for f in planned.values()] if interleaved else [])
    built = job.build()
    tensors = job_tensors(job, built, job.graph())
    contenders = {label: Contender(found.plan, stand.backend.load(found.plan, tensors, job.seed)) for label, found in planned.items()}
    base = contenders[BASELINE]
    again = Contender(base.plan, stand.backend.load(base.plan, tensors, job.seed))
    plain = reference(job, built, same_masks=False, backend=stand.backend)
    _check_numerics(job, built, contenders, stand, tensors, progress)
    rounds = _rounds([*contenders.values(), again], stand, plain, progress)
    del plain
    drift = _take_over(stand, profile, rounds, interleaved, save_to)
    machine = stand.machine(profile)
    model = CostModel(machine, profile)
    forecasts = {label: forecast(contender.plan, machine, model, mode) for label, contender in contenders.items()}
    rows, comparisons = _compared(contenders, forecasts, rounds, drift, interleaved, timelines)
    spread = abs(base.step_s(rounds.chosen) / again.step_s(rounds.chosen) - 1)
    document = _document(job, stand, mode, drift, spread, statistics.median(rounds.plain_s), [*rows, *skipped])
    same = all(c.numerics.equal(job.precision) for c in contenders.values())
    return Outcome(document, comparisons, forecasts, same, rounds.rejected)


def _planned(
    job: Job,
    requested,
    shared_options,
    profile: Profile,
    calibrate: bool,
    save_to: Path | None,
    progress: Progress,
    stand: Stand,
    mode: str,
) -> tuple[dict[str, Forecast], list[ValidationResult]]:
    """Forecasts by label, and skipped rows. Strategies plan with costs, so after missing keys were measured they plan once more, which may
    be another plan with keys of its own.

    Where keys are measured in the rounds, those of strategies whose plan depends on costs are measured roughly before. Then lanes that
    share a memory are run beside each other.
    """

    def plan() -> tuple[dict[str, Forecast], list[ValidationResult], Machine]:
        machine = stand.machine(profile)
        return *plan_all(job, [BASELINE, *requested], shared_options, machine, CostModel(machine, profile), mode), machine

    found, skipped, machine = plan()
    if calibrate and not stand.interleaved:
        for _ in range(2):
            if stand.calibrate([f.plan for f in found.values()], machine, profile, save_to, progress):
                found, skipped, machine = plan()
    elif calibrate:
        for _ in range(PREVIEWS):
            dependent = [f.plan for label, f in found.items() if strategies.get(label.partition(":")[0]).uses_costs]
            if not dependent or not stand.preview(dependent, machine, profile):
                break
            found, skipped, machine = plan()
        stand.measure_contention([f.plan for f in found.values()], machine, profile)
    return found, skipped


def _check_numerics(job: Job, built: Built, contenders: Mapping[str, Contender], stand: Stand, tensors, progress: Progress) -> None:
    progress(0, ROUNDS + 2, "numerics")
    steps, expected = steps_to_compare(stand.backend), {}
    for contender in contenders.values():
        parts = len(contender.plan.losses)
        if parts not in expected:
            with training_step(job.batch):  # real tensors may show what fake ones did not: a class that is out of range
                expected[parts] = Expected.of(job, built, steps, stand.backend, parts)
        contender.numerics = compare(job, built, contender.plan, stand.backend, expected[parts], steps)
        contender.peak_bytes = stand.backend.peak_bytes(contender.plan, tensors, job.seed)
    progress(1, ROUNDS + 2, "warming up")


def _take_over(stand: Stand, profile: Profile, rounds: "_Rounds", interleaved: bool, save_to: Path | None) -> float | None:
    """Put what was measured into the profile; the anchor's time in the steps as a multiple of that at calibration."""
    if interleaved:
        stand.take_over(profile, rounds.visits)
        profile.anchor_s = anchor_median(rounds.anchor_calibration_s) or profile.anchor_s
        if save_to is not None:
            profile.save(save_to)
    return anchor_median(rounds.anchor_steps_s) / profile.anchor_s if rounds.anchor_steps_s and profile.anchor_s else None


def _document(
    job: Job, stand: Stand, mode: str, drift: float | None, spread: float | None, plain_s: float | None, rows: Sequence[ValidationResult]
) -> Validation:
    return Validation(
        model=job.model,
        batch_size=job.batch,
        optimizer=f"{job.optimizer}:{job.form}",
        precision=job.precision,
        mode=mode,
        device=stand.about(),
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


def _rounds(everyone: list[Contender], stand: Stand, plain: Reference, progress: Progress) -> _Rounds:
    """Warm up, then interleave until ROUNDS rounds were undisturbed, at most half as many again; where too few were, all count."""
    for contender in everyone:
        contender.program.run(WARM_UP + contender.program.unit)
    stand.plain_s(plain, WARM_UP)
    stand.visit(0)
    total = ROUNDS + 2
    quiet: list[int] = []
    plain_s: list[list[float]] = []
    anchors: list[tuple[list[float], list[float]]] = []
    most, several = ROUNDS + ROUNDS // 2, len(everyone)
    for turn in range(most):
        watch = stand.watch()
        in_steps, in_calibration = [], []
        for place in range(several):
            in_calibration += stand.visit(1 + turn * several + place)
            contender = everyone[(turn + place) % several]
            contender.run(stand.periods * contender.program.unit)
            if contender.plan is everyone[-1].plan:  # the baseline's; beside other lanes the anchor takes longer without any drift
                in_steps += stand.anchors()
        anchors.append((in_steps, in_calibration))
        plain_s.append(stand.plain_s(plain, stand.plain_steps)[1:])
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
    contenders: Mapping[str, Contender],
    forecasts: Mapping[str, Forecast],
    rounds: _Rounds,
    drift: float | None,
    interleaved: bool,
    timelines: bool,
) -> tuple[list[ValidationResult], dict[str, Comparison]]:
    """A row per contender, and with `timelines` its predicted beside its measured one."""
    rows, comparisons = [], {}
    for label, contender in contenders.items():
        row = _row(contender, contenders[BASELINE], forecasts[label], forecasts[BASELINE], rounds.chosen, drift, interleaved)
        if timelines:
            times, mode = contender.typical(rounds.chosen), forecasts[label].timeline.mode
            measured = timeline_of(contender.plan, times, row.measured_runs_s, mode, contender.peak_bytes)
            row = row.model_copy(update={"twin_overhead": contender.program.twin_overhead})
            comparisons[label] = Comparison(forecasts[label].timeline, measured, row)
        rows.append(row)
    return rows, comparisons


def _row(contender, base, predicted: Forecast, base_predicted: Forecast, rounds, drift, interleaved) -> ValidationResult:
    runs = tuple(s for r in rounds for s in contender.steps_s[r])
    measured = contender.step_s(rounds)
    step_s = predicted.timeline.step_s
    there = predicted.measured_as(contender.peak_bytes)
    return ValidationResult(
        strategy=contender.plan.strategy,
        options=dict(contender.plan.options),
        predicted_step_s=step_s,
        predicted_interval_s=predicted.interval_s,
        measured_step_s=measured,
        measured_runs_s=runs,
        error=step_s / measured - 1,
        error_drift_corrected=step_s * (drift or 1.0) / measured - 1,
        predicted_speedup=base_predicted.timeline.step_s / step_s,
        measured_speedup=base.step_s(rounds) / measured,
        max_grad_error=_finite(contender.numerics.max_grad_error),
        max_param_error=_finite(contender.numerics.max_param_error),
        semantics=dict(contender.plan.semantics),
        predicted_peak_bytes=max((there or predicted.peak_bytes).values()),
        measured_peak_bytes=max(contender.peak_bytes.values(), default=None),
        predicted_peak_bytes_by_device=there or predicted.peak_bytes,
        measured_peak_bytes_by_device=contender.peak_bytes or None,
        shares=predicted.shares,
        calibration="interleaved" if interleaved else "profile",
        status="ok",
    )


def _finite(error: float) -> float | None:
    return error if error != float("inf") else None
