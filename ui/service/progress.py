"""Progress bars of commands on standard error, and lines of progress for a process that starts a command."""

import os
import sys
from contextlib import contextmanager

#: Variable of the environment, and its value, by which a command writes its progress as lines.
PROGRESS, LINES = "SCHEDCAST_PROGRESS", "lines"
#: The command line, for `python -m`.
COMMAND_LINE = f"{__package__.removesuffix('.service')}.cli"


@contextmanager
def progress_bar(title: str, quiet: bool = False):
    """Show a progress bar with the time left on standard error, unless `quiet`. Yields `report(done, total, text)`.

    For a process that reads it (LINES in the environment), each step is a line instead: `validating lenet5-b64: 12 of 60, mm`.
    """
    if os.environ.get(PROGRESS) == LINES and not quiet:
        yield lambda done, total, text: print(f"{title}: {done} of {total}, {text[:40]}", file=sys.stderr, flush=True)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = [
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[text]}"),
    ]
    console = Console(file=sys.stderr)
    with Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal, refresh_per_second=4) as bar:
        task = bar.add_task(title, total=None, text="")
        yield lambda done, total, text: bar.update(task, completed=done, total=total, text=text[:40])


@contextmanager
def stages(title: str, count: int, quiet: bool = False):
    """Show on standard error which of `count` stages is at work. Yields `progress(stage)`, to be called before each of them."""
    with progress_bar(title, quiet) as report:
        numbers = iter(range(count))
        yield lambda stage: report(next(numbers, count), count, stage)
