"""`schedcast calibrate`, `validate` and `demo`: the commands that measure, and `calibrate --from-trace`."""

import math
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from calibrate.cpu.testbed import CpuTestbed
from calibrate.planned import plan_all, plans_of
from calibrate.profiles import open_profile
from calibrate.rounds import QUICK_ROUNDS, ROUNDS
from calibrate.testbeds import testbed_for
from calibrate.traced.from_trace import profile_from_trace
from calibrate.validation import Outcome
from calibrate.validation import validate as compare
from simulator.engine.costs.model import CostModel
from simulator.model.job import Job
from simulator.model.usual_batch import source_file
from simulator.plan.json import dump
from simulator.predict.search.setup import measured_job
from simulator.predict.target import Target
from simulator.strategies import registry as strategies
from traces.documents.comparison import PYTORCH, Validation
from traces.documents.measured_step import steps_of
from traces.documents.profile import Profile
from traces.errors import SchedcastError
from traces.files import check_writable, kind_at
from traces.outputs import OutputFolder, check_outputs
from traces.units import duration, error, percent, rough_time
from ui.commands import schedules
from ui.commands.bench import Bench, wait_for_quiet
from ui.commands.output import REPORT, print_document, print_then_write, write_page
from ui.present import report, validations
from ui.present.blocks import Sentences
from ui.present.labels import busy_line
from ui.present.machines import partition_words
from ui.present.terminal import console as terminal
from ui.present.terminal import show
from ui.request import JobRequest
from ui.service.cautions import caution_precision
from ui.service.progress import progress_bar

if TYPE_CHECKING:
    from calibrate.traced.from_trace import Traced

#: Names that are listed.
_MOST = 5


def summary(traced: "Traced") -> list[str]:
    """How much of the trace belongs to the job, how long its steps take, and what was skipped on either side."""
    steps = f"{traced.steps} step{'s' * (traced.steps != 1)}"
    lines = [f"{percent(traced.share, signed=False)} of the recorded kernel time belongs to the job ({steps})."]
    step = f"A step takes the GPU {duration(traced.step_s)} from its first kernel to its last"
    if traced.period_s is not None:
        step += f", and the next begins {duration(traced.period_s)} after it"
    lines.append(f"{step}.")
    check = traced.check
    alone = f"{duration(check.step_s)} ({error(check.step_s, traced.step_s)})"
    kernels = f"these layers' kernels {percent(check.held_out_kernels)}"
    held_out = f"{duration(check.held_out_s)} ({error(check.held_out_s, traced.step_s)}; {kernels})"
    lines.append(
        f"Predicted from these costs, one step alone takes {alone}. Without the costs of every second layer, which the fits then supply, it"
        f" takes {held_out}."
    )
    if traced.outside_s:
        lines.append(f"Between steps the host spends {duration(traced.outside_s)}, as for loading data, which no forecast contains.")
    others = ", ".join(f"{count} {name}, {duration(seconds)}" for name, count, seconds in traced.others[:_MOST])
    if others:
        lines.append(f"Recorded each step, but no part of the job: {others}.")
    if traced.missing:
        names = ", ".join(list(traced.missing.values())[:_MOST])
        more = f" and {len(traced.missing) - _MOST} more" if len(traced.missing) > _MOST else ""
        lines.append(f"Not recorded, priced by the model fitted on the recorded costs: {names}{more}.")
    return [*lines, *(f"{note[:1].upper()}{note[1:]}." for note in traced.profile.notes[1:])]


TRACED_SCHEMA = "schedcast.traced/1"


def calibrate_from_trace(request: JobRequest, trace: Path, output: Path | None, as_json: bool) -> None:
    """Turn a trace into a profile and write it to `output`, which may have costs of the same GPU already."""
    if request.strategies:
        raise SchedcastError("--from-trace takes the costs of the recorded step; drop --strategy, and give it to predict")
    if output is None:
        raise SchedcastError("--from-trace makes a profile of the GPU in the trace; say where to write it with -o FILE")
    check_outputs({"--output": output}, [("--model", source_file(request.model)), ("--from-trace", trace)])
    known = Profile.load(output) if kind_at(output) else None
    check_writable(output)
    traced = profile_from_trace(trace, request.job())
    if known is not None and (differences := known.matches(traced.profile.identity)):
        raise SchedcastError(f"profile {output} is of another machine ({'; '.join(differences)}); write to another file with -o")
    place = traced.profile.save(output)
    if as_json:
        print_document({"schema": TRACED_SCHEMA, "profile": str(place), "keys": len(traced.profile.costs), **traced.document()})
        return
    for line in summary(traced):
        print(line)
    print(f"{len(traced.profile.costs)} costs of {traced.profile.identity.gpu} in {place}")


#: (model, batch, image size) of the demo. Both are small enough for any machine; one is bound by compute, one by many short ops.
DEMO = (("lenet5", 256, None), ("mobilenet_v2", 8, 64))


def calibrate(request: JobRequest, output: Path | None, as_json: bool, wait_s: float = 0.0) -> None:
    """Measure the missing costs of the strategies' plans, by default of every strategy's default plan."""
    placement = request.placement()
    stated = request.job()
    testbed = testbed_for(placement, stated.precision)
    job = stated.on(testbed.identity.kind)
    mode = testbed.mode  # the placement's, unless this machine cannot run plans in it
    chosen, shared = request.chosen(placement.plan_devices), request.shared
    profile, place = open_profile(output, True, testbed.identity)
    if profile.matches(testbed.identity):
        raise SchedcastError(f"profile {place} is of another machine ({profile.identity.name}); write to another file with -o")
    check_outputs({"--output": place}, [("--model", source_file(job.model))])
    machine = testbed.machine(profile)
    caution_precision([machine], job.precision)
    labels = dict.fromkeys([PYTORCH, *chosen])
    forecasts, refused = plan_all(job, labels, shared, Target(machine, CostModel(machine, profile), mode))
    if not forecasts:
        raise next(iter(refused.values())).error
    for label, refusal in refused.items():
        print(f"schedcast: {strategies.parse(label, shared)[0].name} skipped: {refusal.words}", file=sys.stderr)
    bench = Bench(testbed, profile, place, calibration=True)
    wait_for_quiet(testbed, wait_s, as_json)
    with progress_bar(f"calibrating {job.label}", as_json) as progress:
        tried, busy_share = bench.measure({job: plans_of(forecasts.values())}, progress)
    _show_failures(profile)
    measured = tried - len(profile.new_failures)
    total = len(profile.costs) + len(profile.collectives)
    if as_json:
        print_document(
            {"schema": "schedcast.calibration/1", "profile": str(place), "measured_keys": measured, "keys": total,
             "failures": profile.new_failures, "busy_share": busy_share}
        )  # fmt: skip
    else:
        print(
            *filter(None, [busy_line(busy_share, testbed.identity.kind)]),
            f"{measured} costs measured, {total} in {place}",
            sep="\n",
        )


def _show_failures(profile: Profile) -> None:
    for key, why in profile.new_failures.items():
        print(f"schedcast: not measured: {key.partition('|')[0]}: {why}; its cost is estimated from other ops", file=sys.stderr)


def validate(
    request: JobRequest,
    *,
    calibration: bool,
    out: Path | None,
    as_json: bool,
    quick: bool = False,
    schedule: Path | None = None,
    wait_s: float = 0.0,
    timelines: bool = True,
) -> None:
    """Compare predicted with measured step times, and with `timelines` every task's.

    Exit with 1 if results differ from plain PyTorch's, or if nothing ran.
    """
    placement = request.placement()
    stated = request.job()
    testbed = testbed_for(placement, stated.precision)
    job = stated.on(testbed.identity.kind)
    chosen = request.chosen(placement.plan_devices)
    order = schedules.opened(schedule, request.strategies, request.shared)
    check_outputs({"--out": out and OutputFolder(out, REPORT), **order.outputs}, [*request.inputs, *order.inputs])
    bench = Bench.of(request, testbed, calibration)
    job.graph()
    caution_precision([testbed.machine(None)], job.precision)
    rounds = QUICK_ROUNDS if quick else ROUNDS
    wait_for_quiet(testbed, wait_s, as_json)
    outcome = run_validation(
        bench, job, order.texts or chosen, order.options, quiet=as_json, rounds=rounds, estimate=True, timelines=timelines
    )
    wider = math.sqrt(ROUNDS / rounds)
    quick_words = f"Measured in {rounds} rounds instead of {ROUNDS} (--quick): the measured times are about {wider:.1f} times as uncertain."
    notes = [partition_words(testbed.machine(None)), quick_words if quick else ""]
    _show([outcome], out, as_json, list(filter(None, notes)), order.writers(outcome.forecasts))


def demo(out: Path, as_json: bool, wait_s: float = 0.0) -> None:
    """Validate the demo's models under every strategy, and write a report."""
    check_outputs({"--out": OutputFolder(out, REPORT)})
    profile, place = open_profile(None, create=True)
    check_writable(place)
    wait_for_quiet(CpuTestbed(), wait_s, as_json)
    outcomes = [
        run_validation(Bench(CpuTestbed(), profile, place, True), Job(model, batch, size), strategies.names(1), {}, quiet=as_json)
        for model, batch, size in DEMO
    ]
    _show(outcomes, out, as_json)


def run_validation(
    bench: Bench,
    job: Job,
    chosen: Sequence[str],
    shared: dict[str, str],
    quiet: bool,
    rounds: int = ROUNDS,
    estimate: bool = False,
    timelines: bool = True,
) -> Outcome:
    """Validate, with a progress bar. `estimate`: say first how long it takes."""
    profile, save_to = bench.profile, bench.place if bench.calibration else None
    if bench.calibration:
        bench.testbed.measure_machine(profile)

    def announce(seconds: float) -> None:
        if estimate:
            print(f"schedcast: validating {job.label} takes about {rough_time(seconds)}", file=sys.stderr)

    with closing(bench.testbed), progress_bar(f"validating {job.label}", quiet) as progress:
        outcome = compare(
            job, chosen, shared, profile, bench.testbed, calibrate=bench.calibration, save_to=save_to, progress=progress,
            rounds=rounds, announce=announce, timelines=timelines,
        )  # fmt: skip
    if save_to is not None:
        _keep_steps(outcome.validation, job, profile, save_to)
    _show_failures(profile)
    return outcome


def _keep_steps(validation: Validation, job: Job, profile: Profile, place: Path) -> None:
    """Store the measured steps in the profile, where a search finds them. Steps of a busy machine are not stored."""
    if not validation.busy and (name := measured_job(job, validation.mode, int(validation.device.get("devices", 1)))):
        profile.steps |= steps_of(validation, name, datetime.now(UTC).date().isoformat())
        profile.save(place)


def _show(
    outcomes: list[Outcome], out: Path | None, as_json: bool, notes: Sequence[str] = (), writers: Sequence[Callable[[], object]] = ()
) -> None:
    """Print the outcomes, then write the report and call the `writers`.

    Exit with 1 if results differ from plain PyTorch's, or if nothing ran.
    """
    validations: list[Validation] = [outcome.validation for outcome in outcomes]

    def document() -> dict:
        documents = [validation.document() for validation in validations]
        return documents[0] if len(documents) == 1 else {"schema": "schedcast.demo/1", "validations": documents}

    print_then_write(as_json, document, lambda: _print(outcomes, notes), None if out is None else lambda: _write(outcomes, out), *writers)
    if not all(outcome.same_numbers for outcome in outcomes) or any(not v.ran for v in validations):
        raise typer.Exit(1)


def _print(outcomes: list[Outcome], notes: Sequence[str]) -> None:
    show(terminal(), *validations.printed([outcome.validation for outcome in outcomes]), Sentences(notes))


def _write(outcomes: list[Outcome], out: Path) -> None:
    comparisons = [c for outcome in outcomes for c in outcome.comparisons.values()]
    plans = [dump(outcome.forecasts[label].plan) for outcome in outcomes for label in outcome.comparisons]
    write_page(lambda: report.write_report(out, [outcome.validation for outcome in outcomes], comparisons, plans), out)
