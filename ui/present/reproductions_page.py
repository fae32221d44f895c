"""The sections of a page about reproductions of papers, and the folder of such a page.

index.html                      the page; needs no network and no other file
reproduction.json               the document of `schedcast reproduce --json`
PAPER-CHART.png, PAPER-CHART.svg    the pictures of charts, and of networks

In the picture of a network whose layers are divided, every layer is a rectangle, cut as its output is among the workers. Cuts by images and
by width are vertical, cuts by channels and by height horizontal. Images and channels make separate blocks; height and width cut a block
without a gap. Layers run from left to right and continue in the next row; branches lie below each other.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil, log10
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import LogLocator, NullLocator

from traces.documents.comparison import Validation
from traces.documents.reproduction import Chart, DividedLayer, DividedNetwork, Panel, Paper, Reproduction, Table
from traces.files import check_writable, write_atomic
from ui.present import palette, sentences, tables
from ui.present import reproductions as reproduction_tables
from ui.present.canvas import INK, SOFT, LineStyle, add_legend, hide_frame, new_figure, save
from ui.present.page import Section, document_data, first_and_last, page, picture_data, section

#: Inches: width of a column of layers and height of a lane, and of a layer's rectangle in them; between rows; above and below all rows.
COLUMN_IN, LANE_IN, BOX_IN, ROW_GAP_IN, NETWORK_TOP_IN, NETWORK_BOTTOM_IN = 0.98, 0.66, (0.72, 0.3), 0.22, 1.0, 0.2
LAYER_COLUMNS = 12
#: Characters of a layer's name that fit above its rectangle.
_LETTERS = 17
_NAMES = ("image", "channel", "height", "width")
#: By dimension, the color of layers that are divided along it more than along any other.
COLORS: Mapping[str, str] = {
    "image": palette.PHASE["forward"],
    "channel": palette.PHASE["backward"],
    "height": palette.PHASE["update"],
    "width": palette.PHASE["transfer"],
}
WHOLE = palette.OTHER


@dataclass(frozen=True)
class Place:
    """Where a layer is drawn: row, column in the row, lane in the row."""

    row: int
    column: int
    lane: int


def division_picture(path: Path | str, network: DividedNetwork) -> Path:
    """Draw a network into `path` (.png or .svg)."""
    places = places_of(network.layers)
    lanes = _lanes_of(network.layers, places)
    height_in = NETWORK_TOP_IN + sum(lanes) * LANE_IN + (len(lanes) - 1) * ROW_GAP_IN + BOTTOM_IN
    figure = new_figure(height_in, network.title)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(0, figure.get_figwidth())
    axes.set_ylim(height_in, 0)
    axes.axis("off")
    hide_frame(axes)
    tops = [NETWORK_TOP_IN + sum(lanes[:row]) * LANE_IN + row * ROW_GAP_IN for row in range(len(lanes))]
    corners = [_corner(place, tops) for place in places]
    for number, layer in enumerate(network.layers):
        for source in layer.inputs:
            _draw_connection(axes, places[source], places[number], tops)
    for layer, corner in zip(network.layers, corners, strict=True):
        _draw_layer(axes, layer, corner)
    used = {color_of(layer.degrees) for layer in network.layers}
    marks = [Patch(color=color, label=f"mostly by {name}") for name, color in COLORS.items() if color in used]
    add_legend(figure, [*marks, *([Patch(color=WHOLE, label="one worker")] if WHOLE in used else [])])
    return save(figure, path)


def places_of(layers: Sequence[DividedLayer]) -> list[Place]:
    """Where each layer is drawn: in the column after its inputs, and in a lane that no line of another layer passes."""
    depths: list[int] = []
    for layer in layers:
        depths.append(1 + max((depths[source] for source in layer.inputs), default=-1))
    last = list(depths)  # the column in which a layer is last read
    for number, layer in enumerate(layers):
        for source in layer.inputs:
            last[source] = max(last[source], depths[number])
    lanes: list[int] = []
    busy: list[tuple[int, int, int]] = []  # lane, first and last column
    for number, layer in enumerate(layers):
        wanted = sorted({lanes[source] for source in layer.inputs}) or [0]
        end = max(depths[number], last[number] - 1)
        lane = next(
            lane
            for lane in [*wanted, *range(len(layers))]
            if all(lane != other or depths[number] > until or end < since for other, since, until in busy)
        )
        lanes.append(lane)
        busy.append((lane, depths[number], end))
    return [Place(*divmod(depth, LAYER_COLUMNS), lane) for depth, lane in zip(depths, lanes, strict=True)]


def color_of(degrees: Sequence[int]) -> str:
    """The color of a layer: that of the dimension with the largest degree."""
    most = max(degrees)
    return WHOLE if most == 1 else COLORS[_NAMES[list(degrees).index(most)]]


def divided_cells(degrees: Sequence[int], width: float, height: float) -> list[tuple[float, float, float, float]]:
    """(left, top, width, height) of every worker's part of a rectangle. There are gaps between images and between channels."""
    images, channels, rows, columns = degrees
    wide, tall = width / images, height / channels
    gap_x, gap_y = 0.16 * wide * (images > 1), 0.2 * tall * (channels > 1)
    part = ((wide - gap_x) / columns, (tall - gap_y) / rows)
    return [
        (image * wide + gap_x / 2 + column * part[0], channel * tall + gap_y / 2 + row * part[1], *part)
        for image in range(images)
        for channel in range(channels)
        for row in range(rows)
        for column in range(columns)
    ]


def words(degrees: Sequence[int]) -> str:
    """The degrees above 1: n=4 h=2."""
    return " ".join(f"{name}={degree}" for name, degree in zip("nchw", degrees, strict=True) if degree > 1) or "1 worker"


def _lanes_of(layers: Sequence[DividedLayer], places: Sequence[Place]) -> list[int]:
    """The number of lanes of each row: those of its layers, and of lines that pass."""
    lanes = [1] * (1 + max(place.row for place in places))
    for layer, place in zip(layers, places, strict=True):
        for row in range(min([places[source].row for source in layer.inputs] or [place.row]), place.row + 1):
            passing = [places[source].lane for source in layer.inputs if places[source].row <= row]
            lanes[row] = max([lanes[row], *(1 + lane for lane in passing), *([1 + place.lane] if row == place.row else [])])
    return lanes


def _corner(place: Place, tops: Sequence[float]) -> tuple[float, float]:
    """The upper left corner of a layer's rectangle, in inches."""
    left = 0.12 + place.column * COLUMN_IN + (COLUMN_IN - BOX_IN[0]) / 2
    return left, tops[place.row] + place.lane * LANE_IN + 0.17


def _draw_layer(axes: Axes, layer: DividedLayer, corner: tuple[float, float]) -> None:
    left, top = corner
    width, height = BOX_IN
    color = color_of(layer.degrees)
    for x, y, wide, tall in divided_cells(layer.degrees, width, height):
        axes.add_patch(Rectangle((left + x, top + y), wide, tall, facecolor=color, edgecolor="white", linewidth=0.5))
    middle = left + width / 2
    name = layer.name.removesuffix(".conv").rpartition(".")[2] if len(layer.name) > _LETTERS else layer.name
    axes.text(middle, top - 0.025, name[:_LETTERS], fontsize=6, ha="center", va="bottom", color=INK, parse_math=False)
    axes.text(middle, top + height + 0.02, words(layer.degrees), fontsize=6, ha="center", va="top", color=SOFT, parse_math=False)


def _draw_connection(axes: Axes, source: Place, target: Place, tops: Sequence[float]) -> None:
    """The line from one layer to another, in the lane of the first until the column of the other; it continues in the next row."""
    left, right = 0.04, 0.12 + LAYER_COLUMNS * COLUMN_IN
    (start, _), (end, end_y) = _corner(source, tops), _corner(target, tops)
    x = start + BOX_IN[0]
    for row in range(source.row, target.row + 1):
        y = _corner(Place(row, 0, source.lane), tops)[1] + BOX_IN[1] / 2
        if row == target.row:
            turn = max(x, end - (COLUMN_IN - BOX_IN[0]))
            axes.plot((x, turn, end), (y, y, end_y + BOX_IN[1] / 2), color=palette.GREY, linewidth=0.7, zorder=0)
        else:
            axes.plot((x, right), (y, y), color=palette.GREY, linewidth=0.7, zorder=0)
        x = left


#: Panels per row at most.
COLUMNS = 3
ROW_IN, TOP_IN, TITLE_IN, BOTTOM_IN, GAP_IN = 2.6, 0.9, 0.3, 0.6, 0.75
#: Height of a chart with one panel.
SINGLE_IN = 4.2
_MARKS = "osD^v"
#: Letters that fit in a row of the legend, those in whose place a mark is, and the height of a further row.
_ROW_LETTERS, _MARK_LETTERS, LEGEND_ROW_IN = 105, 8, 0.25
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
    colors = _colors(chart)
    in_a_row = len(colors) if sum(len(name) + _MARK_LETTERS for name, _ in colors) <= _ROW_LETTERS else COLUMNS
    legend_rows = ceil(len(colors) / max(1, in_a_row))
    top_in = TOP_IN + (TITLE_IN if any(panel.title for panel in chart.panels) else 0.0) + (legend_rows - 1) * LEGEND_ROW_IN
    height_in = top_in + rows * each_in + (rows - 1) * GAP_IN + BOTTOM_IN
    figure = new_figure(height_in, chart.title)
    bounds = (0.065, 1 - top_in / height_in, 0.985, BOTTOM_IN / height_in)
    wide = (bounds[2] - bounds[0] - 0.05 * (columns - 1)) / columns
    y_range = _y_range(chart)
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
    add_legend(figure, marks, columns=in_a_row)
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


def _linestyle(chart: Chart, published: bool) -> LineStyle:
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
        values = [value for series in panel.series for value in series.x]
        axes.set_xscale("log")
        _ticks(axes.xaxis, min(values, default=1.0), max(values, default=1.0))
    if chart.ticks:
        axes.set_xticks(range(1, len(chart.ticks) + 1), chart.ticks, parse_math=False)
    axes.margins(x=0.06, y=0.16)
    axes.set_title(panel.title, fontsize=11.5, weight="bold", loc="left", color=INK, parse_math=False)
    axes.tick_params(axis="both", length=0, labelcolor=INK)
    hide_frame(axes, "both")


DOCUMENT = "reproduction.json"


def write(folder: Path | str, document: Reproduction) -> Path:
    """Write the folder, its page last, and return the page's path. Raises SchedcastError if the folder cannot be written."""
    folder = Path(folder)
    check_writable(folder, folder=True)
    document.save(folder / DOCUMENT)  # first, because the folder is recognized by it
    for paper in document.papers:
        for chart in charts_with_points(paper):
            for kind in ("png", "svg"):
                chart_picture(folder / f"{_stem(paper, chart)}.{kind}", chart)
        for network in paper.networks:
            for kind in ("png", "svg"):
                division_picture(folder / f"{_stem(paper, network)}.{kind}", network)
    return write_atomic(folder / "index.html", page("Published and predicted", reproduction_sections(document, linked=True)))


def charts_with_points(paper: Paper) -> list[Chart]:
    """The charts of `paper` that have points to draw."""
    return [chart for chart in paper.charts if any(series.x for panel in chart.panels for series in panel.series)]


def reproduction_sections(document: Reproduction, linked: bool = False) -> list[Section]:
    """One section per paper. `linked`: whether the files of the folder lie beside the page."""
    return [_paper_section(paper, linked) for paper in document.papers]


def _paper_section(paper: Paper, linked: bool) -> Section:
    address = paper.reference.rpartition(" ")[2]
    holding = sum(check.holds is True for check in paper.checks)
    judged = sum(check.holds is not None for check in paper.checks)
    drawn: list[tuple[Chart | DividedNetwork, Callable[[Path], object]]] = [
        *((chart, partial(chart_picture, chart=chart)) for chart in charts_with_points(paper)),
        *((network, partial(division_picture, network=network)) for network in paper.networks),
    ]
    return section(
        paper.title, f"{holding} of {judged} claims hold." if judged else "", "reproduction.html", reference=paper.reference,
        link=address if address.startswith("https://") else "", words=" ".join(reproduction_tables.about_words(paper)),
        tables=[_table_values(table) for table in paper.tables], checks=[reproduction_tables.check_words(check) for check in paper.checks],
        charts=[(picture_data(draw), shown.title) for shown, draw in drawn],
        measured=[_measured_values(Validation.model_validate(measured)) for measured in paper.measured], notes=paper.notes,
        data=document_data(Reproduction(papers=(paper,))),
        files=[(f"{_stem(paper, shown)}.svg", f"{shown.title} (SVG)") for shown, _ in drawn] if linked else (),
    )  # fmt: skip


def _table_values(table: Table) -> dict[str, Any]:
    rows = reproduction_tables.cells(table)
    return {"title": table.title, "rows": rows, "text_columns": reproduction_tables.text_columns(rows), "about": table.about}


def _measured_values(validation: Validation) -> dict[str, Any]:
    rows = [tables.folded(cells) for cells in tables.validation_cells(validation)]
    return {"heading": sentences.job_words(validation), "rows": rows, "text_columns": first_and_last(rows)}


def _stem(paper: Paper, shown: Chart | DividedNetwork) -> str:
    """The file name of a chart or a network without its suffix."""
    return f"{paper.name}-{shown.name}"
