"""`schedcast search`."""

from collections.abc import Sequence
from pathlib import Path

import typer
from rich.console import Console

from calibrate.rounds import QUICK_ROUNDS, ROUNDS
from simulator.engine.costs.model import CostModel
from simulator.machine.presets import THIS_CPU, THIS_GPU
from simulator.model.job import Job
from simulator.predict.search.setup import Setup
from simulator.predict.search.variants import split
from traces.documents.search_result import SearchResult
from traces.errors import SchedcastError
from traces.outputs import check_outputs
from ui.commands.output import print_then_write
from ui.present import searches
from ui.present.machines import partition_words, unmeasured_words
from ui.present.terminal import console as terminal
from ui.present.terminal import show
from ui.request import JobRequest
from ui.service.cautions import caution, measured_here
from ui.service.progress import progress_bar
from ui.service.searches import ranking_of, tried


def search_plans(
    request: JobRequest,
    *,
    verify: int | None,
    calibration: bool,
    quick: bool,
    cluster: str | None,
    processes: int | None,
    out: Path | None,
    as_json: bool,
    wait_s: float = 0.0,
) -> None:
    """Rank everything that the strategies offer, and print it. Exit with 1 if nothing fits in memory, or if a plan's numbers are wrong."""
    for option, number in (("--verify", verify), ("--processes", processes)):
        if number is not None and number < 1:
            raise SchedcastError(f"{option} is {number}; expected at least 1")
    if cluster is not None and processes is not None:
        raise SchedcastError(f"--processes {processes} and --cluster {cluster} both say who evaluates; choose one of the two")
    job = request.job()
    check_outputs({"--out": out}, request.inputs)
    target = request.target(job)
    job = job.on(target.machine.devices[0].kind)
    if verify is not None:
        _check_here(target.costs, request)
    setup = Setup(job, target, request.shared)
    names = tried(request, setup)
    if verify is not None and any(split(name)[1] for name in names):
        raise SchedcastError("--verify runs one job, and --try varies it; drop one of the two")
    if verify is not None and verify > len(names):
        raise SchedcastError(f"--verify {verify}: there are {len(names)} candidates; choose at most that many, such as 3")
    caution([target], request)
    with progress_bar(f"searching {job.label}", as_json) as progress:
        result = ranking_of(request, setup, names, progress, processes, cluster).result
    right = True
    if verify is not None and result.fitting:
        rounds = QUICK_ROUNDS if quick else ROUNDS
        result, right = _verified(result, verify, job, request, calibration=calibration, rounds=rounds, quiet=as_json, wait_s=wait_s)
    about = list(filter(None, [partition_words(target.machine), unmeasured_words([target.machine])]))
    save = None if out is None else lambda: result.save(out)
    print_then_write(as_json, result.document, lambda: print_search(result, terminal(), about), save)
    if result.best is None or not right:
        raise typer.Exit(1)


def _check_here(model: CostModel, request: JobRequest) -> None:
    """Raise SchedcastError if the predictions are not about this machine, on which --verify runs plans."""
    name, profile = model.machine.name, request.profile
    if scale := request.placement().scale.text:
        raise SchedcastError(f"--verify runs plans on this machine as it is; drop --scale {scale}")
    if profile is None and name not in (THIS_CPU, THIS_GPU):
        raise SchedcastError(f"--verify runs plans on this machine, and --machine {name} is another; drop --verify or --machine")
    if profile is not None and not measured_here(model):
        raise SchedcastError(f"--verify runs plans on this machine, and profile {profile} is of another; drop --verify or --profile")
    if (name == THIS_CPU) != (request.device == "cpu"):
        raise SchedcastError(f"--verify runs plans on --device {request.device}, and the predictions are for {name}; add --device cuda")


def _verified(
    result: SearchResult,
    count: int,
    job: Job,
    request: JobRequest,
    calibration: bool,
    rounds: int,
    quiet: bool,
    wait_s: float,
) -> tuple[SearchResult, bool]:
    """Run plans that may be the best. Returns the result with what was measured, and whether all computed what plain PyTorch computes.

    `job`: the request's, as its device runs it.
    """
    from calibrate.testbeds import testbed_for
    from calibrate.verification import measured_now, shortlist, verified, worth_measuring
    from ui.commands.bench import Bench, wait_for_quiet
    from ui.commands.measuring import run_validation

    shared, testbed = request.shared, testbed_for(request.placement(), job.precision)
    bench = Bench.of(request, testbed, calibration)
    texts = worth_measuring(result.fitting, count)
    wait_for_quiet(testbed, wait_s, quiet)
    if calibration:
        testbed.measure_machine(bench.profile)
        with progress_bar(f"measuring the costs of {len(texts)} plans", quiet) as progress:
            forecasts = measured_now(job, texts, shared, bench.profile, save_to=bench.place, testbed=testbed, progress=progress)
        texts = shortlist(forecasts, count, result.fitting[0].plan) or texts
    texts = texts[:count]
    outcome = run_validation(bench, job, texts, shared, quiet=quiet, rounds=rounds, estimate=True)
    return verified(result, texts, outcome), outcome.same_numbers


def print_search(result: SearchResult, console: Console, about: Sequence[str] = ()) -> None:
    """Print the ranking and why the best plan wins. `about`: sentences on the machine."""
    show(console, *searches.blocks(result, about))
