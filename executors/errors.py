"""Errors that several executors raise. Does not need torch."""

import re

from traces.errors import StepcastError

#: A launcher that sees one process fail ends the others: so long one that is not the first to know leaves the word to another.
GRACE_S = 2.0


class PeerLostError(StepcastError):
    """Another process of the job ended, or does not answer: what it had to say it has said itself."""


def first_sentence(error: Exception) -> str:
    """The first sentence of what a library said, without the place in its source."""
    said = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return re.sub(r"^\[[^\]]*:\d+\] ", "", said).split(". ")[0]
