"""Prints one JSON document on standard output, where nothing else is printed."""

import json
import sys
from typing import Any


def print_document(document: Any) -> None:
    """Print a document on the real standard output. With --json, `sys.stdout` is redirected to standard error."""
    text = json.dumps(document, allow_nan=False)
    sys.__stdout__.write(text + "\n")
    sys.__stdout__.flush()


def print_json(name: str, rows: list[dict]) -> None:
    """Print a list of rows as `{"schema": "stepcast.NAME/1", NAME: [...]}`."""
    print_document({"schema": f"stepcast.{name}/1", name: rows})
