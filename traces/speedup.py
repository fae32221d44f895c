"""Speed-ups with 90 % intervals, and what they mean in a word."""

from typing import Literal

#: What an interval of a speed-up says.
Verdict = Literal["faster", "same", "slower", "cannot tell"]
#: Two step times that differ by at most this share are the same for all practical purposes.
SAME = 0.02


def verdict(interval: tuple[float, float] | None) -> Verdict:
    """Return what the 90 % interval of a speed-up says.

    "same" if all of it lies within SAME of 1, else "faster" or "slower" if all of it lies on one side of 1, else "cannot tell". No interval
    cannot tell either.
    """
    if interval is None:
        return "cannot tell"
    low, high = interval
    if low >= 1 - SAME and high <= 1 + SAME:
        return "same"
    if low > 1:
        return "faster"
    return "slower" if high < 1 else "cannot tell"
