"""Numbers and names in the text of a rule."""

#: Beyond this a factor is a slip of the pen.
LARGEST_FACTOR = 1e6


class MalformedError(Exception):
    """The text of a rule cannot be read; the message says what is wrong with it."""


def nothing(rest: str) -> None:
    """For rules that are a name alone."""
    if rest:
        raise MalformedError(f"{rest[:40]!r} follows the name")


def factor(text: str, least: float = 0.0) -> float:
    """The number behind `*=`."""
    try:
        number = float(text)
    except ValueError:
        raise MalformedError(f"{text[:40]!r} is not a number") from None
    if not (least < number <= LARGEST_FACTOR or number == least == 0.0):
        raise MalformedError(f"the factor {text[:40]} is out of range")
    return number


def scaling(rest: str, least: float = 0.0) -> float:
    """The number of `*=NUMBER`."""
    if not rest.startswith("*="):
        raise MalformedError("it has no factor")
    return factor(rest[2:], least)


def pattern(rest: str) -> str:
    """The regular expression of `:REGEX`."""
    if not rest.startswith(":") or len(rest) < 2:
        raise MalformedError("it has no regular expression")
    return rest[1:]


def pattern_and(rest: str, sign: str) -> tuple[str, str]:
    """The regular expression and the number's text of `:REGEX<sign>NUMBER`."""
    regex, found, number = pattern(rest).rpartition(sign)
    if not found or not regex:
        raise MalformedError(f"it lacks a regular expression or {sign!r} with a number")
    return regex, number
