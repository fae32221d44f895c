"""Paths of files that tests use."""

import os
import tempfile
from functools import cache
from pathlib import Path

SUPPORT = Path(__file__).resolve().parent
ROOT = SUPPORT.parents[1]
#: A file per model that a stranger could bring; each has a factory `make`.
USER_MODELS = sorted((SUPPORT / "user_models").glob("[a-z]*.py"))


def session_file(name: str) -> Path:
    """The place of a file that the processes of one test session share, so that they make it once."""
    return _session_folder() / name


@cache
def _session_folder() -> Path:
    session = os.environ.get("PYTEST_XDIST_TESTRUNUID")  # of all workers of pytest-xdist
    if session is None:
        return Path(tempfile.mkdtemp(prefix="schedcast-tests-"))
    folder = Path(tempfile.gettempdir()) / f"schedcast-tests-{session}"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder
