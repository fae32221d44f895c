"""How pictures and charts look: their colors, texts and titles.

Each color has one meaning; color-blind readers can tell them apart, on light and on dark backgrounds. Backgrounds are transparent and text
has no color of its own, so that a chart suits light and dark pages.
"""

from html import escape
from textwrap import wrap
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import plotly.graph_objects as go

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
