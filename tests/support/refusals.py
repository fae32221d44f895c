"""What a refused request looks like: exit status 2, one line on standard error, nothing on standard output."""


def refused(done, *fragments: str) -> None:
    """Exit status 2, one line on standard error with the fragments, nothing on standard output."""
    assert "Traceback" not in done.err
    assert (done.status, done.out) == (2, ""), done.err
    assert len(done.err.splitlines()) == 1, done.err
    assert done.err.startswith("stepcast: ")
    for fragment in fragments:
        assert fragment in done.err
