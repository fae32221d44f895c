"""The commands that measure: calibrate, run, validate, demo."""

import statistics
import sys
from pathlib import Path

import typer
from rich.console import Console

from calibrate import session
from calibrate.host import measure_host
from calibrate.profiles import foreign, open_profile
from calibrate.validation import Outcome
from calibrate.validation import validate as compare
from executors.cpu import CpuBackend
from executors.run import execute
from executors.tensors import job_tensors
from simulator import strategies
from simulator.costs import CostModel
from simulator.job import Job
from simulator.plan_json import dump
from simulator.predict import check_shared, forecast
from simulator.this_cpu import this_cpu
from traces.comparison import Validation
from traces.errors import StepcastError
from traces.files import write_json
from traces.profile import Profile

from .. import jobs, report, story, tables
from ..words import gigabytes, with_unit
from .output import print_document

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
    jobs.check_device(where[0], where[1], where[2], job.precision)
    chosen, shared = _requested(texts, pairs)
    profile, place = open_profile(output, create=True)
    if foreign(profile, place):
        raise StepcastError(f"profile {place} is of another machine ({profile.identity.name}); write to another file with -o")
    machine = this_cpu(profile)
    backend = CpuBackend(machine, anchor=True)
    if profile.dispatch.task_overhead_s is None:
        measure_host(backend, profile)
        machine = this_cpu(profile)
    model = CostModel(machine, profile)
    plans = []
    for text in chosen:
        strategy, options = strategies.parse(text, shared)
        try:
            plan = strategy.plan(job, machine, model, options)
        except StepcastError as error:
            print(f"stepcast: {text} skipped: {error}", file=sys.stderr)
            continue
        if not forecast(plan, machine, model).fits:
            raise StepcastError(f"{text} of {job.label} needs more memory than this machine has; choose a smaller batch or --image-size")
        plans.append(plan)
    with jobs.progress(f"calibrating {job.label}", as_json) as progress:
        measured = session.calibrate(plans, machine, backend, profile, place, progress)
    profile.save(place)
    if as_json:
        print_document(
            {"schema": "stepcast.calibration/1", "profile": str(place), "measured_keys": measured, "keys": len(profile.costs),
             "failures": profile.failures}
        )  # fmt: skip
        return
    print(f"{measured} keys measured, {len(profile.costs)} in {place}")
    for key, why in profile.failures.items():
        print(f"failed: {key.partition('|')[0]}: {why}", file=sys.stderr)


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
    jobs.check_device(where[0], where[1], where[2], job.precision)
    if steps < 2:
        raise StepcastError(f"--steps is {steps}; expected at least 2, since the first is not counted")
    _, shared = _requested([text], pairs)
    profile = Profile.load(profile_path) if profile_path is not None else None
    if profile is not None:
        foreign(profile, profile_path)
    machine = this_cpu()
    strategy, options = strategies.parse(text, shared)
    model = CostModel(this_cpu(profile) if profile is not None else machine, profile)
    plan = strategy.plan(job, machine, model, options)
    predicted = forecast(plan, machine, model)
    if not predicted.fits:
        needed = gigabytes(max(predicted.peak_bytes.values()))
        there = gigabytes(machine.memories[0].size_bytes)
        raise StepcastError(f"{text} of {job.label} needs {needed}, this machine has {there}; choose a smaller batch or --image-size")
    built = job.build()
    done = execute(plan, job_tensors(job, built, job.graph()), CpuBackend(machine), steps, seed=job.seed)
    if timeline is not None:
        done.timeline.save(timeline)
    document = {
        "schema": "stepcast.run/1",
        "job": job.describe(),
        "strategy": plan.strategy,
        "options": dict(plan.options),
        "mode": "eager",
        "steps": steps,
        "step_s": statistics.median(done.step_s),
        "step_runs_s": list(done.step_s),
        "losses": list(done.losses),
        "peak_bytes": done.peak_bytes,
        "predicted_step_s": predicted.timeline.step_s if profile is not None else None,
        "semantics": dict(plan.semantics),
    }
    if metrics is not None:
        write_json(metrics, document, indent=1)
    if as_json:
        print_document(document)
        return
    expected = f", predicted {with_unit(predicted.timeline.step_s)}" if profile is not None else ""
    print(f"{text}: {with_unit(document['step_s'])} per step (median of {len(done.step_s)}){expected}")
    print(f"loss {done.losses[0]:.4g} at the first step, {done.losses[-1]:.4g} at the last")


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
    jobs.check_device(where[0], where[1], where[2], job.precision)
    chosen, shared = _requested(texts, pairs)
    if profile_path is None:
        profile, place = open_profile(None, create=calibration)
    else:
        profile, place = Profile.load(profile_path), profile_path
    if foreign(profile, place) and calibration:
        profile, place = Profile(identity=open_profile(None, create=True)[0].identity), None  # never mixed with another machine's figures
    outcome = _validate(job, chosen, shared, profile, place, calibration, as_json)
    _show([outcome], out, as_json)


def demo(out: Path, as_json: bool) -> None:
    """Validate the demo's models under every strategy."""
    profile, place = open_profile(None, create=True)
    outcomes = [_validate(Job(model, batch, size), strategies.names(), {}, profile, place, True, as_json) for model, batch, size in DEMO]
    _show(outcomes, out, as_json)


def _validate(job: Job, chosen, shared, profile: Profile, place: Path | None, calibration: bool, quiet: bool) -> Outcome:
    if profile.dispatch.task_overhead_s is None and calibration:
        measure_host(CpuBackend(this_cpu()), profile)
    with jobs.progress(f"validating {job.label}", quiet) as progress:
        return compare(job, chosen, shared, profile, calibration, place if calibration else None, progress)


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
