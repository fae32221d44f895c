"""Pauses Python's garbage collector for code that creates a great many small objects."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def gc_paused() -> Iterator[None]:
    """Pause the collection of reference cycles: with torch loaded, walking the heap would take longer than the work and free nothing."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()
