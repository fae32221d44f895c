"""A time limit for a user's factory and model, so that one that never returns ends with a message. Ctrl-C works all the while."""

import logging
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from simulator.models.user_code import own_line
from traces.errors import StepcastError

#: Name of the environment variable that sets the limit in seconds.
VARIABLE = "STEPCAST_FACTORY_SECONDS"
#: The default limit, and the time after which a line says what is waited for. Both in seconds.
LIMIT_S, NOTICE_S = 50.0, 20.0
#: Seconds after the limit in which the code may end by itself. Then the process ends: the code swallows every exception.
GRACE_S = 5.0


class _OutOfTime(BaseException):  # not an Exception: a loop that retries on errors must not swallow it
    """The limit has passed."""


def limit_s() -> float:
    """Return the limit in seconds. Raises StepcastError if the environment variable is not a number above 0."""
    text = os.environ.get(VARIABLE)
    if not text:
        return LIMIT_S
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= 1e6:
        raise StepcastError(f"{VARIABLE} is {text!r}; expected a number of seconds above 0, and at most 1000000")
    return seconds


@contextmanager
def time_limit(what: str, limited: bool = True) -> Iterator[None]:
    """Raise StepcastError if the block runs longer than `limit_s`, with the user's line that it is at.

    After NOTICE_S, a line says that `what` is still running.

    Does nothing unless `limited`. Only the main thread can be interrupted, so in any other thread, and where there are no timers, it does
    nothing either.
    """
    if not limited or threading.current_thread() is not threading.main_thread() or not hasattr(signal, "SIGALRM"):
        yield
        return
    limit = limit_s()
    message = f"{what} has not finished after {limit:g} s; if it only needs more time, set {VARIABLE} to a larger number of seconds"
    start_s = time.monotonic()
    running = True

    def told(stack: traceback.StackSummary) -> str:
        place = own_line(stack)
        return f"{place}: {message}" if place else message

    def on_alarm(number: int, frame: object) -> None:
        if not running:
            return
        left_s = start_s + limit - time.monotonic()
        if left_s <= 0:
            raise _OutOfTime
        logging.getLogger("stepcast").warning("%s is still running; it may take %g s (%s), and Ctrl-C stops it", what, limit, VARIABLE)
        signal.setitimer(signal.ITIMER_REAL, left_s)

    def end() -> None:
        stack = traceback.extract_stack(sys._current_frames().get(threading.main_thread().ident))
        print(f"stepcast: {told(stack)}", file=sys.__stderr__, flush=True)
        os._exit(StepcastError.exit_status)

    watchdog = threading.Timer(limit + GRACE_S, end)
    watchdog.daemon = True
    others_s, interval_s = signal.getitimer(signal.ITIMER_REAL)
    handler = signal.signal(signal.SIGALRM, on_alarm)
    try:
        signal.setitimer(signal.ITIMER_REAL, min(NOTICE_S, limit))
        watchdog.start()
        yield
    except _OutOfTime as error:
        raise StepcastError(told(traceback.extract_tb(error.__traceback__))) from error
    finally:
        running = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        if others_s:  # somebody else's alarm was set: it comes when it was due, or now if that has passed
            signal.setitimer(signal.ITIMER_REAL, max(others_s - (time.monotonic() - start_s), 1e-6), interval_s)
        watchdog.cancel()
