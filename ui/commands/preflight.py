"""`schedcast gpu-report`, also `--quick`: what a GPU does and how well it is predicted, the most informative first."""

import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import typer
from rich.console import Console

import traces
from calibrate.placement import Placement
from calibrate.preflight.child import REAL
from calibrate.preflight.probe import Probe
from calibrate.preflight.registry import named, probes
from calibrate.preflight.runner import Ask, Processes, Runner
from calibrate.preflight.validations import TARGETS, Target
from simulator.model.job import Job
from traces.documents.gpu_report import README, REPORT, GpuReport, PartRecord
from traces.documents.profile import slug
from traces.errors import SchedcastError
from traces.files import kind_at, write_atomic
from traces.outputs import OutputFolder, archive_path, check_outputs, write_archive
from traces.units import read_integer
from ui.commands.output import GPU_FIRST, GPU_REPORT, print_document
from ui.present import gpu_report as page
from ui.present import labels
from ui.present.terminal import show
from ui.service.progress import progress_bar

#: Columns of tables that are not written to a terminal.
WIDTH = 120


def gpu_report(
    *,
    minutes: float,
    resume: bool,
    out: Path | None,
    archive: Path | None,
    device: str,
    models: list[str],
    samples: bool,
    quick: bool,
    only: Sequence[str],
    report: bool,
    as_json: bool,
    wait_s: float = 0.0,
) -> None:
    """Run all probes, the most informative first. Exit with 1 if results differ from plain PyTorch's, or if nothing was measured.

    `quick`: a first look at a GPU. Exit with 1 if a check found something else than Schedcast assumes, or failed. `only`: the checks to
    make, again; without `report`, only checks are made. Waits up to `wait_s` seconds, beyond `minutes`, until other processes leave the
    GPU alone.
    """
    if not quick and (only or not report):
        raise SchedcastError(f"{f'--only {only[0]}' if only else '--no-report'} is an option of a quick look; add --quick")
    opener, targets, product = _opener(device, minutes), [target(text) for text in models] or TARGETS, ""
    names = named(only)
    if out is not None:
        archive = archive or archive_path(out)
        _check_outputs(out, archive)
    if out is None or wait_s:
        with progress_bar("waiting for other processes", as_json) as bar, Processes(Path(), opener) as processes:
            product, busy_share = processes.look(wait_s, lambda text: bar(0, 1, text))
        if line := labels.busy_line(busy_share, "gpu"):
            print(f"schedcast: {line}", file=sys.stderr)
    folder = out or default_place(product)
    _check_outputs(folder, archive)
    with Processes(folder, opener, targets, samples) as processes:
        document = write(processes.ask, probes(targets), minutes, folder, archive, as_json, resume=resume, only=names, long=report)
    if quick:
        if not document.well:
            raise typer.Exit(1)
    elif not document.same_numbers or not any(part.measured and part.file for part in document.parts):
        raise typer.Exit(1)


def _opener(device: str, minutes: float) -> str:
    """What opens the GPU in a probe's process. Raises SchedcastError for a device that is no GPU, and for no time."""
    Placement(device)  # refuses what is no device
    if device == "cpu":
        raise SchedcastError("--device cpu: this command is about a GPU; use cuda or cuda:N, or schedcast demo for the CPU")
    if not 0 < minutes < math.inf:
        raise SchedcastError(f"--minutes is {minutes:g}; expected a number above 0")
    return f"{REAL}:{device.partition(':')[2] or '0'}"


def _check_outputs(folder: Path, archive: Path | None) -> None:
    kind = GPU_REPORT if kind_at(folder / REPORT) or not GPU_FIRST.written(folder) else GPU_FIRST
    check_outputs({"--out": OutputFolder(folder, kind), "--archive": archive})


def target(text: str) -> Target:
    """Read MODEL@BATCH. Raises SchedcastError for anything else, and for a model that does not exist."""
    model, at, batch = text.rpartition("@")
    samples = read_integer(batch, 1)
    if not (at and model) or samples is None:
        raise SchedcastError(f"--models {text!r} is not MODEL@BATCH; give it as in --models resnet50@64")
    Job(model, samples).factory  # noqa: B018 - raises for a wrong name before anything is measured
    return Target(model, samples)


def clock_words(seconds: float) -> str:
    """Minutes and seconds, such as 6:05; 0:00 if none are left."""
    minutes, rest = divmod(max(0, round(seconds)), 60)
    return f"{minutes}:{rest:02}"


def default_place(product: str) -> Path:
    """The folder of a GPU's report: in the package's data in a checkout of the repository, else in the current folder."""
    package = Path(traces.__file__).resolve().parent
    data = package / "data"
    name = slug(product) or "gpu"
    in_checkout = (package.parent / ".git").exists() and (package.parent / "pyproject.toml").exists()
    if in_checkout and os.access(data if data.exists() else package, os.W_OK):
        return data / name
    return Path(f"gpu-report-{name}")


def write(
    ask: Ask, ordered: Sequence[Probe], minutes: float, folder: Path, archive: Path | None, as_json: bool = False, **more
) -> GpuReport:
    """Run the probes, write the folder and its archive after every one, and print the answers. `more` are arguments of `Runner`."""
    console = Console(file=sys.stderr, soft_wrap=True, width=None if sys.stderr.isatty() else WIDTH)
    budget = round(60 * minutes)

    def say(text: str) -> None:
        console.print(text, highlight=False, markup=False)

    def tell(report: GpuReport, latest: PartRecord | None) -> None:
        validations = report.read_validations(folder)
        write_atomic(folder / README, page.readme(report, validations))
        if archive is not None:
            write_archive(folder, archive)
        if latest is not None:
            say(f"{page.part_line(latest)} ({clock_words(runner.left_s())} left)")
            if latest.status == "done" and latest.name in validations:
                show(console, page.console_table(latest.name, validations[latest.name]))

    with progress_bar("probing the GPU", as_json) as bar:
        runner = Runner(
            folder, ordered, minutes, ask, tell, lambda text: bar(min(budget, round(budget - runner.left_s())), budget, text), **more
        )
        report = runner.run()
    for part in report.parts:
        if part.status == "unsuited" and part.seconds is None:  # those that did not fit are counted below, and README.md lists them
            say(page.part_line(part))
    show(console, *page.summary(report))
    say(f"report: {folder / README}" + (f", all of it in {archive}" if archive else ""))
    if as_json:
        print_document(report.document())
    return report
