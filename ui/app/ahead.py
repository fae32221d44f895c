"""Loads what the next page will need while the user reads the first one: modules, PyTorch, and the example's graph."""

import importlib
import threading

from ui.app.model import EXAMPLE
from ui.app.navigation import PAGES, pages

_wanted = threading.Event()


def enable() -> None:
    """Let `start` load: called by the server of the app, and not by tests, which replace modules."""
    _wanted.set()


def start() -> None:
    """Start loading in the background, once in a process, when the first page has been drawn."""
    if _wanted.is_set():
        _wanted.clear()
        threading.Thread(target=_load, name="loading ahead", daemon=True).start()


def _load() -> None:
    from ui import jobs  # too slow for the first page

    for page in pages():
        importlib.import_module(f"{PAGES}.{page.name}")
    jobs.predict_many(EXAMPLE)
