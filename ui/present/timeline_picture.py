"""The static picture of timelines: predicted above measured on one time axis."""

from functools import partial
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from traces.documents.timeline import Timeline
from ui.present import palette
from ui.present.canvas import INK, WIDTH_IN, add_legend, hide_frame, new_figure, save
from ui.present.labels import headline
from ui.present.timeline_rows import BY_WEIGHTS, CRITICAL, IDLE, REPEATED, X_LABEL, Bar, TimelinePanel, timeline_panel

#: Inches above the first panel, between panels, and below the last.
TOP_IN, BETWEEN_IN, BOTTOM_IN = 1.15, 0.62, 0.62
#: Inches per lane; pictures with more than FEW_LANES have narrow lanes.
LANE_IN, NARROW_LANE_IN, FEW_LANES = 0.42, 0.3, 14
#: A bar gets its label if it is at least this many times as wide as the label.
ROOM = 1.15
DASHES = (0, (4, 3))
#: The pattern of idle time.
HATCH = "////"


def timelines_picture(path: Path | str, predicted: Timeline, measured: Timeline | None = None, title: str = "") -> Path:
    """Draw one training step, predicted above measured, into `path` (.png or .svg). The heading has `title`, both step times and the error.

    A red stripe under a bar marks the critical path; a solid line marks a timeline's step time, a dashed one the predicted step time.
    """
    panels = [timeline_panel(timeline) for timeline in (predicted, measured) if timeline is not None]
    lane_in = LANE_IN if sum(len(panel.rows) for panel in panels) <= FEW_LANES else NARROW_LANE_IN
    heights_in = [lane_in * max(1, len(panel.rows)) for panel in panels]
    height_in = TOP_IN + sum(heights_in) + BETWEEN_IN * (len(panels) - 1) + BOTTOM_IN
    times = headline(predicted.step_s, measured.step_s if measured else None)
    figure = new_figure(height_in, f"{title}: {times}" if title else times)
    end_ms = max(panel.length_ms for panel in panels)
    left = (0.3 + 0.088 * max((len(label) for panel in panels for label in panel.rows), default=0)) / WIDTH_IN
    above_in = TOP_IN
    for number, (panel, drawn_in) in enumerate(zip(panels, heights_in, strict=True)):
        axes = figure.add_axes((left, 1 - (above_in + drawn_in) / height_in, 0.985 - left, drawn_in / height_in))
        _draw(axes, panel, end_ms)
        if number > 0:
            axes.axvline(panels[0].step_ms, color=INK, linewidth=1.0, linestyle=DASHES, alpha=0.6)
        is_last = number == len(panels) - 1
        axes.tick_params(axis="x", labelbottom=is_last, length=3 if is_last else 0, colors=INK)
        above_in += drawn_in + BETWEEN_IN
    axes.set_xlabel(X_LABEL, fontsize=11, color=INK)
    phases = palette.phases_in_order({phase for panel in panels for phase in panel.bars})
    marks = [Patch(facecolor=palette.phase_color(phase), label=phase) for phase in phases]
    if any(panel.idle for panel in panels):
        marks.append(Patch(facecolor="white", edgecolor=palette.IDLE, hatch=HATCH, linewidth=0.0, label=IDLE))
    if any(panel.critical for panel in panels):
        marks.append(Patch(facecolor=palette.CRITICAL, label=f"{CRITICAL} (stripe)"))
    add_legend(figure, marks, handlelength=1.0, handleheight=1.0, columnspacing=1.4)
    return save(figure, path)


def _draw(axes: Axes, panel: TimelinePanel, end_ms: float) -> None:
    for row, start_ms, length_ms in panel.idle:
        axes.broken_barh([(start_ms, length_ms)], (row - 0.38, 0.7), facecolor="white", edgecolor=palette.IDLE, hatch=HATCH, linewidth=0.0)
    for phase, bars in panel.bars.items():
        for shade in sorted({bar.shade for bar in bars}):
            own = tuple(bar for bar in bars if bar.shade == shade)
            _draw_bars(axes, own, -0.38, 0.7, palette.shaded(palette.phase_color(phase), shade), 0.6 if panel.bordered else 0.0)
    _draw_bars(axes, panel.critical, 0.34, 0.1, palette.CRITICAL, 0.0)
    axes.set_xlim(0, end_ms * 1.002)
    axes.set_ylim(len(panel.rows) - 0.45, -0.55)
    axes.set_yticks(range(len(panel.rows)), panel.rows, fontsize=11 if len(panel.rows) <= 12 else 8.5, color=INK, parse_math=False)
    axes.tick_params(axis="y", length=0)
    axes.xaxis.set_major_locator(MaxNLocator(12))
    hide_frame(axes, "x")
    axes.axvline(panel.step_ms, color=INK, linewidth=1.6, clip_on=False)
    write = partial(axes.annotate, textcoords="offset points", fontsize=11.5, weight="bold", color=INK, parse_math=False)
    write(f"{panel.step_label} ", (panel.step_ms, 1), (-2, 4), xycoords=("data", "axes fraction"), ha="right")
    write(panel.kind, (0, 1), (0, 4), xycoords="axes fraction")
    _label_bars(axes, panel)


def _draw_bars(axes: Axes, bars: tuple[Bar, ...], top: float, height: float, color: str, edge: float) -> None:
    """Draw bars from `top` on, relative to the middle of their row."""
    rows: dict[int, list[tuple[float, float]]] = {}
    for bar in bars:
        rows.setdefault(bar.row, []).append((bar.start_ms, bar.length_ms))
    for row, pieces in rows.items():
        axes.broken_barh(pieces, (row + top, height), facecolor=color, edgecolor="white", linewidth=edge)


def _label_bars(axes: Axes, panel: TimelinePanel) -> None:
    """Write into each forward and backward bar the longest of its labels for which there is room."""
    ms_per_inch = axes.get_xlim()[1] / (axes.get_position().width * WIDTH_IN)
    for phase in ("forward", "backward", BY_WEIGHTS, REPEATED):
        for bar in panel.bars.get(phase, ()):
            color = INK if phase == "backward" or bar.shade else "white"
            room_in = bar.length_ms / (ROOM * ms_per_inch)
            text = next((label for label in bar.labels if room_in > 0.085 * len(label) + 0.02), "")
            if text:
                middle = bar.start_ms + bar.length_ms / 2
                axes.text(middle, bar.row - 0.04, text, fontsize=9, color=color, ha="center", va="center", parse_math=False)
