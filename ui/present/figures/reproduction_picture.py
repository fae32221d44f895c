"""The static pictures of a reproduction's charts."""

from math import ceil, log10
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullLocator

from traces.documents.reproduction import Chart, Panel
from ui.present.figures import palette
from ui.present.figures.canvas import FAINT, INK, add_legend, hide_frame, new_figure, save

#: Panels per row at most.
COLUMNS = 3
ROW_IN, TOP_IN, TITLE_IN, BOTTOM_IN, GAP_IN = 2.6, 0.9, 0.3, 0.6, 0.75
#: Height of a chart with one panel.
SINGLE_IN = 4.2
_MARKS = "osD^v"
#: Tick labels from here on are written as powers of ten.
_LARGE = 1e5
#: A logarithmic axis that spans more than this factor, or reaches _LARGE, has ticks at powers of ten only.
_MANY = 100.0


def chart_picture(path: Path | str, chart: Chart) -> Path:
    """Draw a chart into `path` (.png or .svg). Solid lines are predicted, dashed lines published."""
    count = len(chart.panels)
    columns = min(COLUMNS, count)
    rows = ceil(count / columns)
    each_in = ROW_IN if count > 1 else SINGLE_IN
    top_in = TOP_IN + (TITLE_IN if any(panel.title for panel in chart.panels) else 0.0)
    height_in = top_in + rows * each_in + (rows - 1) * GAP_IN + BOTTOM_IN
    figure = new_figure(height_in, chart.title)
    bounds = (0.065, 1 - top_in / height_in, 0.985, BOTTOM_IN / height_in)
    wide = (bounds[2] - bounds[0] - 0.05 * (columns - 1)) / columns
    colors, y_range = _colors(chart), _y_range(chart)
    for number, panel in enumerate(chart.panels):
        row, column = divmod(number, columns)
        left = bounds[0] + column * (wide + 0.05)
        bottom = bounds[1] - (row * (each_in + GAP_IN) + each_in) / height_in
        axes = figure.add_axes((left, bottom, wide, each_in / height_in))
        _draw(axes, chart, panel, colors)
        if chart.log_y:
            axes.set_yscale("log")
            _ticks(axes.yaxis, *y_range)
        axes.set_ylim(*y_range)
        if column == 0:
            axes.set_ylabel(chart.y_label, fontsize=11, color=INK)
        if number + columns >= count:
            axes.set_xlabel(chart.x_label, fontsize=11, color=INK)
    marks = [
        Line2D([], [], color=color, marker=mark, linestyle=_linestyle(chart, published), label=name, markersize=7)
        for (name, published), (color, mark) in colors.items()
    ]
    add_legend(figure, marks)
    return save(figure, path)


def _colors(chart: Chart) -> dict[tuple[str, bool], tuple[str, str]]:
    """The color and mark of every series, by (name, published)."""
    names = list(dict.fromkeys((s.name, s.published) for panel in chart.panels for s in panel.series))
    shades = [*palette.PHASE.values(), palette.OTHER]
    return {name: (shades[index % len(shades)], _MARKS[index % len(_MARKS)]) for index, name in enumerate(names)}


def _y_range(chart: Chart) -> tuple[float, float]:
    """The range of y for all panels, so that heights can be compared between panels."""
    values = [y for panel in chart.panels for series in panel.series for y in series.y] + ([] if chart.level is None else [chart.level])
    low, high = min(values, default=0.0), max(values, default=1.0)
    if chart.log_y:
        room = (high / low) ** 0.16
        return low / room, high * room
    room = 0.16 * (high - low) or 0.1
    return low - room, high + room


def _ticks(axis: Axis, low: float, high: float) -> None:
    """Set the ticks of a logarithmic axis: at every power of ten, and between them if the axis spans few powers."""
    axis.set_major_locator(LogLocator(subs=(1.0,) if high > min(_MANY * low, _LARGE) else (1.0, 2.0, 5.0)))
    axis.set_major_formatter(lambda value, _: f"{value:g}" if value < _LARGE else f"$10^{{{round(log10(value))}}}$")
    axis.set_minor_locator(NullLocator())


def _linestyle(chart: Chart, published: bool) -> str:
    return "" if not chart.joined else "--" if published else "-"


def _draw(axes: Axes, chart: Chart, panel: Panel, colors: dict[tuple[str, bool], tuple[str, str]]) -> None:
    if chart.level is not None:
        axes.axhline(chart.level, color=palette.GREY, linewidth=1.2)
    for number, series in enumerate(panel.series):
        color, mark = colors[series.name, series.published]
        axes.plot(series.x, series.y, color=color, marker=mark, linestyle=_linestyle(chart, series.published), markersize=6, linewidth=1.8)
        if number == 0:
            for place, (x, y, name) in enumerate(zip(series.x, series.y, series.names, strict=False)):
                below = (0, -14 - 11 * (place % 3))  # staggered, so that the names of nearby points do not overlap
                axes.annotate(name, (x, y), below, textcoords="offset points", ha="center", fontsize=9, color=INK, parse_math=False)
    if chart.log_x:
        x = [value for series in panel.series for value in series.x]
        axes.set_xscale("log")
        _ticks(axes.xaxis, min(x, default=1.0), max(x, default=1.0))
    if chart.ticks:
        axes.set_xticks(range(1, len(chart.ticks) + 1), chart.ticks, parse_math=False)
    axes.margins(x=0.06, y=0.16)
    axes.set_title(panel.title, fontsize=11.5, weight="bold", loc="left", color=INK, parse_math=False)
    axes.grid(color=FAINT, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(axis="both", length=0, labelcolor=INK)
    hide_frame(axes)
