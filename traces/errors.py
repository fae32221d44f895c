"""Errors and refusals that a user's request can cause. A message is one line: what was given, what is expected, what to do."""

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

_T = TypeVar("_T")

#: Characters of a message at most.
LONGEST = 800


class Code(StrEnum):
    """The kinds of refusals."""

    #: An option or a value that cannot be used.
    REQUEST = "request"
    #: A name that does not exist.
    NAME = "name"
    #: A file that is missing or damaged.
    FILE = "file"
    #: A batch that does not divide as a strategy needs.
    BATCH = "batch"
    #: Too few devices, or devices of another kind.
    DEVICES = "devices"
    #: A model or a way of training that a strategy cannot schedule.
    MODEL = "model"
    #: More than fits into a memory.
    MEMORY = "memory"
    #: A plan that cannot run.
    PLAN = "plan"


class SchedcastError(Exception):
    """A request that cannot be carried out. The command line prints the message on one line and exits with `exit_status`.

    `code`: the kind of refusal. `details`: lines that the command line prints below the message.
    """

    exit_status = 2
    code = Code.REQUEST
    details = ""

    def __init__(self, message: str = "", code: Code | None = None):
        """`message` may quote names from a file; whatever they contain, the error's text is one printable line."""
        super().__init__(_one_line(message))
        if code is not None:
            self.code = code


@dataclass(frozen=True)
class Refusal:
    """Why there is no result: its kind, and one line of `words`.

    `excess_bytes`: by how much a job that is too large exceeds a memory, if that is known without a plan. `details`: as in SchedcastError.
    """

    code: Code
    words: str
    excess_bytes: int = 0
    details: str = ""

    @classmethod
    def by(cls, error: SchedcastError) -> "Refusal":
        """The refusal that an error says."""
        return cls(error.code, str(error), getattr(error, "excess_bytes", 0), error.details)

    @property
    def error(self) -> SchedcastError:
        """The error to raise if a result is required."""
        error = SchedcastError(self.words, self.code)
        error.details = self.details
        return error


def required(result: _T | Refusal) -> _T:
    """A result. Raises the error of a refusal in its place.

    >>> required(2.5)
    2.5
    >>> required(Refusal(Code.MEMORY, "needs 20 GiB, the GPU has 16 GiB; choose a smaller batch"))
    Traceback (most recent call last):
    traces.errors.SchedcastError: needs 20 GiB, the GPU has 16 GiB; choose a smaller batch
    """
    if isinstance(result, Refusal):
        raise result.error
    return result


def out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out: Python's, PyTorch's on a CPU or a GPU, or the operating system's."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    text = str(error).lower() if isinstance(error, RuntimeError | OSError) and not isinstance(error, SchedcastError) else ""
    return any(words in text for words in ("not enough memory", "can't allocate memory", "cannot allocate memory", "out of memory"))


def _one_line(message: str) -> str:
    """`message` with its line breaks as blanks, other control characters and lone surrogates escaped, without its middle if it is long."""
    if not message.isprintable():
        message = " ".join(message.split())
        message = "".join(c if c.isprintable() or c == "\N{NO-BREAK SPACE}" else c.encode("unicode_escape").decode() for c in message)
    return message if len(message) <= LONGEST else f"{message[: LONGEST - 303]}...{message[-300:]}"


class UnusableFileError(SchedcastError):
    """A file that is missing, damaged, of another kind, or of a newer schema than this version reads."""

    code = Code.FILE


class UnknownNameError(SchedcastError):
    """A model, strategy, option, device or machine that does not exist.

    >>> raise UnknownNameError("strategy", "turbo-dl", ["baseline", "turbodl"])
    Traceback (most recent call last):
    traces.errors.UnknownNameError: unknown strategy 'turbo-dl' (did you mean 'turbodl'?); expected one of: baseline, turbodl
    """

    code = Code.NAME

    def __init__(self, kind: str, name: str, accepted: "list[str] | tuple[str, ...]", do: str = ""):
        """`kind` is the noun in the message, `accepted` the names that exist, `do` a hint such as the command that lists them."""
        near = nearest(name, accepted)
        hint = f" (did you mean {near!r}?)" if near is not None else ""
        listed = ", ".join(accepted) if len(accepted) <= 20 else f"{len(accepted)} names"
        super().__init__(f"unknown {kind} {name!r}{hint}; expected one of: {listed or 'none'}" + (f"; {do}" if do else ""))


def nearest(name: str, accepted: "list[str] | tuple[str, ...]") -> str | None:
    """The accepted name that `name` most likely means: equal but for case, `-`, `_` and blanks, or else similar; None if none is."""
    import difflib

    plain = {_plain(other): other for other in reversed(accepted)}
    near = difflib.get_close_matches(_plain(name), plain, n=1)
    return plain.get(_plain(name)) or (plain[near[0]] if near else None)


def _plain(name: str) -> str:
    return "".join(character for character in name.casefold() if character not in "-_ ")
