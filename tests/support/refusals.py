"""What a refusal looks like: in the code an error of a kind; at the command line exit status 2, one line on standard error, no output."""

from contextlib import contextmanager
from dataclasses import replace

import pytest

from traces.errors import Code, SchedcastError


@contextmanager
def refuses(code: Code, words: str | None = None):
    """The block raises a refusal of that kind. `words`: a regular expression for what the refusal must say, if that is what counts."""
    with pytest.raises(SchedcastError, match=words) as refusal:
        yield refusal
    assert refusal.value.code is code, refusal.value
    assert str(refusal.value).isprintable()


def refused(done, *fragments: str) -> None:
    """Exit status 2, one line on standard error with the fragments, nothing on standard output."""
    assert done.out == ""
    assert len(done.err.splitlines()) == 1, done.err
    failed_after_answer(done, *fragments)


def refused_after_estimate(done, *fragments: str) -> None:
    """As `refused`, below the line that says how long a validation takes."""
    estimate, _, rest = done.err.partition("\n")
    assert " takes about " in estimate
    refused(replace(done, err=rest), *fragments)


def failed_after_answer(done, *fragments: str) -> None:
    """Exit status 2, and the fragments in the last line on standard error, whatever was printed before."""
    assert "Traceback" not in done.err
    assert done.status == 2, done.err
    last = done.err.splitlines()[-1]
    assert last.startswith("schedcast: ")
    for fragment in fragments:
        assert fragment in last
