"""Errors that a user's request can cause. A message is one line: what was given, what is expected, what to do."""


class StepcastError(Exception):
    """A request that cannot be carried out. The command line prints the message on one line and exits with `exit_status`."""

    exit_status = 2


class UnusableFileError(StepcastError):
    """A file that is missing, damaged, of another kind, or of a newer schema than this version reads."""


class UnknownNameError(StepcastError):
    """A model, strategy, option, device or machine that does not exist."""

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
