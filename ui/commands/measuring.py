"""`stepcast calibrate`, `validate` and `demo`: the commands that measure."""

import sys
from pathlib import Path

import typer
from rich.console import Console

from calibrate.placement import Placement
from calibrate.planned import plan_all
from calibrate.profiles import open_profile, warn_if_foreign
from calibrate.testbed import Testbed
from calibrate.testbeds import cpu_testbed, testbed_for
from calibrate.validation import Outcome
from calibrate.validation import validate as compare
from simulator.costs.model import CostModel
from simulator.job import Job
from simulator.plan.json import dump
from simulator.strategies import registry as strategies
from traces.comparison import Validation
from traces.errors import StepcastError
from traces.files import check_writable
from traces.profile import Profile
from ui import jobs
from ui.commands import requests
from ui.commands.output import print_document
from ui.reports import report
from ui.text import sentences, tables, waterfalls

#: (model, batch, image size) of the demo. Both are small enough for any machine; one is bound by compute, one by many short ops.
DEMO = (("lenet5", 256, None), ("mobilenet_v2", 8, 64))


def calibrate(job: Job, texts: list[str], pairs: list[str], output: Path | None, placement: Placement, as_json: bool) -> None:
    """Measure the missing costs of the strategies' plans, by default of every strategy's default plan."""
    testbed, mode = testbed_for(placement, job.precision), placement.mode
    chosen, shared = requests.requested(texts, pairs, placement.devices or 1)
    profile, place = open_profile(output, True, testbed.identity)
    if profile.matches(testbed.identity):
        raise StepcastError(f"profile {place} is of another machine ({profile.identity.name}); write to another file with -o")
    check_writable(place)
    machine = testbed.machine(profile)
    forecasts, skipped = plan_all(job, chosen, shared, machine, CostModel(machine, profile), mode)
    if not forecasts:
        raise StepcastError(skipped[0].status.removeprefix("skipped: "))
    for row in skipped:
        print(f"stepcast: {row.strategy} {row.status}", file=sys.stderr)
    testbed.measure_machine(profile)
    machine = testbed.machine(profile)
    with jobs.progress(f"calibrating {job.label}", as_json) as progress:
        measured = testbed.calibrate([forecast.plan for forecast in forecasts.values()], machine, profile, place, progress)
    profile.save(place)
    _show_failures(profile)
    total = len(profile.costs) + sum(map(len, profile.collectives.values()))
    if as_json:
        print_document(
            {"schema": "stepcast.calibration/1", "profile": str(place), "measured_keys": measured, "keys": total,
             "failures": profile.failures}
        )  # fmt: skip
    else:
        print(f"{measured} keys measured, {total} in {place}")


def _show_failures(profile: Profile) -> None:
    for key, why in profile.failures.items():
        print(f"stepcast: not measured: {key.partition('|')[0]}: {why}; its cost is fitted instead", file=sys.stderr)


def validate(
    job: Job,
    texts: list[str],
    pairs: list[str],
    profile_path: Path | None,
    calibration: bool,
    placement: Placement,
    out: Path | None,
    as_json: bool,
) -> None:
    """Compare predicted with measured step times. Exit with 1 if results differ from plain PyTorch's, or if nothing ran."""
    testbed = testbed_for(placement, job.precision)
    chosen, shared = requests.requested(texts, pairs, placement.devices or 1)
    if out is not None:
        check_writable(out, folder=True)
    profile, place = open_profile(profile_path, calibration and profile_path is None, testbed.identity)
    job.graph()
    if warn_if_foreign(profile, place, testbed.identity) and calibration:
        profile, place = Profile(identity=testbed.identity), None  # costs of two machines are never mixed
    if calibration and place is not None:
        check_writable(place)
    outcome = _validate(job, chosen, shared, profile, place, calibration, as_json, testbed)
    _show([outcome], out, as_json)


def demo(out: Path, as_json: bool) -> None:
    """Validate the demo's models under every strategy, and write a report."""
    check_writable(out, folder=True)
    profile, place = open_profile(None, create=True)
    check_writable(place)
    outcomes = [
        _validate(Job(model, batch, size), strategies.names(1), {}, profile, place, True, as_json, cpu_testbed())
        for model, batch, size in DEMO
    ]
    _show(outcomes, out, as_json)


def _validate(job: Job, chosen, shared, profile: Profile, place: Path | None, calibration: bool, quiet: bool, testbed: Testbed) -> Outcome:
    if calibration:
        testbed.measure_machine(profile)
    with jobs.progress(f"validating {job.label}", quiet) as progress:
        outcome = compare(
            job, chosen, shared, profile, testbed, calibrate=calibration, save_to=place if calibration else None, progress=progress
        )
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
            for line in [*sentences.validation_words(outcome.validation), *waterfalls.validation_words(outcome.validation)]:
                console.print(f"- {line}", highlight=False, markup=False)
            if outcome.rejected_rounds:
                console.print(f"- {outcome.rejected_rounds} rounds were disturbed by other work on this machine.", highlight=False)
    if not all(outcome.same_numbers for outcome in outcomes) or any(not v.ran for v in validations):
        raise typer.Exit(1)
