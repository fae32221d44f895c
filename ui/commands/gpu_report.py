"""`stepcast gpu-report`: measures a GPU, and how well it is predicted."""

import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import typer
from rich.console import Console

import traces
from calibrate.placement import Placement, check_names
from calibrate.preflight.report import measure
from calibrate.preflight.report_context import ReportContext, Thoroughness
from calibrate.preflight.report_parts import TARGETS, Target, parts
from executors.cuda.driver import Driver
from simulator.job import Job
from traces.archives import archive_path, write_archive
from traces.errors import StepcastError
from traces.files import write_atomic
from traces.gpu_report import README, GpuReport, PartRecord
from traces.outputs import OutputFolder, check_outputs
from traces.profile import slug
from ui import jobs
from ui.commands.output import print_document
from ui.commands.quiet import wait_for_quiet
from ui.reports import gpu_report as gpu_report_page
from ui.reports.folders import GPU_REPORT


def gpu_report(
    minutes: float,
    resume: bool,
    out: Path | None,
    device: str,
    models: list[str],
    samples: bool,
    as_json: bool,
    archive: Path | None = None,
    wait_s: float = 0.0,
) -> None:
    """Measure the GPU and write its report. Exit with 1 if results differ from plain PyTorch's, or if nothing was measured."""
    check_names(Placement(device))
    if device == "cpu":
        raise StepcastError("--device cpu: this report is about a GPU; use cuda or cuda:N, or stepcast demo for the CPU")
    if not 0 < minutes < math.inf:
        raise StepcastError(f"--minutes is {minutes:g}; expected a number above 0")
    targets = [target(text) for text in models] or TARGETS
    from executors.cuda.torch_driver import gpu

    report = write(gpu(int(device.partition(":")[2] or 0)), minutes, resume, out, targets, samples, as_json, archive=archive, wait_s=wait_s)
    if as_json:
        print_document(report.document())
    if not report.same_numbers or not any(part.measured for part in report.parts):
        raise typer.Exit(1)


def target(text: str) -> Target:
    """Read MODEL@BATCH. Raises StepcastError for anything else, and for a model that does not exist."""
    model, at, batch = text.rpartition("@")
    if not (at and model and batch.isdecimal()):
        raise StepcastError(f"--models {text!r} is not MODEL@BATCH; give it as in --models resnet50@64")
    Job(model, int(batch)).factory  # noqa: B018 - raises for a wrong name before anything is measured
    return Target(model, int(batch))


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
    driver: Driver,
    minutes: float,
    resume: bool,
    out: Path | None,
    targets: Sequence[Target],
    samples: bool,
    as_json: bool,
    thoroughness: Thoroughness | None = None,
    archive: Path | None = None,
    wait_s: float = 0.0,
) -> GpuReport:
    """Measure the GPU, write the report and its archive after every part, and print progress on standard error.

    The archive lies at `archive`; by default beside `out`, or nowhere without `out`. Waits up to `wait_s` seconds, beyond `minutes`, until
    other processes leave the GPU alone.
    """
    folder = out if out is not None else default_place(driver.facts.name)
    archive = archive_path(out) if archive is None and out is not None else archive
    check_outputs({"--out": OutputFolder(folder, GPU_REPORT), "--archive": archive})
    context = ReportContext(driver, folder, resume, samples, thoroughness)
    console = Console(file=sys.stderr, soft_wrap=True)

    def show(report: GpuReport, latest: PartRecord | None) -> None:
        write_atomic(folder / README, gpu_report_page.readme(report, report.read_validations(folder)))
        if archive is not None:
            write_archive(folder, archive)
        if latest is not None:
            console.print(f"{gpu_report_page.part_line(latest)} ({clock_words(context.left_s())} left)", highlight=False, markup=False)

    wait_for_quiet(context.testbed("eager", "fp32"), wait_s, as_json)
    budget = round(60 * minutes)
    with jobs.progress("gpu-report", as_json) as bar:
        context.show = lambda done, total, text: bar(
            min(budget, round(budget - context.left_s())), budget, f"{context.part} {done}/{total} {text}"
        )
        report = measure(context, parts(targets), minutes, show)
    show(report, None)
    for line in gpu_report_page.summary_words(report):
        console.print(f"- {line}", highlight=False, markup=False)
    for part in report.parts:
        if part.status == "left":
            console.print(gpu_report_page.part_line(part), highlight=False, markup=False)
    console.print(f"report: {folder / README}" + (f", all of it in {archive}" if archive else ""), highlight=False, markup=False)
    return report
