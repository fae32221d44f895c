"""This process: signals that stop a command, its end with the process that started it, a paused garbage collector, and a clock."""

import ctypes
import gc
import io
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import FrameType

#: The folder from which this process imports our packages. In an installed wheel they are inside `schedcast.packages`.
IMPORT_ROOT = Path(__file__).resolve().parents[__name__.count(".")]


def importing_environment() -> dict[str, str]:
    """The environment of a new Python process that imports the packages of this one."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(IMPORT_ROOT), os.environ.get("PYTHONPATH")]))}


def seconds_of(call: Callable[[], object]) -> float:
    """Return the wall-clock seconds of a call."""
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


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


def provide_streams() -> None:
    """Open standard streams that the parent has closed, and prevent errors from characters that a stream's encoding lacks.

    Input is empty, messages are dropped, and writing to standard output fails (EBADF), so that no answer is lost silently.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            handle = os.open(os.devnull, os.O_WRONLY if name == "stderr" else os.O_RDONLY)  # the lowest free number: the stream's own
            stream = open(handle, mode, encoding="utf-8", closefd=False)  # noqa: SIM115 - until the process ends
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            with suppress(OSError):  # it was a file when it was opened and is a pipe now, as in a forked process; it is set all the same
                stream.reconfigure(errors="replace")


#: Linux's request to be sent a signal when the parent ends.
_PR_SET_PDEATHSIG = 1


def end_with(parent: int) -> None:
    """Kill this process when `parent`, the process that started it, has ended; immediately if it has ended already."""
    with suppress(OSError, AttributeError, TypeError):  # not Linux
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


_STOPPING = (signal.SIGINT, signal.SIGTERM)
#: The signals that stopped this process.
_received: list[int] = []


def heed_termination() -> None:
    """Let SIGTERM raise KeyboardInterrupt, as Ctrl-C does: then no completed work is lost at a job scheduler's time limit."""
    _received.clear()
    signal.signal(signal.SIGTERM, _terminate)


def ignore_stopping() -> None:
    """Ignore Ctrl-C from now on, and only record SIGTERM: another process stops this one, or it is ending anyway."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, frame: _received.append(number))


def ignore_until_exit() -> None:
    """Ignore Ctrl-C and SIGTERM until this process has ended: its work is done.

    Python takes its own handlers away before it unloads modules, which takes a second with PyTorch; a signal that is ignored stays so.
    """
    for number in _STOPPING:
        signal.signal(number, signal.SIG_IGN)


def stopped_status() -> int:
    """The exit status of a stopped process: 143 after SIGTERM, otherwise 130, that of Ctrl-C."""
    return 128 + (signal.SIGTERM if signal.SIGTERM in _received else signal.SIGINT)


def terminated() -> bool:
    return signal.SIGTERM in _received


def _terminate(number: int, frame: FrameType | None) -> None:
    _received.append(number)
    raise KeyboardInterrupt


@contextmanager
def interrupts_delayed() -> Iterator[None]:
    """Delay Ctrl-C and SIGTERM until the block ends; then handle them as before it.

    PyTorch's libraries crash if they are interrupted while they load. Only the main thread receives signals, so in any other thread this
    changes nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    pressed: list[int] = []
    handlers = {number: signal.signal(number, lambda number, frame: pressed.append(number)) for number in _STOPPING}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
    for each in dict.fromkeys(pressed):
        signal.raise_signal(each)


def spec_of(package: str) -> ModuleSpec | None:
    """How a package is found, without importing it; None if it is not installed, or was inserted by a program, without a spec."""
    try:
        return find_spec(package)
    except ValueError:  # in sys.modules, with __spec__ = None
        return None
