"""Delay Ctrl-C while code runs that must not be interrupted."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def interrupts_delayed() -> Iterator[None]:
    """Delay Ctrl-C until the block ends; then raise KeyboardInterrupt if it was pressed.

    PyTorch's libraries crash if they are interrupted while they load. Only the main thread receives signals, so in any other thread this
    changes nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    pressed: list[int] = []
    handler = signal.signal(signal.SIGINT, lambda number, frame: pressed.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
    if pressed:
        raise KeyboardInterrupt
