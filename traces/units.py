"""Formats quantities for people: times, memory, percentages, speed-ups. The whole project prints quantities with it, and reads
the numbers in users' texts with it.

Sizes of memory are binary (1 GiB = 2**30 bytes) and labeled so, because memory is sold in powers of two: a card with 16 GB on its box has
2**34 bytes, which `memory` prints as 16 GiB. Sizes that are compared with a capacity (peaks, needs, limits) are printed by the same
function. Rates of links and memories stay decimal (1 GB/s = 10**9 bytes per second), as their vendors state them.
"""

import math
import re
from collections.abc import Sequence

#: Printed for a quantity that does not exist.
NONE = "-"

#: Binary units of memory by bytes, largest first.
_MEMORY_UNITS = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "B"))


def digits(value: float) -> str:
    """About three significant digits: 1234, 412.3, 41.2, 4.12, 0.412, 0.0412. Zero has no sign."""
    size = abs(value)
    if size >= 1000:
        return f"{value:.0f}"
    if size >= 10:
        return f"{value:.1f}"
    if size >= 1:
        return f"{value:.2f}"
    return f"{value:.3f}" if size >= 0.09995 else f"{value or 0.0:.3g}"


def ms(seconds: float | None) -> str:
    """Milliseconds without the unit, for a column whose head names it."""
    return NONE if seconds is None else digits(seconds * 1e3)


#: Units of time: the seconds of each, its name, and the seconds from which it is used; milliseconds below.
_TIME_UNITS = ((86400.0, "days", 48 * 3600.0), (3600.0, "hours", 100 * 60.0), (60.0, "minutes", 600.0), (1.0, "s", 10.0))


def duration(seconds: float | None, bounds: tuple[float, float] | None = None) -> str:
    """A time in milliseconds, or in a longer unit from ten seconds on; with the bounds of its interval, if it has one, in the same unit.

    >>> duration(0.0412), duration(25565.77), duration(None)
    ('41.2 ms', '7.10 hours', '-')
    >>> duration(126.7, (93.4, 174.9))
    '126.7 s (93.4 to 174.9)'
    """
    if seconds is None:
        return NONE
    size, name = _time_unit(seconds)
    return f"{digits(seconds / size)} {name}" + (f" ({digits(bounds[0] / size)} to {digits(bounds[1] / size)})" if bounds else "")


def rate(per_second: float) -> str:
    """How many a second, with commas: 47,550; 412.3."""
    return f"{per_second:,.0f}" if per_second >= 1000 else digits(per_second)


#: Words for large numbers, the largest first, with the letters that users write for them.
_LARGE = ((1e12, "trillion", "T"), (1e9, "billion", "B"), (1e6, "million", "M"))


def amount(count: float) -> str:
    """A large number in words.

    >>> amount(15e12), amount(1e9), amount(131_072)
    ('15 trillion', '1 billion', '131,072')
    """
    size, word = next(((size, word) for size, word, _ in _LARGE if count >= size), (1.0, ""))
    return f"{count / size:g} {word}" if word else f"{count:,.0f}"


def read_amount(text: str) -> float | None:
    """The positive number that a user's text says, also with a letter behind it; None for anything else.

    >>> read_amount("15T"), read_amount("300b"), read_amount("1e9"), read_amount("many")
    (15000000000000.0, 300000000000.0, 1000000000.0, None)
    """
    plain = text.strip().replace(",", "").replace("_", "")
    size = next((size for size, _, letter in _LARGE if plain[-1:].upper() == letter), 1.0)
    number = read_number(plain[:-1] if size > 1 else plain)
    return None if number is None or not 0 < number * size < math.inf else number * size


def between(bounds: tuple[float, float]) -> str:
    """An interval of times with the unit of its end.

    >>> between((9.903, 26.721))
    '9.90 to 26.7 s'
    """
    size, name = _time_unit(bounds[1])
    return f"{digits(bounds[0] / size)} to {digits(bounds[1] / size)} {name}"


def _time_unit(seconds: float) -> tuple[float, str]:
    return next(((size, name) for size, name, least_s in _TIME_UNITS if abs(seconds) >= least_s), (1e-3, "ms"))


def rough_time(seconds: float) -> str:
    """A time to wait: 10 seconds (the least), 40 seconds, 3 minutes, 2 hours."""
    if seconds < 95:
        return f"{max(10, round(seconds, -1)):.0f} seconds"
    minutes = round(seconds / 60)
    return f"{minutes} minutes" if minutes < 100 else f"{round(minutes / 60)} hours"


def adding_up(before_s: float, changes_s: Sequence[float], after_s: float) -> tuple[str, list[str], str]:
    """Two times and the changes from the first to the second, in ms without the unit, rounded so that they add up.

    53.7, [-12.1, +3.0], 44.6: all have as many decimals as `digits` gives the shorter time. The changes that are rounded most make up
    for what is missing.

    >>> adding_up(0.0537, [-0.01213, 0.00302], 0.0446)
    ('53.7', ['-12.1', '+3.0'], '44.6')
    """
    decimals = len(ms(min(before_s, after_s)).partition(".")[2])
    tick_s = 1e-3 / 10**decimals
    before, after = round(before_s / tick_s), round(after_s / tick_s)
    exact = [change / tick_s for change in changes_s]
    ticks = [math.floor(change) for change in exact]
    missing = after - before - sum(ticks)
    up = 1 if missing > 0 else -1
    most_rounded = sorted(range(len(ticks)), key=lambda place: up * (ticks[place] - exact[place]))
    each, more = divmod(abs(missing), len(ticks)) if ticks else (0, 0)
    for rank, place in enumerate(most_rounded):
        ticks[place] += up * (each + (rank < more))
    changes = [f"{count / 10**decimals:+.{decimals}f}" if count else "0" for count in ticks]
    return f"{before / 10**decimals:.{decimals}f}", changes, f"{after / 10**decimals:.{decimals}f}"


def interval(bounds: tuple[float, float] | None) -> str:
    """An interval of seconds, in ms without the unit: 39.0 to 41.5."""
    return NONE if bounds is None else f"{ms(bounds[0])} to {ms(bounds[1])}"


def percent(share: float | None, signed: bool = True) -> str:
    """A share as a percentage: -1.9 %. A share that rounds to zero has no sign: 0.0 %."""
    if share is None:
        return NONE
    rounded = round(share * 100, 1)
    return f"{rounded:+.1f} %" if signed and rounded else f"{rounded or 0.0:.1f} %"


def error(predicted: float | None, measured: float | None) -> str:
    """The error of a prediction, predicted / measured − 1, as a percentage: -1.9 %."""
    return NONE if predicted is None or not measured else percent(predicted / measured - 1)


def speedup(factor: float | None, bounds: tuple[float, float] | None = None) -> str:
    """A speed-up, with its 90 % interval if it is known: 1.34x, or 1.34x (1.30 to 1.38)."""
    if factor is None:
        return NONE
    return f"{factor:.2f}x" if bounds is None else f"{factor:.2f}x ({factors(bounds)})"


def factors(bounds: tuple[float, float] | None) -> str:
    """An interval of speed-ups: 1.30 to 1.38."""
    return NONE if bounds is None else f"{bounds[0]:.2f} to {bounds[1]:.2f}"


def memory(count: float | None) -> str:
    """Bytes of memory in binary units: 16 GiB, 1.25 GiB, 673.3 MiB, 512 B. Whole numbers of a unit have no decimals."""
    if count is None:
        return NONE
    size, name = memory_unit(count)
    return f"{memory_digits(count, size)} {name}"


def capacity(count: int) -> str:
    """The size of a memory or a limit. A size in round gigabytes (10**9 bytes) is also printed in GB: 7.45 GiB (8 GB).

    >>> capacity(16 * 2**30), capacity(8 * 10**9)
    ('16 GiB', '7.45 GiB (8 GB)')
    """
    decimal = f"{count / 1e9:g}"
    is_round = len(decimal.replace(".", "").strip("0")) <= 3 and float(decimal) * 1e9 == count
    return f"{memory(count)} ({decimal} GB)" if is_round else memory(count)


def memory_digits(count: float, size: int) -> str:
    """Bytes of memory as a multiple of `size`, without the unit: for a column whose head names it."""
    value = count / size
    return f"{value:.0f}" if value == round(value) else digits(value)


def memory_unit(highest_bytes: float) -> tuple[int, str]:
    """The unit for sizes of memory up to `highest_bytes`: its bytes and its name."""
    return next((unit for unit in _MEMORY_UNITS if highest_bytes >= unit[0]), _MEMORY_UNITS[-1])


def difference(value: float | None) -> str:
    """A relative difference of numbers: "identical" (bit for bit) for 0, else its power of ten such as 2e-07."""
    if value is None:
        return NONE
    return "identical" if value == 0 else f"{value:.0e}"


def counted(count: int, noun: str) -> str:
    """1 plan, 2 plans, 2 batches."""
    return f"{count} {noun if count == 1 else f'{noun}es' if noun.endswith('h') else f'{noun}s'}"


def threads(count: int, waiting: str = "") -> str:
    """2 threads; with what the environment said of how they wait ("active", "passive"): 2 threads, OMP_WAIT_POLICY=ACTIVE."""
    return counted(count, "thread") + (f", OMP_WAIT_POLICY={waiting.upper()}" if waiting else "")


def read_integer(text: str, least: float = -math.inf, most: float = math.inf) -> int | None:
    """The integer from `least` to `most` that a user's text says; None for anything else, whatever its length."""
    try:
        number = int(text)
    except ValueError:  # also for more digits than Python converts
        return None
    return number if least <= number <= most else None


def read_number(text: str) -> float | None:
    """The finite number that a user's text says; None for anything else.

    >>> read_number("1e3"), read_number("nan"), read_number("3 ms")
    (1000.0, None, None)
    """
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


_RATE = re.compile(r"(.+?) ?(?:([GM])b(?:it)?(?:/s|ps)|([GM])B/s)")


def read_rate(text: str) -> float | None:
    """Bytes per second of a rate in bits or bytes; None if the text is none.

    >>> read_rate("50Gb/s"), read_rate("6.25 GB/s"), read_rate("400Gbps"), read_rate("fast")
    (6250000000.0, 6250000000.0, 50000000000.0, None)
    """
    parts = _RATE.fullmatch(text)
    value = read_number(parts[1]) if parts is not None else None
    if parts is None or value is None or not 0 < value < math.inf:
        return None
    return value * {"G": 1e9, "M": 1e6}[parts[2] or parts[3]] / (8 if parts[2] else 1)
