"""What all static pictures have in common: size, ink, title, legend and file format.

Pictures are drawn with matplotlib's own canvas instead of pyplot, which keeps global state. Their background is white, because they also
appear outside of pages.
"""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

from traces.files import write_atomic

WIDTH_IN = 12.0
#: Pictures are 2,400 pixels wide: sharp at the 1,200 pixels that a README shows.
DOTS_PER_INCH = 200
INK, FAINT, SOFT = "#1F2430", "#E3E6EB", "#5A6070"
#: Inches from the top edge to the title and to the legend.
TITLE_TOP_IN, LEGEND_TOP_IN = 0.16, 0.47
#: The size of a title's letters, and how many of them fit into a line at that size. Longer titles have smaller letters.
TITLE_POINTS, TITLE_CHARACTERS = 16.0, 84


def new_figure(height_in: float, title: str) -> Figure:
    """An empty figure of full width with its title."""
    figure = Figure(figsize=(WIDTH_IN, height_in), dpi=DOTS_PER_INCH, facecolor="white")
    FigureCanvasAgg(figure)
    top = 1 - TITLE_TOP_IN / height_in
    points = TITLE_POINTS * min(1.0, TITLE_CHARACTERS / max(1, len(title)))
    figure.text(0.012, top, title, fontsize=points, weight="bold", va="top", color=INK, parse_math=False)
    return figure


LineStyle = Literal["", "-", "--", ":"]


def add_legend(figure: Figure, marks: Sequence[Artist], top_in: float = LEGEND_TOP_IN, columns: int = 0, **spacing: float) -> None:
    """Add labelled marks below the title, `top_in` inches from the top edge. `columns`: marks in a row; 0: all of them."""
    corner = (0.005, 1 - top_in / figure.get_figheight())
    legend = figure.legend(
        handles=marks,
        loc="upper left",
        bbox_to_anchor=corner,
        ncols=columns or len(marks),
        frameon=False,
        fontsize=11,
        labelcolor=INK,
        **spacing,
    )
    for text in legend.get_texts():
        text.set_parse_math(False)


def hide_frame(axes: Axes, grid: Literal["x", "y", "both"] | None = None) -> None:
    """Remove the lines around the axes, and draw faint lines of a `grid` below everything else."""
    for spine in axes.spines.values():
        spine.set_visible(False)
    if grid is not None:
        axes.grid(axis=grid, color=FAINT, linewidth=0.8)
        axes.set_axisbelow(True)


def save(figure: Figure, path: Path | str) -> Path:
    """Write the figure as the suffix of `path` says (.png or .svg). Control characters in its words, which no font has, are left out."""
    for text in figure.findobj(Text):
        if isinstance(text, Text) and not text.get_text().isprintable():
            text.set_text("".join(c for c in text.get_text() if c.isprintable() or c in "\n\N{NO-BREAK SPACE}"))
    content = io.BytesIO()
    kind = Path(path).suffix.lstrip(".")
    figure.savefig(content, format=kind, metadata={"Date": None} if kind == "svg" else None)
    return write_atomic(path, content.getvalue())
