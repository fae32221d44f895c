"""The static picture of memory over one training step: one row per device, predicted next to measured, stacked by kind of value."""

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from simulator.engine.memory.words import KIND_NAMES
from traces.documents.timeline import Timeline
from ui.present.figures import palette
from ui.present.figures.canvas import FAINT, INK, WIDTH_IN, add_legend, hide_frame, new_figure, save
from ui.present.figures.memory_panels import Panel, kinds_shown, rows
from ui.present.figures.timeline_panels import X_LABEL

#: Inches per row, and above, between and under the rows.
ROW_IN, TOP_IN, BETWEEN_IN, BOTTOM_IN = 1.75, 1.25, 0.45, 0.68
#: Left and right edge of the panels, and the gap between them, as shares of the width.
LEFT, RIGHT, GAP = 0.07, 0.985, 0.025
DASHES = (0, (4, 3))
#: The size of a heading's letters, and the inches that one takes. Longer headings have smaller letters.
HEADING_POINTS, HEADING_IN = 11.0, 0.098


def memory_picture(path: Path | str, predicted: Timeline, measured: Timeline | None = None, title: str = "") -> Path | None:
    """Draw what every device's memory holds into `path` (.png or .svg). Returns None if no timeline says so; then nothing is written."""
    timelines = [timeline for timeline in (predicted, measured) if timeline is not None and timeline.memory_kinds]
    device_rows = rows(timelines)
    if not device_rows:
        return None
    count = len(device_rows)
    height_in = TOP_IN + count * ROW_IN + (count - 1) * BETWEEN_IN + BOTTOM_IN
    figure = new_figure(height_in, f"{title}: memory" if title else "memory")
    width = (RIGHT - LEFT - GAP * (len(timelines) - 1)) / len(timelines)
    end_ms = max(timeline.window_s[1] - timeline.window_s[0] for timeline in timelines) * 1e3
    for number, row in enumerate(device_rows):
        bottom_in = height_in - TOP_IN - (number + 1) * ROW_IN - number * BETWEEN_IN
        for column, panel in enumerate(row.panels):
            axes = figure.add_axes((LEFT + column * (width + GAP), bottom_in / height_in, width, ROW_IN / height_in))
            _style(axes, column == 0, number == count - 1)
            axes.set_xlim(0, end_ms * 1.002)
            axes.set_ylim(0, row.top)
            if column == 0:
                axes.set_ylabel(row.unit, fontsize=11, color=INK)
            if row.limit_bytes:
                axes.axhline(row.limit_bytes / row.unit_bytes, color=palette.LIMIT, linewidth=2.0)
            if panel is not None:
                _draw(axes, panel, row.unit_bytes)
                text = row.headings[column]
                points = HEADING_POINTS * min(1.0, width * WIDTH_IN / (HEADING_IN * len(text)))
                axes.annotate(text, (0, 1), (0, 5), xycoords="axes fraction", textcoords="offset points", fontsize=points,
                              weight="bold", color=INK, parse_math=False)  # fmt: skip
    figure.text((LEFT + RIGHT) / 2, 0.14 / height_in, X_LABEL, fontsize=11, color=INK, ha="center")
    marks = [Patch(facecolor=palette.KIND[kind], label=KIND_NAMES[kind]) for kind in kinds_shown(device_rows)]
    marks.append(Line2D([], [], color=INK, linestyle=DASHES, linewidth=1.4, label="peak"))
    if any(row.limit_bytes for row in device_rows):
        marks.append(Line2D([], [], color=palette.LIMIT, linewidth=2.0, label="limit"))
    add_legend(figure, marks, handlelength=1.3, handleheight=1.0, columnspacing=1.3)
    return save(figure, path)


def _draw(axes: Axes, panel: Panel, unit_bytes: int) -> None:
    """Draw the stacked areas, and the peak as a line."""
    stacked = [[count / unit_bytes for count in counts] for counts in panel.held.values()]
    axes.stackplot(panel.times_ms, stacked, colors=[palette.KIND[kind] for kind in panel.held], step="post", linewidth=0)
    if panel.peak_bytes:
        axes.axhline(panel.peak_bytes / unit_bytes, color=INK, linewidth=1.4, linestyle=DASHES)


def _style(axes: Axes, is_first: bool, is_last: bool) -> None:
    axes.tick_params(axis="both", colors=INK, labelsize=10, labelbottom=is_last, labelleft=is_first, length=0)
    axes.xaxis.set_major_locator(MaxNLocator(8))
    axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.grid(axis="y", color=FAINT, linewidth=0.8)
    axes.set_axisbelow(True)
    hide_frame(axes)
