"""Quantities as people read them: ms and GB with sensible digits, signed errors, lanes and options in words."""

from collections.abc import Mapping, Sequence

from traces import sizes
from traces.comparison import ValidationResult

NONE = "-"


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
    """Milliseconds without the unit, for a column that has it in its head."""
    return NONE if seconds is None else digits(seconds * 1e3)


def with_unit(seconds: float | None) -> str:
    """Milliseconds with the unit."""
    return NONE if seconds is None else f"{ms(seconds)} ms"


def interval(bounds: tuple[float, float] | None) -> str:
    """An interval in ms without the unit."""
    return NONE if bounds is None else f"{ms(bounds[0])} to {ms(bounds[1])}"


def percent(share: float | None, signed: bool = True) -> str:
    """A share as a percentage: -1.9 %."""
    if share is None:
        return NONE
    return f"{share * 100:+.1f} %" if signed else f"{share * 100:.1f} %"


def speedup(factor: float | None) -> str:
    """A speed-up: 1.34x."""
    return NONE if factor is None else f"{factor:.2f}x"


def gigabytes(count: int | None) -> str:
    """Bytes as GB (or MB below 0.1 GB)."""
    if count is None:
        return NONE
    return sizes.gigabytes(count)


def error_of(value: float | None) -> str:
    """A numeric difference: "exact" for 0, else in powers of ten."""
    if value is None:
        return NONE
    return "exact" if value == 0 else f"{value:.0e}"


def lane_label(device: str, lane: str) -> str:
    """How a lane is called in pictures; a bare number is a stream."""
    return f"{device} {'stream ' if lane.isdigit() else ''}{lane}".strip()


def headline(predicted_s: float, measured_s: float | None) -> str:
    """Both step times and the error: predicted 41.2 ms, measured 42.0 ms: -1.9 %."""
    if measured_s is None:
        return f"predicted {with_unit(predicted_s)}"
    return f"predicted {with_unit(predicted_s)}, measured {with_unit(measured_s)}: {percent(predicted_s / measured_s - 1)}"


def options_text(options: Mapping[str, object]) -> str:
    """Options as the command line takes them: async=off,alpha=2."""
    return ",".join(f"{name}={option_value(value)}" for name, value in options.items())


def row_labels(results: Sequence[ValidationResult]) -> list[str]:
    """Each row's strategy, with the options in which it differs from other rows of the same strategy."""
    labels = []
    for result in results:
        others = [other for other in results if other.strategy == result.strategy and other is not result]
        differing = {name: value for name, value in result.options.items() if any(other.options.get(name) != value for other in others)}
        labels.append(f"{result.strategy}:{options_text(differing)}" if differing else result.strategy)
    return labels


def plain(text: str) -> str:
    """Text with Markdown's special characters made plain."""
    return "".join(f"\\{letter}" if letter in r"\`*_{}[]<>#$~|:" else letter for letter in text)


def option_value(value: object) -> str:
    """An option's value as it is given."""
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)
