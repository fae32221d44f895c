"""Labels of lanes, options, strategies and timelines, the same in tables, pictures and pages."""

from collections.abc import Mapping, Sequence

from traces import units
from traces.comparison import Validation, ValidationResult


def lane_label(device: str, lane: str) -> str:
    """The label of a lane; a lane whose name is a bare number is a stream."""
    return f"{device} {'stream ' if lane.isdigit() else ''}{lane}".strip()


def headline(predicted_s: float, measured_s: float | None) -> str:
    """Both step times and the error: predicted 41.2 ms, measured 42.0 ms: -1.9 %."""
    if measured_s is None:
        return f"predicted {units.duration(predicted_s)}"
    return f"predicted {units.duration(predicted_s)}, measured {units.duration(measured_s)}: {units.percent(predicted_s / measured_s - 1)}"


def options_text(options: Mapping[str, object]) -> str:
    """Options as the command line takes them: async=off,alpha=2."""
    return ",".join(f"{name}={option_value(value)}" for name, value in options.items())


def option_value(value: object) -> str:
    """An option's value as the command line takes it: on and off for booleans."""
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)


def row_labels(results: Sequence[ValidationResult]) -> list[str]:
    """One label per row: the strategy, with the options in which the row differs from other rows of the same strategy."""
    labels = []
    for result in results:
        others = [other for other in results if other.strategy == result.strategy and other is not result]
        differing = {name: value for name, value in result.options.items() if any(other.options.get(name) != value for other in others)}
        labels.append(f"{result.strategy}:{options_text(differing)}" if differing else result.strategy)
    return labels


def markdown_escaped(text: str) -> str:
    """Text whose special characters Markdown shows as they are."""
    return "".join(f"\\{letter}" if letter in r"\`*_{}[]<>#$~|:" else letter for letter in text)


def plain_label(validation: Validation) -> str:
    """The label of plain PyTorch, the user's own loop, with the number of its threads on a CPU: plain PyTorch (2 threads)."""
    threads = plain_threads(validation)
    return f"plain PyTorch ({threads})" if threads else "plain PyTorch"


def plain_threads(validation: Validation) -> str:
    """How many threads plain PyTorch uses: all cores of a CPU. An empty string for a GPU, or if the document does not say."""
    cores = validation.device.get("cores") if validation.device.get("kind") == "cpu" else None
    return f"{cores} thread{'' if cores == 1 else 's'}" if cores else ""
