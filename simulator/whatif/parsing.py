"""Parse the numbers and names in the text of a rule. `rest` is the text after the rule's name."""

#: A larger factor is taken for a typing error.
LARGEST_FACTOR = 1e6


class MalformedError(Exception):
    """The text of a rule cannot be parsed; the message says why."""


def nothing(rest: str) -> None:
    """Raise MalformedError if anything follows the name, for rules without an argument."""
    if rest:
        raise MalformedError(f"{rest[:40]!r} follows the name")


def factor(text: str, least: float = 0.0) -> float:
    """Return the number in `text`, which must be larger than `least`; 0 is allowed if `least` is 0."""
    try:
        number = float(text)
    except ValueError:
        raise MalformedError(f"{text[:40]!r} is not a number") from None
    if not (least < number <= LARGEST_FACTOR or number == least == 0.0):
        raise MalformedError(f"the factor {text[:40]} is out of range")
    return number


def scaling(rest: str, least: float = 0.0) -> float:
    """Return the number of `*=NUMBER`; see `factor`."""
    if not rest.startswith("*="):
        raise MalformedError("it has no factor")
    return factor(rest[2:], least)


def pattern(rest: str) -> str:
    """Return the regular expression of `:REGEX`."""
    if not rest.startswith(":") or len(rest) < 2:
        raise MalformedError("it has no regular expression")
    return rest[1:]


def pattern_and(rest: str, sign: str) -> tuple[str, str]:
    """Return the regular expression and the text of the number in `:REGEX<sign>NUMBER`."""
    regex, separator, number = pattern(rest).rpartition(sign)
    if not separator or not regex:
        raise MalformedError(f"it lacks a regular expression or {sign!r} with a number")
    return regex, number
