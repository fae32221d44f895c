"""The commands that measure: calibrate, run, validate, demo."""

import math
import statistics
import sys
from pathlib import Path

import typer
from rich.console import Console

from calibrate.planned import plan_all
from calibrate.profiles import foreign, open_profile
from calibrate.stand import CpuStand, Stand
from calibrate.validation import Outcome
from calibrate.validation import validate as compare
from executors.run import WARM_UP, Run, execute
from executors.tensors import job_tensors
from simulator import strategies
from simulator.costs import CostModel
from simulator.job import Job
from simulator.plan_json import dump
from simulator.predict import Forecast, check_shared
from traces.comparison import Validation
from traces.errors import StepcastError
from traces.files import check_writable, write_json
from traces.profile import Profile

from .. import jobs, report, story, tables
from ..words import with_unit
from .output import print_document

#: Each step's task times are kept until the end.
MOST_STEPS = 10_000
#: The models of the demo: small enough for any machine, one bound by compute and one by many short ops.
DEMO = (("lenet5", 256, None), ("mobilenet_v2", 8, 64))


def _requested(texts: list[str], pairs: list[str]) -> tuple[list[str], dict[str, str]]:
    shared = jobs.settings(pairs)
    chosen = texts or strategies.names()
    check_shared(chosen, shared)
    for text in chosen:  # a wrong name or option stops before anything is measured
        strategies.parse(text, shared)
    return chosen, shared


def calibrate(job: Job, texts: list[str], pairs: list[str], output: Path | None, where: tuple[str, int, str], as_json: bool) -> None:
    """Measure missing keys of the strategies' plans (default: every strategy's default plan)."""
    stand, mode = jobs.stand_for(*where, job.precision), where[2]
    chosen, shared = _requested(texts, pairs)
    profile, place = open_profile(output, True, stand.identity)
    if profile.matches(stand.identity):
        raise StepcastError(f"profile {place} is of another machine ({profile.identity.name}); write to another file with -o")
    check_writable(place)
    machine = stand.machine(profile)
    found, skipped = plan_all(job, chosen, shared, machine, CostModel(machine, profile), mode)
    if not found:
        raise StepcastError(skipped[0].status.removeprefix("skipped: "))
    for row in skipped:
        print(f"stepcast: {row.strategy} {row.status}", file=sys.stderr)
    stand.measure_machine(profile)
    machine = stand.machine(profile)
    with jobs.progress(f"calibrating {job.label}", as_json) as progress:
        measured = stand.calibrate([predicted.plan for predicted in found.values()], machine, profile, place, progress)
    profile.save(place)
    _show_failures(profile)
    if as_json:
        print_document(
            {"schema": "stepcast.calibration/1", "profile": str(place), "measured_keys": measured, "keys": len(profile.costs),
             "failures": profile.failures}
        )  # fmt: skip
    else:
        print(f"{measured} keys measured, {len(profile.costs)} in {place}")


def _show_failures(profile: Profile) -> None:
    for key, why in profile.failures.items():
        print(f"stepcast: not measured: {key.partition('|')[0]}: {why}; its cost is fitted instead", file=sys.stderr)


def run(
    job: Job,
    text: str,
    pairs: list[str],
    profile_path: Path | None,
    steps: int,
    where: tuple[str, int, str],
    metrics: Path | None,
    timeline: Path | None,
    as_json: bool,
) -> None:
    """Execute a plan; refuse one that does not fit."""
    stand, mode = jobs.stand_for(*where, job.precision), where[2]
    if not 2 <= steps <= MOST_STEPS:
        raise StepcastError(f"--steps is {steps}; expected 2 (the first is not counted) to {MOST_STEPS}")
    for place in (metrics, timeline):
        if place is not None:
            check_writable(place)
    _, shared = _requested([text], pairs)
    profile = Profile.load(profile_path) if profile_path is not None else None
    machine = stand.machine(profile)
    found, skipped = plan_all(job, [text], shared, machine, CostModel(machine, profile), mode)
    if skipped:
        raise StepcastError(skipped[0].status.removeprefix("skipped: "))
    predicted = found[text]
    if profile is not None:
        foreign(profile, profile_path, stand.identity)
    stand.open(machine, [])
    if steps < WARM_UP + 2 * stand.backend.unit and mode == "graph":
        raise StepcastError(
            f"--steps is {steps}; graphs of {stand.backend.unit} iterations need at least {WARM_UP + 2 * stand.backend.unit}"
        )
    done = execute(predicted.plan, job_tensors(job, job.build(), job.graph()), stand.backend, steps, seed=job.seed)
    if timeline is not None:
        done.timeline.save(timeline)
    document = _run_document(job, predicted, done, steps, mode) | {
        "predicted_step_s": predicted.timeline.step_s if profile is not None else None
    }
    if metrics is not None:
        write_json(metrics, document, indent=1)
    if as_json:
        print_document(document)
        return
    expected = f", predicted {with_unit(predicted.timeline.step_s)}" if profile is not None else ""
    print(f"{text}: {with_unit(document['step_s'])} per step (median of {len(done.step_s)}){expected}")
    print(f"loss {done.losses[0]:.4g} at the first step, {done.losses[-1]:.4g} at the last")


def _run_document(job: Job, predicted: Forecast, done: Run, steps: int, mode: str) -> dict:
    """What was run and measured; a loss that is not finite is null."""
    return {
        "schema": "stepcast.run/1",
        "job": job.describe(),
        "strategy": predicted.plan.strategy,
        "options": dict(predicted.plan.options),
        "mode": mode,
        "steps": steps,
        "step_s": statistics.median(done.step_s),
        "step_runs_s": list(done.step_s),
        "losses": [loss if math.isfinite(loss) else None for loss in done.losses],
        "peak_bytes": done.peak_bytes,
        "semantics": dict(predicted.plan.semantics),
    }


def validate(
    job: Job,
    texts: list[str],
    pairs: list[str],
    profile_path: Path | None,
    calibration: bool,
    where: tuple[str, int, str],
    out: Path | None,
    as_json: bool,
) -> None:
    """Compare predicted with measured; exit with 1 when numbers differ or nothing ran."""
    stand = jobs.stand_for(*where, job.precision)
    chosen, shared = _requested(texts, pairs)
    if out is not None:
        check_writable(out, folder=True)
    profile, place = open_profile(profile_path, calibration and profile_path is None, stand.identity)
    job.graph()
    if foreign(profile, place, stand.identity) and calibration:
        profile, place = Profile(identity=stand.identity), None  # never mixed with another machine's figures
    if calibration and place is not None:
        check_writable(place)
    outcome = _validate(job, chosen, shared, profile, place, calibration, as_json, stand, where[2])
    _show([outcome], out, as_json)


def demo(out: Path, as_json: bool) -> None:
    """Validate the demo's models under every strategy."""
    check_writable(out, folder=True)
    profile, place = open_profile(None, create=True)
    check_writable(place)
    outcomes = [
        _validate(Job(model, batch, size), strategies.names(), {}, profile, place, True, as_json, CpuStand(), "eager")
        for model, batch, size in DEMO
    ]
    _show(outcomes, out, as_json)


def _validate(
    job: Job, chosen, shared, profile: Profile, place: Path | None, calibration: bool, quiet: bool, stand: Stand, mode: str
) -> Outcome:
    if calibration:
        stand.measure_machine(profile)
    with jobs.progress(f"validating {job.label}", quiet) as progress:
        outcome = compare(job, chosen, shared, profile, calibration, place if calibration else None, progress, stand, mode)
    _show_failures(profile)
    return outcome


def _show(outcomes: list[Outcome], out: Path | None, as_json: bool) -> None:
    validations: list[Validation] = [outcome.validation for outcome in outcomes]
    if out is not None:
        comparisons = [c for outcome in outcomes for c in outcome.comparisons.values()]
        plans = [dump(f.plan) for outcome in outcomes for f in outcome.forecasts.values()]
        page = report.write_report(out, validations, comparisons, plans)
        print(f"report: {page}", file=sys.stderr)
    if as_json:
        documents = [validation.document() for validation in validations]
        print_document(documents[0] if len(documents) == 1 else {"schema": "stepcast.demo/1", "validations": documents})
    else:
        console = Console(width=max(120, Console().width))
        console.print(tables.validation_table(validations))
        for outcome in outcomes:
            for line in story.validation_words(outcome.validation):
                console.print(f"- {line}", highlight=False, markup=False)
            if outcome.rejected_rounds:
                console.print(f"- {outcome.rejected_rounds} rounds were disturbed by other work on this machine.", highlight=False)
    if not all(outcome.same_numbers for outcome in outcomes) or any(not v.ran for v in validations):
        raise typer.Exit(1)
