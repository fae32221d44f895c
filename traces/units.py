"""Formats quantities for people: times in ms, memory in GiB, percentages, speed-ups. The whole project prints quantities with it.

Sizes of memory are binary (1 GiB = 2**30 bytes) and labelled so, because memory is sold in powers of two: a card with 16 GB on its box has
2**34 bytes, which `memory` prints as 16 GiB. Whatever is compared with a capacity (peaks, needs, limits) is printed by the same function.
Rates of links and memories stay decimal (1 GB/s = 10**9 bytes per second), as their vendors state them.
"""

#: Printed for a quantity that does not exist.
NONE = "-"

#: Binary units of memory by bytes, largest first.
_MEMORY_UNITS = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "B"))


def digits(value: float) -> str:
    """About three significant digits: 1234, 412.3, 41.2, 4.12, 0.412, 0.0412."""
    size = abs(value)
    if size >= 1000:
        return f"{value:.0f}"
    if size >= 10:
        return f"{value:.1f}"
    if size >= 1:
        return f"{value:.2f}"
    return f"{value:.3f}" if size >= 0.1 else f"{value:.3g}"


def ms(seconds: float | None) -> str:
    """Milliseconds without the unit, for a column whose head names it."""
    return NONE if seconds is None else digits(seconds * 1e3)


def duration(seconds: float | None) -> str:
    """Milliseconds with the unit: 41.2 ms."""
    return NONE if seconds is None else f"{ms(seconds)} ms"


def rough_time(seconds: float) -> str:
    """A time to wait: 10 seconds (the least), 40 seconds, 3 minutes, 2 hours."""
    if seconds < 95:
        return f"{max(10, round(seconds, -1)):.0f} seconds"
    minutes = round(seconds / 60)
    return f"{minutes} minutes" if minutes < 100 else f"{round(minutes / 60)} hours"


def interval(bounds: tuple[float, float] | None) -> str:
    """An interval of seconds, in ms without the unit: 39.0 to 41.5."""
    return NONE if bounds is None else f"{ms(bounds[0])} to {ms(bounds[1])}"


def percent(share: float | None, signed: bool = True) -> str:
    """A share as a percentage: -1.9 %."""
    if share is None:
        return NONE
    return f"{share * 100:+.1f} %" if signed else f"{share * 100:.1f} %"


def speedup(factor: float | None) -> str:
    """A speed-up: 1.34x."""
    return NONE if factor is None else f"{factor:.2f}x"


def memory(count: float | None) -> str:
    """Bytes of memory in binary units: 16 GiB, 1.25 GiB, 673.3 MiB, 512 B. Whole numbers of a unit have no decimals."""
    if count is None:
        return NONE
    size, name = memory_unit(count)
    return f"{memory_digits(count, size)} {name}"


def memory_digits(count: float, size: int) -> str:
    """Bytes of memory as a multiple of `size`, without the unit: for a column whose head names it."""
    value = count / size
    return f"{value:.0f}" if value == round(value) else digits(value)


def memory_unit(highest_bytes: float) -> tuple[int, str]:
    """The unit for sizes of memory up to `highest_bytes`: its bytes and its name."""
    return next((unit for unit in _MEMORY_UNITS if highest_bytes >= unit[0]), _MEMORY_UNITS[-1])


def difference(value: float | None) -> str:
    """A relative difference of numbers: "exact" for 0, else its power of ten such as 2e-07."""
    if value is None:
        return NONE
    return "exact" if value == 0 else f"{value:.0e}"
