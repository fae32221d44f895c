"""Errors in a user's model or factory, in one line: the innermost line of the user's own files, then what was raised there."""

import sys
import sysconfig
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from traces.errors import SchedcastError

#: The most characters of an exception's message that are shown.
MOST_CHARACTERS = 300
_LIBRARIES = ("site-packages", "dist-packages")


@contextmanager
def training_step(batch: int, passed_on: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Turn an exception of the user's model or loss into a SchedcastError with the line it came from; `passed_on` ones stay as they are.

    A SchedcastError, such as the refusal of an op, gets the line too.
    """
    try:
        yield
    except (KeyboardInterrupt, *passed_on):
        raise
    except SchedcastError as error:
        place = own_line(traceback.extract_tb(error.__traceback__))
        if not place or str(error).startswith(place):
            raise
        raise SchedcastError(f"{place}: {error}") from error
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
    skipped += [Path(module.__file__).parent for module in (sys.modules.get("torch"),) if module is not None]
    if not path.is_file() or any(path.is_relative_to(folder) for folder in skipped):
        return False
    standard = path.is_relative_to(sysconfig.get_path("stdlib"))
    return not standard or any(part in _LIBRARIES for part in path.parts)
