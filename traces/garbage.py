"""Python's collector of cycles, out of the way of code that makes very many small objects."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def gc_paused() -> Iterator[None]:
    """No cycles are collected meanwhile: where nothing dies in cycles, walking a heap with torch in it takes longer than the work does."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()
