"""Errors that several executors raise. Does not import torch."""

import re

from traces.errors import SchedcastError

#: Seconds that a process waits before it reports a failure that started in another process. The launcher ends all processes when one
#: fails, so within this time the process that failed first can print the actual error.
GRACE_S = 2.0


class PeerLostError(SchedcastError):
    """Another process of the job ended or does not answer. That process reports the cause itself."""


def first_sentence(error: Exception) -> str:
    """The first sentence of a library's error message, without the source location that precedes it."""
    line = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return re.sub(r"^\[[^\]]*:\d+\] ", "", line).split(". ")[0]
