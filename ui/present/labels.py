"""What things are called and how they look, the same in every document: labels of lanes, options, strategies and timelines, cautions, and
the colors and titles of charts.

Each color has one meaning; color-blind readers can tell them apart, on light and on dark backgrounds. Backgrounds are transparent and text
has no fixed color, so that a chart suits light and dark pages.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from itertools import groupby
from operator import itemgetter
from pathlib import PurePath
from textwrap import wrap
from types import MappingProxyType
from typing import TYPE_CHECKING

from traces import units
from traces.documents.comparison import (
    OTHER_LOOPS,
    PYTORCH,
    PYTORCH_DDP,
    PYTORCH_FSDP,
    PYTORCH_GRAPH,
    Shares,
    Validation,
    ValidationResult,
)
from traces.documents.verdict import BUSY, Gain, is_busy, is_judged

if TYPE_CHECKING:
    import plotly.graph_objects as go

#: The label of the row of plain PyTorch.
PLAIN = "plain PyTorch"
#: Labels of the strategies whose names do not explain them. The baseline is not the user's loop: that is plain PyTorch.
_NAMES = {
    PYTORCH: PLAIN,
    PYTORCH_GRAPH: f"{PLAIN}, one CUDA graph",
    PYTORCH_DDP: "PyTorch's DDP",
    PYTORCH_FSDP: "PyTorch's FSDP2",
    "baseline": "baseline (one stream, our executor)",
}
#: The most bytes of tensors on a device at a time, as columns, axes and headings call them; what PyTorch reserves for them is more.
PEAK = "peak allocated"
#: What a schedule is, for pages that name one.
SCHEDULE = (
    "A schedule says in which order the tasks of a step run, and on which stream or device; a strategy, such as backward-fusion, makes one."
)
#: Entries of a plan's semantics that say how it computes what plain training computes.
HOW_COMPUTED = frozenset({
    "scan_level", "not_scanned", "divided", "batch_norm_parts", "checkpoint", "shards", "folded", "experts", "shown", "taken",
})  # fmt: skip
#: An invisible character that ends words for Markdown. It keeps addresses and :names: of symbols apart, which a backslash does not.
_JOINER = "\u2060"
_SIGNS = re.compile(r"[\\`*_{}\[\]<>#$~|:&]")
_JOINED = re.compile(r":(?=\S)|www(?=\.)|@(?=\w)", re.IGNORECASE)
#: What starts a list, a rule or a heading at the start of a line.
_LIST = re.compile(r"^(\d*)([-+=.)])")


def model_name(model: str) -> str:
    """A model as titles name it: that of a file without the folders, my_model.py:make."""
    source, colon, factory = model.rpartition(":")
    return f"{PurePath(source).name}{colon}{factory}" if source.endswith(".py") else model


def strategy_name(strategy: str) -> str:
    """The label of a strategy."""
    return _NAMES.get(strategy, strategy)


def lane_label(device: str, lane: str) -> str:
    """The label of a lane; a lane whose name is a bare number is a stream."""
    return f"{device} {'stream ' if lane.isdigit() else ''}{lane}".strip()


def headline(predicted_s: float, measured_s: float | None) -> str:
    """Both step times and the error: predicted 41.2 ms, measured 42.0 ms: -1.9 %."""
    if measured_s is None:
        return f"predicted {units.duration(predicted_s)}"
    return f"predicted {units.duration(predicted_s)}, measured {units.duration(measured_s)}: {units.error(predicted_s, measured_s)}"


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


def labelled_rows(validation: Validation) -> list[tuple[str, ValidationResult]]:
    """The rows of a validation, plain PyTorch first if it was predicted, and its other loops, each with its label."""
    rows = [(strategy_name(row.strategy), row) for row in validation.parallel]
    rows += zip(row_labels(validation.results), validation.results, strict=True)
    return rows if validation.pytorch is None else [(plain_label(validation), validation.pytorch), *rows]


def markdown_escaped(text: str) -> str:
    """Text that Markdown shows as it is, in one line. No part of it becomes an image, a link, a formula, a symbol or a list."""
    text = _SIGNS.sub(r"\\\g<0>", " ".join(text.split()))
    text = _JOINED.sub(rf"\g<0>{_JOINER}", text)
    return _LIST.sub(r"\1\\\2", text)


def plain_label(validation: Validation) -> str:
    """The label of plain PyTorch, the user's own loop, with the number of its threads on a CPU: plain PyTorch (2 threads)."""
    threads = plain_threads(validation)
    return f"{PLAIN} ({threads})" if threads else PLAIN


def plain_threads(validation: Validation) -> str:
    """How many threads plain PyTorch used, and how they waited if the user said so. An empty string for a GPU.

    Documents that do not say it were measured with all cores of a CPU.
    """
    threads = validation.reference_threads
    if threads is None and validation.device.get("kind") == "cpu":
        threads = validation.device.get("cores")
    return units.threads(threads, validation.reference_waiting or "") if threads else ""


def source_words(shares: Shares, here: bool = True) -> str:
    """Where predicted task time comes from: 94.0 % measured here, 6.0 % estimated from other ops.

    `here`: whether measurements are this machine's.
    """
    names = {
        "measured": f"measured {'here' if here else 'elsewhere'}",
        "fitted": "estimated from other ops",
        "guessed": "from specifications",
    }
    parts = [f"{units.percent(share, signed=False)} {names[name]}" for name, share in shares.model_dump().items() if share]
    return ", ".join(parts) or units.NONE


def differing(semantics: Mapping[str, object]) -> str:
    """How a plan's training differs from plain training: batch norm: statistics per microbatch. Nothing is said of what is the same."""
    differing = {name: value for name, value in semantics.items() if name not in HOW_COMPUTED and _differs(value)}
    return "; ".join(f"{name.replace('_', ' ')}: {_value_words(value)}" for name, value in differing.items())


def division(semantics: Mapping[str, object]) -> str:
    """How layers are divided: n=2 from features.0 to avgpool, c=2 in classifier.1. Empty for a plan that divides no layers."""
    divided = semantics.get("divided", "")
    if not isinstance(divided, Mapping):
        return str(divided)
    runs = [(configuration, [name for name, _ in run]) for configuration, run in groupby(divided.items(), key=itemgetter(1))]
    return ", ".join(f"{how} in {names[0]}" if len(names) == 1 else f"{how} from {names[0]} to {names[-1]}" for how, names in runs)


def _differs(value: object) -> bool:
    """Whether an entry means a difference: not 0, off or empty, nor 0 in every stage."""
    return any(map(_differs, value.values())) if isinstance(value, Mapping) else bool(value)


def _value_words(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_value_words(part)}" for name, part in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else option_value(value)


def busy_line(share: float | None, kind: str = "cpu") -> str:
    """A caution that other processes make the measurement invalid; an empty string if they took little, or if that is unknown.

    `share`: what they took of the cores, or of the GPU (`kind` "gpu"), from 0 to 1.
    """
    if not is_busy(share):
        return ""
    what = "GPU" if kind == "gpu" else "cores"
    return (
        f"busy machine: not a measurement. Other processes took {100 * share:.0f} % of the {what}; above {100 * BUSY:.0f} % no time is"
        " reliable. Measure again when they have ended; --wait SECONDS waits for that."
    )


def busy_note(share: float) -> str:
    """A caution about a profile that was measured while other processes ran."""
    return f"some costs are no measurement: other processes took {100 * share:.0f} % of the machine meanwhile"


def no_verdict_words(shares: Iterable[float | None], here: bool = True) -> list[str]:
    """A caution that too little was measured for a verdict, with the smallest of some shares; no sentence if enough was, or without a
    profile.

    `shares`: as `Prediction.measured_share`. `here`: whether measured costs are this machine's.
    """
    low = [share for share in shares if share is not None and not is_judged(share)]
    if not low:
        return []
    share, place = units.percent(min(low), signed=False), "on this machine" if here else "for its profile"
    return [f"No verdict: {share} of the predicted time was measured {place}; the rest is estimated from other ops."]


#: Follows a verdict that does not compare with plain PyTorch, because that was not predicted.
OVER_BASELINE = " (over the baseline)"


def verdict_cell(gain: Gain | None, compared_with: str) -> str:
    """The verdict of a gain, and what it compares with if that is not plain PyTorch."""
    return units.NONE if gain is None else f"{gain.verdict}{'' if compared_with == PYTORCH else OVER_BASELINE}"


def numbers_cell(result: ValidationResult) -> str:
    """Whether gradients and parameters equal plain PyTorch's: "identical", or their largest relative difference."""
    if not result.ok or result.strategy in OTHER_LOOPS or (result.strategy == PYTORCH and not result.max_grad_error):
        return units.NONE
    if result.max_grad_error is None or result.max_param_error is None:
        return "not finite"
    return units.difference(max(result.max_grad_error, result.max_param_error))


PHASE = MappingProxyType({
    "forward": "#3A86C8",
    "backward": "#E69F00",
    "update": "#12A37B",
    "transfer": "#D37FB0",
    "collective": "#7E5BB5",
    "launch": "#5E6B78",
    "python": "#B4BAC2",
    "backward by weights": "#A65A12",
    "forward again": "#0B3C68",
})  # fmt: skip
#: By what a rule changed of a task.
CHANGE = MappingProxyType({"shorter": "#E8C500", "longer": "#C2410C", "removed": "#FF66C4", "new": "#00B8C8"})
#: By kind of value, the longest-lived kind first. Timelines show them below the phases, so they are far from the phases' colors.
KIND = MappingProxyType({
    "parameter": "#5A67D8",
    "optimizer-state": "#A9B8F0",
    "buffer": "#7A4F73",
    "input": "#D9C7A0",
    "activation": "#A6BC4E",
    "gradient": "#F0907A",
    "scratch": "#77803A",
})  # fmt: skip
OTHER = "#949494"  # phases that are not in PHASE
CRITICAL = "#E5383B"  # the stripe under bars of the critical path
LIMIT = "#B02A37"  # memory limits
SHORTER, LONGER = "#1B7837", "#D1495B"  # less time and more time, wherever two times are compared
PREDICTED, MEASURED = "#4477AA", "#EE7733"
#: By verdict on a speed-up (`traces.documents.verdict`).
VERDICT = MappingProxyType({"faster": SHORTER, "same": "#5A6070", "slower": LONGER, "cannot tell": "#B8860B", "no verdict": "#7A7A7A"})
#: Lines and marks of a chart that stand for nothing else here, such as strategies.
LINES = ("#332288", "#44AA99", "#DDCC77", "#882255", "#88CCEE", "#117733", "#999933", "#AA4499", "#CC6677")
_LIGHTER = 0.42  # how far a lighter shade is from its color to white
GREY = "#8A8F98"  # lines and marks that are neither predicted nor measured
IDLE = "#CDD2D9"  # hatches where a pipeline's device waits
GRID = "rgba(138,143,152,0.25)"


def phase_color(phase: str) -> str:
    """The color of a phase."""
    return PHASE.get(phase) or CHANGE.get(phase, OTHER)


def line_color(number: int) -> str:
    """The color of a chart's line or mark, by its number."""
    return LINES[number % len(LINES)]


def shaded(color: str, shade: int) -> str:
    """A color, or with `shade` 1 a lighter one of the same hue."""
    if not shade:
        return color
    parts = (int(color[at : at + 2], 16) for at in (1, 3, 5))
    return "#" + "".join(f"{part + round(_LIGHTER * (255 - part)):02X}" for part in parts)


def phases_in_order(phases: "set[str]") -> list[str]:
    """Known phases in the order of a step, then the others by name."""
    return [phase for phase in PHASE if phase in phases] + sorted(phases - set(PHASE))


def plotly_escaped(text: str) -> str:
    """Text that plotly shows as it is, in titles, axes, legends and hover boxes. It knows neither quotes as entities nor formulas then."""
    return escape(text, quote=False).replace("$", "&#36;")


#: Characters of a line of a chart's title, which fits into a page of 900 pixels with a sidebar; and the height of a line.
TITLE_WIDTH, TITLE_LINE_PX = 52, 22
#: Lines of a title. What is longer is cut: with more, the margin leaves a chart no room.
TITLE_LINES = 4


def finished(figure: "go.Figure", title: str, drawn_px: float, legend: bool = True, **layout) -> "go.Figure":
    """Give the figure a title at the left, a legend under it and transparent backgrounds. `drawn_px`: the height inside the margins.

    A long title has up to TITLE_LINES lines, since plotly cuts what does not fit. `legend`: whether there is a legend, which takes room.
    """
    lines = wrap(title, TITLE_WIDTH, max_lines=TITLE_LINES, placeholder="…")
    more = TITLE_LINE_PX * max(0, len(lines) - 1)
    margin = {"l": 10, "r": 20, "t": more + (96 if legend else 44), "b": 50}
    height = drawn_px + margin["t"] + margin["b"]
    place = {"orientation": "h", "yref": "container", "yanchor": "top", "y": 1 - (36 + more) / height, "xanchor": "left", "x": 0}
    text = "<br>".join(map(plotly_escaped, lines))
    heading = {"text": text, "x": 0, "xanchor": "left", "yanchor": "top", "y": 1 - (8 + more) / height, "yref": "container"}
    clear = {"paper_bgcolor": "rgba(0,0,0,0)", "plot_bgcolor": "rgba(0,0,0,0)"}
    return figure.update_layout(
        title=heading, height=height, legend=place, showlegend=legend, margin=margin, hovermode="closest", **clear, **layout
    )
