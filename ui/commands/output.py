"""Prints results: one JSON document on standard output, where nothing else is printed, or text for people."""

import json
import os
import sys
from collections.abc import Callable
from typing import Any

from traces.errors import SchedcastError


def print_document(document: Any) -> None:
    """Print a document on the real standard output. With --json, `sys.stdout` is redirected to standard error."""
    text = json.dumps(document, allow_nan=False)
    sys.__stdout__.write(text + "\n")
    sys.__stdout__.flush()


def print_json(name: str, rows: list[dict]) -> None:
    """Print a list of rows as `{"schema": "schedcast.NAME/1", NAME: [...]}`."""
    print_document({"schema": f"schedcast.{name}/1", name: rows})


def print_then_write(show: Callable[[], object], *writers: Callable[[], object]) -> None:
    """Show a result, then write its files. No failure keeps the other steps from being done. Raises SchedcastError with all failures."""
    failures: list[str] = []
    for step in (show, *writers):
        try:
            step()
            sys.stdout.flush()
        except BrokenPipeError:
            silence_stdout()  # the reader left, which is no mistake
        except OSError as error:
            silence_stdout()
            failures.append(str(cannot_print(error)))
        except SchedcastError as error:
            failures.append(str(error))
    if failures:
        raise SchedcastError("; ".join(failures))


def cannot_print(error: OSError) -> SchedcastError:
    """The error that tells the user about a failed write to standard output."""
    return SchedcastError(f"cannot write the answer to standard output: {error.strerror or error}; free some space or choose another place")


def silence_stdout() -> None:
    """Let later output go nowhere: what is still buffered would fail again when the interpreter exits."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
