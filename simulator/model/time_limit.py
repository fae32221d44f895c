"""Watches a user's factory and model while they run: says how far they are, and ends code that hangs. Ctrl-C works all the while."""

import logging
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from simulator.model.user_code import own_line
from traces.errors import SchedcastError

#: Name of the environment variable that sets the limit in seconds.
VARIABLE = "SCHEDCAST_FACTORY_SECONDS"
#: The default limit for code that does not get on, and the time after which a line says what is waited for. Both in seconds.
LIMIT_S, NOTICE_S = 50.0, 20.0
#: Code that gets on may take this many limits: it may do so for ever, in an endless loop.
MOST_LIMITS = 40
#: Seconds between two looks at the code, and the time from which its progress is shown.
LOOK_S, SHOWN_S = 1.0, 2.0
#: Seconds after the limit in which the code may end by itself. Then the process ends: the code swallows every exception.
GRACE_S = 5.0
#: What is running and how far it is, as messages of level INFO, about one in a second. An empty one says that it has ended.
progress_log = logging.getLogger("schedcast.progress")


class _OutOfTime(BaseException):  # not an Exception: a loop that retries on errors must not swallow it
    """The limit has passed."""


def limit_s() -> float:
    """Return the limit in seconds. Raises SchedcastError if the environment variable is not a number above 0."""
    text = os.environ.get(VARIABLE)
    if not text:
        return LIMIT_S
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= 1e6:
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
