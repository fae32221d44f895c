"""Ends a process together with the one that started it, however that one ends. On Linux only."""

import ctypes
import os
import signal
from contextlib import suppress

#: Linux's request to be sent a signal when the parent ends.
_PR_SET_PDEATHSIG = 1


def end_with(parent: int) -> None:
    """Kill this process when `parent`, the process that started it, has ended; at once if it has ended already."""
    with suppress(OSError, AttributeError):  # not Linux
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
