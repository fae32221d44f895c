"""Parse the numbers and names in the text of a rule. `rest` is the text after the rule's name.

A speed is written so that larger is faster: `2x faster`, `1.5x slower`, or `free` for something that takes no time. The older form with a
factor for the duration, `*=0.5`, still reads.
"""

#: A larger factor is taken for a typing error.
LARGEST_FACTOR = 1e6
#: What a speed looks like, for messages.
SPEED = "2x faster, 1.5x slower or free"


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


def is_speed(text: str) -> bool:
    """Whether the text ends as a speed does."""
    return text.rstrip().lower().endswith(("faster", "slower", "free"))


def speed(text: str) -> float:
    """Return what a speed multiplies durations by: 0.5 for `2x faster`, 1.5 for `1.5x slower`, 0 for `free`."""
    words = text.lower().split()
    if words == ["free"]:
        return 0.0
    if len(words) != 2 or words[1] not in ("faster", "slower"):
        raise MalformedError(f"{text.strip()[:40]!r} is not a speed such as {SPEED}" if words else f"it has no speed such as {SPEED}")
    number = factor(words[0].rstrip("x×"), least=1e-6)
    if number < 1:
        opposite = "slower" if words[1] == "faster" else "faster"
        raise MalformedError(f"the factor {words[0][:40]} is below 1; write {1 / number:g}x {opposite} if that is meant")
    return 1 / number if words[1] == "faster" else number


def speed_words(scale: float) -> str:
    """Return the speed of something whose duration is multiplied by `scale`, as `speed` reads it."""
    if not scale:
        return "free"
    return f"{1 / scale:.4g}x faster" if scale <= 1 else f"{scale:.4g}x slower"


def pattern(rest: str) -> str:
    """Return the regular expression of `:/REGEX/`; the slashes may be missing."""
    regex = rest[1:].strip() if rest.startswith(":") else ""
    if len(regex) > 1 and regex[0] == regex[-1] == "/":
        regex = regex[1:-1]
    if not regex or regex == "/":
        raise MalformedError("it has no regular expression")
    return regex


def pattern_and(rest: str, sign: str) -> tuple[str, str]:
    """Return the regular expression and the text of the number in `:/REGEX/<sign>NUMBER`."""
    regex, separator, number = rest.rpartition(sign)
    if not separator or not regex.removeprefix(":"):
        raise MalformedError(f"it lacks a regular expression or {sign!r} with a number")
    return pattern(regex), number


def pattern_and_speed(rest: str) -> tuple[str, float]:
    """Return the regular expression and the scale of durations in `:/REGEX/ SPEED`. The slashes may be missing if the regular expression
    does not begin with one."""
    if rest.startswith(":/"):
        regex, slash, text = rest[2:].rpartition("/")
        if not slash:
            raise MalformedError("its regular expression has no slash at the end")
        return pattern(f":/{regex}/"), speed(text)
    if not is_speed(rest):
        raise MalformedError(f"it has no speed such as {SPEED}")
    words = 1 if rest.lower().rstrip().endswith("free") else 2
    regex, *text = rest.rsplit(None, words)
    return pattern(regex if len(text) == words else ""), speed(" ".join(text))
