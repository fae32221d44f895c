"""What the commands share: they print one JSON document or text, write folders that a later command recognizes, and refuse an option
given twice.
"""

import json
import os
import re
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from typer.core import TyperCommand

from traces.errors import SchedcastError
from traces.outputs import FolderKind


class OnceCommand(TyperCommand):
    """A command whose options are given at most once, except those that take several values and those that only switch something on."""

    def format_help(self, ctx, formatter) -> None:
        """See typer. A paragraph of the docstring becomes one line, which the terminal breaks where it ends."""
        self.help = re.sub(r"(?<=\S)\n(?=\S)", " ", self.help or "")
        super().format_help(ctx, formatter)

    def parse_args(self, ctx, args: list[str]) -> list[str]:
        """See typer. Raises SchedcastError for an option that is given twice."""
        _, _, given = self.make_parser(ctx).parse_args(args=list(args))
        for option, count in Counter(given).items():
            switch = getattr(option, "is_flag", False) and not option.secondary_opts
            if count > 1 and not switch and not getattr(option, "multiple", False) and option.param_type_name == "option":
                raise SchedcastError(f"{option.opts[-1]} is given {count} times and takes one value; give it once")
        return super().parse_args(ctx, args)


REPORT = FolderKind("report.json", "schedcast.report", ("index.html", "report.json", "validation.json", "summary.svg"))
TRAINING = FolderKind("run.json", "schedcast.run", ("index.html", "run.json", "loss.svg"))
REPRODUCTION = FolderKind("reproduction.json", "schedcast.reproduction", ("index.html", "reproduction.json"))
GPU_REPORT = FolderKind("report.json", "schedcast.gpu-report", ("report.json", "README.md"))
#: What an older gpu-first wrote, which is continued as a GPU report.
GPU_FIRST = FolderKind("first.json", "schedcast.gpu_first", ("report.json", "README.md"))
DIFF = FolderKind("diff.json", "schedcast.diff", ("index.html", "diff.json", "a.json.gz", "b.json.gz", "waterfall.svg", "perfetto.json.gz"))


def print_document(document: Any) -> None:
    """Print a document on the real standard output. With --json, `sys.stdout` is redirected to standard error."""
    print(json.dumps(document, allow_nan=False), file=sys.__stdout__, flush=True)


def print_json(name: str, rows: list[dict]) -> None:
    """Print a list of rows as `{"schema": "schedcast.NAME/1", NAME: [...]}`."""
    print_document({"schema": f"schedcast.{name}/1", name: rows})


def print_then_write(as_json: bool, document: Callable[[], Any], show: Callable[[], object], *writers: Callable[[], object] | None) -> None:
    """Print an answer, as its document or as `show` prints it, then write its files. None is no file.

    A failure does not prevent the other steps. Raises SchedcastError with all failures.
    """
    failures: list[str] = []
    for step in ((lambda: print_document(document())) if as_json else show, *filter(None, writers)):
        try:
            step()
            sys.stdout.flush()
        except BrokenPipeError:
            silence_stdout()  # the reader has gone, which is not an error
        except OSError as error:
            silence_stdout()
            failures.append(str(cannot_print(error)))
        except SchedcastError as error:
            failures.append(str(error))
    if failures:
        raise SchedcastError("; ".join(failures))


def write_page(write: Callable[[], Path], folder: Path) -> None:
    """Write the page of a folder and say where it is. `write` writes the folder's documents first.

    Raises SchedcastError, which says what to install, if a package that draws pages is missing.
    """
    try:
        print(f"report: {write()}", file=sys.stderr)
    except ModuleNotFoundError as error:
        package = (error.name or "a package").partition(".")[0]
        raise SchedcastError(
            f"{folder} has the documents but no page, because {package} is not installed: pip install {package}; on a machine that has it,"
            f" this draws the page: schedcast report {folder}"
        ) from error


def cannot_print(error: OSError) -> SchedcastError:
    """The error that tells the user about a failed write to standard output."""
    return SchedcastError(f"cannot write the answer to standard output: {error.strerror or error}; free some space or choose another place")


def silence_stdout() -> None:
    """Let later output go nowhere: what is still buffered would fail again when the interpreter exits."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
