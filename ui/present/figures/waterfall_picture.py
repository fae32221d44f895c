"""The static picture of a waterfall: from one step time to another, part by part."""

from collections.abc import Sequence
from pathlib import Path

from ui.present.figures import palette
from ui.present.figures.canvas import FAINT, INK, hide_frame, new_figure, save
from ui.present.text.waterfalls import Bar

#: Inches above and below the bars, and per bar.
TOP_IN, BOTTOM_IN, BAR_IN = 0.55, 0.62, 0.36


def waterfall_picture(path: Path | str, waterfall: Sequence[Bar], title: str) -> Path:
    """Draw the bars one below the other into `path` (.png or .svg): steps from 0, each part from where the part above it ends."""
    height_in = TOP_IN + BAR_IN * len(waterfall) + BOTTOM_IN
    figure = new_figure(height_in, title)
    axes = figure.add_axes((0.23, BOTTOM_IN / height_in, 0.66, 1 - (TOP_IN + BOTTOM_IN) / height_in))
    longest_ms = max(max(bar.start_s, bar.end_s) for bar in waterfall) * 1e3
    for row, bar in enumerate(waterfall):
        left, right = sorted((bar.start_s * 1e3, bar.end_s * 1e3))
        axes.barh(row, max(right - left, longest_ms * 0.002), left=left, height=0.62, color=color(bar))
        weight = "bold" if bar.is_step else "normal"
        axes.text(right + longest_ms * 0.008, row, f"{bar.ms} ms", va="center", fontsize=11, color=INK, weight=weight)
    for row, bar in enumerate(waterfall[:-1]):
        axes.plot([bar.end_s * 1e3] * 2, [row - 0.31, row + 1.31], color=palette.GREY, linewidth=0.8, zorder=1)
    axes.set_xlim(0, longest_ms * 1.02 or 1)
    axes.set_ylim(len(waterfall) - 0.5, -0.5)
    axes.set_yticks(range(len(waterfall)), [bar.label for bar in waterfall], fontsize=11, color=INK)
    axes.tick_params(axis="both", length=0, labelcolor=INK)
    axes.set_xlabel("step time, ms", fontsize=11, color=INK)
    axes.grid(axis="x", color=FAINT, linewidth=0.8)
    axes.set_axisbelow(True)
    hide_frame(axes)
    return save(figure, path)


def color(bar: Bar) -> str:
    """The color of a bar: steps are grey, parts that shorten the step green, and parts that lengthen it red."""
    return palette.GREY if bar.is_step else palette.SHORTER if bar.change_s < 0 else palette.LONGER
