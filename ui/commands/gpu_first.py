"""`stepcast gpu-first`: the first minutes on a GPU that never ran Stepcast before."""

import math
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import typer
from rich.console import Console

from calibrate.placement import Placement, check_names
from calibrate.preflight.child import REAL
from calibrate.preflight.run import FirstLook, child_environment, named
from traces.archives import archive_path, write_archive
from traces.errors import StepcastError, UnusableFileError
from traces.files import write_atomic
from traces.gpu_first import PAGE, REPORT_FOLDER, CheckRecord, GpuFirst
from traces.gpu_report import REPORT, GpuReport
from traces.outputs import OutputFolder, check_outputs
from ui.commands.gpu_report import clock_words
from ui.commands.output import print_document
from ui.reports import gpu_first as gpu_first_page
from ui.reports.folders import GPU_FIRST
from ui.reports.gpu_report import summary_words

#: The least seconds for which a GPU report is begun, and those after which one that does not end is stopped.
LEAST_REPORT_S, GRACE_S = 45.0, 45.0
#: Seconds between two looks at what the report has written.
_POLL_S = 1.0


def gpu_first(
    minutes: float, resume: bool, out: Path | None, archive: Path | None, device: str, only: Sequence[str], report: bool, as_json: bool
) -> None:
    """Make the checks, then the GPU report. Exit with 1 if a check found something else than Stepcast assumes, or failed."""
    check_names(Placement(device))
    if device == "cpu":
        raise StepcastError("--device cpu: these checks are of a GPU; use cuda or cuda:N, or stepcast demo for the CPU")
    if not 0 < minutes < math.inf:
        raise StepcastError(f"--minutes is {minutes:g}; expected a number above 0")
    index = device.partition(":")[2] or "0"
    command = ["gpu-report", "--device", device] if report and not only else []
    document = write(minutes, resume, out or Path("gpu-first"), archive, f"{REAL}:{index}", named(only), command)
    if as_json:
        print_document(document.document())
    if not document.well:
        raise typer.Exit(1)


def write(
    minutes: float, resume: bool, folder: Path, archive: Path | None, opener: str, only: Sequence[str] = (), report: Sequence[str] = ()
) -> GpuFirst:
    """Make the checks with the function named by `opener`, write the folder and its archive after every one, and print the answers.

    `report` are the arguments of the command that makes the GPU report; none: no report.
    """
    archive = archive or archive_path(folder)
    check_outputs({"--out": OutputFolder(folder, GPU_FIRST), "--archive": archive})
    console = Console(file=sys.stderr, soft_wrap=True)

    def say(text: str) -> None:
        console.print(text, highlight=False, markup=False)

    def tell(first: GpuFirst, latest: CheckRecord | None) -> None:
        write_atomic(folder / PAGE, gpu_first_page.readme(first))
        write_archive(folder, archive)
        if latest is not None:
            say(f"{gpu_first_page.check_line(latest)} ({clock_words(look.left_s())} left)")

    look = FirstLook(folder, minutes, opener, resume, only, tell)
    look.run()
    if report:
        look.report = "It is being measured."
        tell(look.document(), None)
        arguments = [*report, "--out", str(folder / REPORT_FOLDER), *([] if resume else ["--no-resume"])]
        look.report = _report(look, arguments, lambda: tell(look.document(), None))
    look.complete = True
    document = look.document()
    tell(document, None)
    say("What to fix first:")
    for line in gpu_first_page.mend_words(document):
        say(f"  {line}")
    if document.report:
        say(f"GPU report: {document.report}")
    say(f"answers: {folder / PAGE}, all of it in {archive}")
    return document


def _report(look: FirstLook, arguments: Sequence[str], refresh: Callable[[], None] = lambda: None) -> str:
    """Make the GPU report in a process of its own, in the time that is left. Returns what became of it, in words.

    Calls `refresh` after each of its parts, so that the archive has them.
    """
    left_s = look.left_s()
    if left_s < LEAST_REPORT_S:
        return f"It was not begun: {max(0.0, left_s):.0f} s were left."
    command = [sys.executable, "-P", "-m", "ui.cli", *arguments, "--minutes", f"{left_s / 60:.3f}"]
    process = subprocess.Popen(command, env=child_environment(), stdout=sys.stderr)
    written, seen = look.folder / REPORT_FOLDER / REPORT, None
    try:
        while process.poll() is None and look.left_s() > -GRACE_S:
            time.sleep(_POLL_S)
            latest = written.stat().st_mtime_ns if written.exists() else None
            if latest != seen:
                seen = latest
                refresh()
        status = "it did not end in time and was stopped" if process.poll() is None else str(process.returncode)
    except KeyboardInterrupt:  # which the process has received, too
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S)
        raise
    finally:
        process.kill()
        process.wait()
    with suppress(UnusableFileError):
        report = GpuReport.load(written)
        return " ".join(summary_words(report)) + ("" if status in ("0", "1") else f" Its process ended early ({status}).")
    return f"It has no results: exit status {status}."
