"""Prints results: one JSON document on standard output, where nothing else is printed, or text for people."""

import json
import sys
from collections.abc import Callable
from typing import Any


def print_document(document: Any) -> None:
    """Print a document on the real standard output. With --json, `sys.stdout` is redirected to standard error."""
    text = json.dumps(document, allow_nan=False)
    sys.__stdout__.write(text + "\n")
    sys.__stdout__.flush()


def print_json(name: str, rows: list[dict]) -> None:
    """Print a list of rows as `{"schema": "stepcast.NAME/1", NAME: [...]}`."""
    print_document({"schema": f"stepcast.{name}/1", name: rows})


def print_then_write(show: Callable[[], object], *writers: Callable[[], object]) -> None:
    """Show a result, then write its files. A failure of one keeps none of the others from being done; the first failure is raised."""
    failures: list[Exception] = []
    for step in (show, sys.stdout.flush, *writers):
        try:
            step()
        except Exception as error:
            failures.append(error)
    if failures:
        raise failures[0]
