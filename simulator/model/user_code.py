"""Errors in a user's model or factory, in one line: the innermost line of the user's own files, then what was raised there."""

import logging
import os
import signal
import sys
import sysconfig
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from traces.errors import SchedcastError
from traces.units import read_number

#: The most characters of an exception's message that are shown.
MOST_CHARACTERS = 300
_LIBRARIES = ("site-packages", "dist-packages")


@contextmanager
def training_step(batch: int, passed_on: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Turn an exception of the user's model or loss into a SchedcastError with the line it came from; `passed_on` ones stay as they are.

    A SchedcastError, such as the refusal of an op, gets the line too.
    """
    stay: tuple[type[BaseException], ...] = (KeyboardInterrupt, *passed_on)
    try:
        yield
    except stay:
        raise
    except SchedcastError as error:
        place = own_line(traceback.extract_tb(error.__traceback__))
        if not place or str(error).startswith(place):
            raise
        raise SchedcastError(f"{place}: {error}", error.code) from error
    except BaseException as error:
        raise SchedcastError(blamed(error, f"the training step fails for batch size {batch}")) from error


def blamed(error: BaseException, what: str) -> str:
    """Describe an exception: `my_model.py:17 in forward: KeyError: 'layer 7'; WHAT`.

    If no line of the user's code is in the traceback: `WHAT: KeyError: 'layer 7'`.
    """
    place = own_line(traceback.extract_tb(error.__traceback__))
    return f"{place}: {brief(error)}; {what}" if place else f"{what}: {brief(error)}"


def brief(error: BaseException) -> str:
    """Return the type and the first line of an exception."""
    try:
        lines = str(error).strip().splitlines()
    except Exception:  # the exception is the user's too, and so may fail to describe itself
        lines = []
    name = type(error).__name__
    return f"{name}: {lines[0][:MOST_CHARACTERS]}" if lines else name


def own_line(stack: Sequence[traceback.FrameSummary]) -> str:
    """Return `my_model.py:17 in forward`: the innermost line of a stack that is in the user's own files.

    Without one, that of a library other than PyTorch; empty if there is neither.
    """
    frames = [frame for frame in reversed(stack) if _is_foreign(frame.filename)]
    own = (frame for frame in frames if not any(part in _LIBRARIES for part in Path(frame.filename).parts))
    frame = next(own, frames[0] if frames else None)
    if frame is None:
        return ""
    path = Path(frame.filename)
    shown = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    return f"{shown}:{frame.lineno} in {frame.name}"


@cache
def _is_foreign(name: str) -> bool:
    """Whether a file is neither Schedcast's nor PyTorch's nor the standard library's."""
    path = Path(name)
    ours = Path(__file__).resolve().parents[2]
    skipped = [ours / package for package in ("traces", "simulator", "executors", "calibrate", "ui")]
    torch = sys.modules.get("torch")
    skipped += [Path(torch.__file__).parent] if torch is not None and torch.__file__ is not None else []
    if not path.is_file() or any(path.is_relative_to(folder) for folder in skipped):
        return False
    standard = path.is_relative_to(sysconfig.get_path("stdlib"))
    return not standard or any(part in _LIBRARIES for part in path.parts)


# Watches a user's factory and model while they run: reports progress, and ends code that hangs. Ctrl-C works throughout.


#: Name of the environment variable that sets the limit in seconds.
VARIABLE = "SCHEDCAST_FACTORY_SECONDS"
#: The default limit for code without progress, and the time after which a line says what is running. Both in seconds.
LIMIT_S, NOTICE_S = 50.0, 20.0
#: Code with progress may take this many limits, since an endless loop makes progress, too.
MOST_LIMITS = 40
#: Seconds between two looks at the code, and the time from which its progress is shown.
LOOK_S, SHOWN_S = 1.0, 2.0
#: Seconds after the limit in which the code may end by itself. Then the process ends: the code swallows every exception.
GRACE_S = 5.0
#: What is running and its progress, as messages of level INFO, about one in a second. An empty one says that it has ended.
progress_log = logging.getLogger("schedcast.progress")


class _OutOfTime(BaseException):  # not an Exception: a loop that retries on errors must not swallow it
    """The limit has passed."""


def limit_s() -> float:
    """Return the limit in seconds. Raises SchedcastError if the environment variable is not a number above 0."""
    text = os.environ.get(VARIABLE)
    if not text:
        return LIMIT_S
    seconds = read_number(text)
    if seconds is None or not 0 < seconds <= 1e6:
        raise SchedcastError(f"{VARIABLE} is {text!r}; expected a number of seconds above 0, and at most 1000000")
    return seconds


@contextmanager
def time_limit(what: str, limited: bool = True, done: Callable[[], int] = lambda: 0) -> Iterator[None]:
    """Raise SchedcastError, with the user's line that it is at, if the block hangs.

    It hangs if `done()`, a number of ops, stays the same for `limit_s`; MOST_LIMITS times as long is too long in any case. From SHOWN_S on,
    `progress_log` gets `what` with the number and the seconds; after NOTICE_S, a line says that `what` is still running.

    The block is not ended unless `limited`. Only the main thread can be interrupted, so in any other thread, and where there are no
    signals, it is not ended either.
    """
    can_end = limited and threading.current_thread() is threading.main_thread() and hasattr(signal, "SIGALRM")
    watch = _Watch(what, limit_s() if can_end else float("inf"), done)
    before = signal.signal(signal.SIGALRM, lambda *arguments: watch.on_alarm(before, *arguments)) if can_end else None
    watch.start()
    try:
        yield
    except _OutOfTime as error:
        raise SchedcastError(watch.message(traceback.extract_tb(error.__traceback__))) from error
    finally:
        watch.stop()
        if can_end:
            signal.signal(signal.SIGALRM, before)


class _Watch(threading.Thread):
    """Looks at the code of the main thread until it is stopped."""

    def __init__(self, what: str, limit: float, done: Callable[[], int]):
        super().__init__(daemon=True)
        self._what, self._limit, self._done = what, limit, done
        self._start_s = time.monotonic()
        self._stopped, self._out_of_time = threading.Event(), threading.Event()

    def stop(self) -> None:
        """Stop looking, and say that nothing is running any more."""
        self._stopped.set()
        if time.monotonic() - self._start_s >= SHOWN_S:
            progress_log.info("")

    def on_alarm(self, before, number: int, frame: object) -> None:
        """Interrupt the code if its time is over; other alarms are for their own handler."""
        if self._stopped.is_set():
            return
        if self._out_of_time.is_set():
            raise _OutOfTime
        if callable(before):
            before(number, frame)

    def run(self) -> None:
        count, since_s, noticed = self._done(), self._start_s, False
        while not self._stopped.wait(min(LOOK_S, NOTICE_S, self._limit / 4)):
            now_s = time.monotonic()
            if (counted := self._done()) != count:
                count, since_s = counted, now_s
            if now_s - since_s >= self._limit or now_s - self._start_s >= MOST_LIMITS * self._limit:
                self._end()
                return
            if now_s - self._start_s >= SHOWN_S:
                progress_log.info("%s: %s%.0f s", self._what, f"{count:,} ops, " if count else "", now_s - self._start_s)
            if not noticed and now_s - self._start_s >= NOTICE_S and self._limit < float("inf"):
                noticed = True
                text = "%s is still running; it ends after %g s without progress (%s), and Ctrl-C stops it"
                logging.getLogger("schedcast").warning(text, self._what, self._limit, VARIABLE)

    def _end(self) -> None:
        main = threading.main_thread().ident
        assert main is not None, "the main thread has started"
        self._out_of_time.set()
        signal.pthread_kill(main, signal.SIGALRM)
        if not self._stopped.wait(GRACE_S):
            stack = traceback.extract_stack(sys._current_frames().get(main))
            print(f"schedcast: {self.message(stack)}", file=sys.__stderr__, flush=True)
            os._exit(SchedcastError.exit_status)

    def message(self, stack: traceback.StackSummary) -> str:
        """What ended, in one line."""
        place = own_line(stack)
        text = f"{self._what} has made no progress for {self._limit:g} s; if it only needs more time, set {VARIABLE} to a larger number"
        return f"{place}: {text} of seconds" if place else f"{text} of seconds"
