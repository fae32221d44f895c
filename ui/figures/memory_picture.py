"""A static picture of memory over one steady period: a row per device, predicted beside measured, stacked by kind of value."""

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from simulator.predict.explain import KIND_NAMES
from traces.timeline import Timeline
from traces.units import memory_unit
from ui.figures import palette
from ui.figures.memory_panels import Panel, devices_shown, heading, kinds_shown, limit_drawn, panel
from ui.figures.pictures import DOTS_PER_INCH, FAINT, INK, WIDTH_IN, legend, write

#: Inches of a row, and of what lies above, between and under the rows.
ROW_IN, TOP_IN, BETWEEN_IN, BOTTOM_IN = 1.75, 1.25, 0.45, 0.68
#: Shares of the width.
LEFT, RIGHT, GAP = 0.07, 0.985, 0.025
DASHES = (0, (4, 3))


def memory_picture(path: Path | str, predicted: Timeline, measured: Timeline | None = None, title: str = "") -> Path | None:
    """Draw what every device holds, into `path` (.png or .svg); None where the timelines do not say."""
    shown = [timeline for timeline in (predicted, measured) if timeline is not None and timeline.memory_kinds]
    devices = devices_shown(shown)
    if not devices:
        return None
    rows = [[panel(timeline, device) for timeline in shown] for device in devices]
    height_in = TOP_IN + len(rows) * ROW_IN + (len(rows) - 1) * BETWEEN_IN + BOTTOM_IN
    figure = Figure(figsize=(WIDTH_IN, height_in), dpi=DOTS_PER_INCH, facecolor="white")
    FigureCanvasAgg(figure)
    width = (RIGHT - LEFT - GAP * (len(shown) - 1)) / len(shown)
    end_ms = max(timeline.window_s[1] - timeline.window_s[0] for timeline in shown) * 1e3
    limited = False
    for row, panels in enumerate(rows):
        bottom_in = height_in - TOP_IN - (row + 1) * ROW_IN - row * BETWEEN_IN
        highest = max((max(each.highest_bytes, each.peak_bytes) for each in panels if each is not None), default=0)
        limit = predicted.limits_bytes.get(devices[row])
        near = limit_drawn(limit, highest)
        limited |= near
        for column, (timeline, each) in enumerate(zip(shown, panels, strict=True)):
            axes = figure.add_axes((LEFT + column * (width + GAP), bottom_in / height_in, width, ROW_IN / height_in))
            _style(axes, column == 0, row == len(rows) - 1)
            size, name = memory_unit(highest)
            axes.set_xlim(0, end_ms * 1.002)
            axes.set_ylim(0, max(highest, limit if near else 0) / size * 1.1 or 1)
            if column == 0:
                axes.set_ylabel(name, fontsize=11, color=INK)
            if near:
                axes.axhline(limit / size, color=palette.LIMIT, linewidth=2.0)
            if each is not None:
                _draw(axes, each, size)
                text = heading(timeline, each, limit if not near else None)
                axes.annotate(text, (0, 1), (0, 5), xycoords="axes fraction", textcoords="offset points", fontsize=11, weight="bold",
                              color=INK, parse_math=False)  # fmt: skip
    figure.text((LEFT + RIGHT) / 2, 0.14 / height_in, "ms from the start of the steady period", fontsize=11, color=INK, ha="center")
    figure.text(0.012, 1 - 0.16 / height_in, f"{title}: memory" if title else "memory", fontsize=16, weight="bold", va="top", color=INK,
                parse_math=False)  # fmt: skip
    marks = [Patch(facecolor=palette.KIND[kind], label=KIND_NAMES[kind]) for kind in kinds_shown([each for row in rows for each in row])]
    marks.append(Line2D([], [], color=INK, linestyle=DASHES, linewidth=1.4, label="peak"))
    if limited:
        marks.append(Line2D([], [], color=palette.LIMIT, linewidth=2.0, label="limit"))
    legend(figure, marks, 1 - 0.47 / height_in, handlelength=1.3, handleheight=1.0, columnspacing=1.3)
    return write(figure, path)


def _draw(axes: Axes, each: Panel, size: float) -> None:
    """The stack, and the peak as a line."""
    stacked = [[count / size for count in counts] for counts in each.held.values()]
    axes.stackplot(each.times_ms, stacked, colors=[palette.KIND[kind] for kind in each.held], step="post", linewidth=0)
    if each.peak_bytes:
        axes.axhline(each.peak_bytes / size, color=INK, linewidth=1.4, linestyle=DASHES)


def _style(axes: Axes, first: bool, last: bool) -> None:
    axes.tick_params(axis="both", colors=INK, labelsize=10, labelbottom=last, labelleft=first, length=0)
    axes.xaxis.set_major_locator(MaxNLocator(8))
    axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.grid(axis="y", color=FAINT, linewidth=0.8)
    axes.set_axisbelow(True)
    for side in axes.spines.values():
        side.set_visible(False)
