"""The sections of a page about reproductions of papers, and the folder of such a page.

index.html                      the page; needs no network and no other file
reproduction.json               the document of `schedcast reproduce --json`
PAPER-CHART.svg                 the pictures of charts, and of networks

In the picture of a network whose layers are divided, every layer is a rectangle, cut as its output is among the workers. Cuts by images and
by width are vertical, cuts by channels and by height horizontal. Images and channels make separate blocks; height and width cut a block
without a gap. Layers run from left to right and continue in the next row; branches lie below each other.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, log10
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from traces.documents.comparison import Validation
from traces.documents.reproduction import Chart, DividedLayer, DividedNetwork, Paper, Reproduction, Table
from traces.files import check_writable, write_atomic
from ui.present import palette, sentences, tables
from ui.present import reproductions as reproduction_tables
from ui.present.charts import finished
from ui.present.charts_page import chart_html
from ui.present.labels import plotly_escaped
from ui.present.page import Section, document_data, first_and_last, page, section
from ui.present.pictures import write_picture

#: Pixels: width of a column of layers and height of a lane, and of a layer's rectangle in them; and between rows.
COLUMN_PX, LANE_PX, BOX_PX, ROW_GAP_PX = 98.0, 66.0, (72.0, 30.0), 22.0
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


def division_figure(network: DividedNetwork) -> go.Figure:
    """Every layer of a network with what each worker has of it, and which layers read which."""
    places = places_of(network.layers)
    lanes = _lanes_of(network.layers, places)
    tops = [sum(lanes[:row]) * LANE_PX + row * ROW_GAP_PX for row in range(len(lanes))]
    drawn_px = tops[-1] + lanes[-1] * LANE_PX
    figure = go.Figure()
    lines = [_connection(places[source], places[n], tops) for n, layer in enumerate(network.layers) for source in layer.inputs]
    _add_outlines(figure, lines, line={"color": palette.GREY, "width": 1}, showlegend=False)
    meanings = {**{color: f"mostly by {name}" for name, color in COLORS.items()}, WHOLE: "one worker"}
    corners = [_corner(place, tops) for place in places]
    for color, meaning in meanings.items():
        cells = [
            _outline(left + x, top + y, wide, tall)
            for layer, (left, top) in zip(network.layers, corners, strict=True) if color_of(layer.degrees) == color
            for x, y, wide, tall in divided_cells(layer.degrees, *BOX_PX)
        ]  # fmt: skip
        if cells:
            _add_outlines(figure, cells, fill="toself", fillcolor=color, line={"color": "#fff", "width": 0.7}, name=meaning)
    middles, tops_px = [left + BOX_PX[0] / 2 for left, _ in corners], [top for _, top in corners]
    names, how = [_short(layer.name) for layer in network.layers], [words(layer.degrees) for layer in network.layers]
    for y, texts, where in ((tops_px, names, "top center"), ([top + BOX_PX[1] for top in tops_px], how, "bottom center")):
        figure.add_scatter(
            x=middles, y=y, text=list(map(plotly_escaped, texts)), mode="text", textposition=where, textfont={"size": 9}, showlegend=False,
            hoverinfo="skip",
        )  # fmt: skip
    figure.update_xaxes(range=[0, LAYER_COLUMNS * COLUMN_PX + 12], visible=False)
    figure.update_yaxes(range=[drawn_px, 0], visible=False)
    return finished(figure, network.title, drawn_px)


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
    """The upper left corner of a layer's rectangle, in pixels."""
    left = 12 + place.column * COLUMN_PX + (COLUMN_PX - BOX_PX[0]) / 2
    return left, tops[place.row] + place.lane * LANE_PX + 17


def _short(name: str) -> str:
    """The name of a layer, or the end of it that has room above its rectangle."""
    return (name.removesuffix(".conv").rpartition(".")[2] if len(name) > _LETTERS else name)[:_LETTERS]


Outline = list[tuple[float | None, float | None]]


def _outline(left: float, top: float, wide: float, tall: float) -> Outline:
    return [(left, top), (left + wide, top), (left + wide, top + tall), (left, top + tall), (left, top)]


def _add_outlines(figure: go.Figure, outlines: Sequence[Outline], **look: Any) -> None:
    """Add one trace of lines or areas, which a gap keeps apart."""
    points = [point for outline in outlines for point in (*outline, (None, None))]
    figure.add_scatter(x=[x for x, _ in points], y=[y for _, y in points], mode="lines", hoverinfo="skip", **look)


def _connection(source: Place, target: Place, tops: Sequence[float]) -> Outline:
    """The line from one layer to another, in the lane of the first until the column of the other; it continues in the next row."""
    left, right = 4.0, 12 + LAYER_COLUMNS * COLUMN_PX
    (start, _), (end, end_y) = _corner(source, tops), _corner(target, tops)
    line: Outline = []
    x = start + BOX_PX[0]
    for row in range(source.row, target.row + 1):
        y = _corner(Place(row, 0, source.lane), tops)[1] + BOX_PX[1] / 2
        if row == target.row:
            turn = max(x, end - (COLUMN_PX - BOX_PX[0]))
            line += [(x, y), (turn, y), (end, end_y + BOX_PX[1] / 2)]
        else:
            line += [(x, y), (right, y), (None, None)]
        x = left
    return line


#: Panels per row at most; their height, that of a chart's only one, and the room between rows, in pixels.
COLUMNS = 3
ROW_PX, SINGLE_PX, GAP_PX = 260, 420, 75
_MARKS = ("circle", "square", "diamond", "triangle-up", "triangle-down")


def chart_figure(chart: Chart) -> go.Figure:
    """The figure of a chart. Solid lines are predicted, dashed lines published."""
    count = len(chart.panels)
    columns = min(COLUMNS, count)
    rows = ceil(count / columns)
    drawn_px = rows * ROW_PX + (rows - 1) * GAP_PX if count > 1 else SINGLE_PX
    titles = [f"<b>{plotly_escaped(panel.title)}</b>" if panel.title else "" for panel in chart.panels]
    figure = make_subplots(rows, columns, subplot_titles=titles, horizontal_spacing=0.06, vertical_spacing=GAP_PX / drawn_px)
    looks = _looks(chart)
    for number, panel in enumerate(chart.panels):
        place = {"row": number // columns + 1, "col": number % columns + 1}
        for order, series in enumerate(panel.series):
            color, mark = looks[series.name, series.published]
            named = order == 0 and bool(series.names)
            figure.add_scatter(
                x=series.x, y=series.y, name=plotly_escaped(series.name), legendgroup=f"{series.name} {series.published}",
                mode="+".join(["lines"] * chart.joined + ["markers"] + ["text"] * named), text=_staggered(series.names) if named else None,
                textposition="bottom center", marker={"color": color, "symbol": mark, "size": 8},
                line={"color": color, "width": 2, "dash": "dash" if series.published else "solid"}, showlegend=False, **place,
            )  # fmt: skip
        if number % columns == 0:
            figure.update_yaxes(title_text=plotly_escaped(chart.y_label), **place)
        if number + columns >= count:
            figure.update_xaxes(title_text=plotly_escaped(chart.x_label), **place)
    first = {trace.legendgroup: trace for trace in reversed(figure.data)}
    for trace in first.values():
        trace.showlegend = True
    if chart.level is not None:
        figure.add_hline(chart.level, line={"color": palette.GREY, "width": 1.2})
    low, high = _y_range(chart)
    figure.update_yaxes(range=[log10(low), log10(high)] if chart.log_y else [low, high], type="log" if chart.log_y else "linear")
    figure.update_xaxes(type="log" if chart.log_x else "linear")
    if chart.ticks:
        figure.update_xaxes(tickvals=list(range(1, len(chart.ticks) + 1)), ticktext=list(map(plotly_escaped, chart.ticks)))
    figure.update_xaxes(gridcolor=palette.GRID, zeroline=False).update_yaxes(gridcolor=palette.GRID, zeroline=False)
    return finished(figure, chart.title, drawn_px)


def _staggered(names: Sequence[str]) -> list[str]:
    """Names of points, each a line lower than the one before, so that those of nearby points do not overlap."""
    return [f"{'<br>' * (place % 3)}{plotly_escaped(name)}" for place, name in enumerate(names)]


def _looks(chart: Chart) -> dict[tuple[str, bool], tuple[str, str]]:
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


DOCUMENT = "reproduction.json"


def write(folder: Path | str, document: Reproduction) -> Path:
    """Write the folder, its page last, and return the page's path. Raises SchedcastError if the folder cannot be written."""
    folder = Path(folder)
    check_writable(folder, folder=True)
    document.save(folder / DOCUMENT)  # first, because the folder is recognized by it
    for paper in document.papers:
        for shown in drawn_of(paper):
            write_picture(folder / _file(paper, shown), figure_of(shown))
    return write_atomic(folder / "index.html", page("Published and predicted", reproduction_sections(document, linked=True)))


def drawn_of(paper: Paper) -> list[Chart | DividedNetwork]:
    """The charts of `paper` that have points to draw, and its networks."""
    return [*(chart for chart in paper.charts if any(series.x for panel in chart.panels for series in panel.series)), *paper.networks]


def figure_of(shown: Chart | DividedNetwork) -> go.Figure:
    """The figure of a chart or of a network."""
    return chart_figure(shown) if isinstance(shown, Chart) else division_figure(shown)


def reproduction_sections(document: Reproduction, linked: bool = False) -> list[Section]:
    """One section per paper. `linked`: whether the files of the folder lie beside the page."""
    return [_paper_section(paper, linked) for paper in document.papers]


def _paper_section(paper: Paper, linked: bool) -> Section:
    address = paper.reference.rpartition(" ")[2]
    holding = sum(check.holds is True for check in paper.checks)
    judged = sum(check.holds is not None for check in paper.checks)
    drawn = drawn_of(paper)
    charts = [chart_html(figure_of(shown), shown.title, _file(paper, shown) if linked else "") for shown in drawn]
    return section(
        paper.title, f"{holding} of {judged} claims hold." if judged else "", "reproduction.html", reference=paper.reference,
        link=address if address.startswith("https://") else "", words=" ".join(reproduction_tables.about_words(paper)),
        tables=[_table_values(table) for table in paper.tables], checks=[reproduction_tables.check_words(check) for check in paper.checks],
        charts=charts,
        measured=[_measured_values(Validation.model_validate(measured)) for measured in paper.measured], notes=paper.notes,
        data=document_data(Reproduction(papers=(paper,))),
        files=[(_file(paper, shown), f"{shown.title} (SVG)") for shown in drawn] if linked else (),
    )  # fmt: skip


def _table_values(table: Table) -> dict[str, Any]:
    rows = reproduction_tables.cells(table)
    return {"title": table.title, "rows": rows, "text_columns": reproduction_tables.text_columns(rows), "about": table.about}


def _measured_values(validation: Validation) -> dict[str, Any]:
    rows = [tables.folded(cells) for cells in tables.validation_cells(validation)]
    return {"heading": sentences.job_words(validation), "rows": rows, "text_columns": first_and_last(rows)}


def _file(paper: Paper, shown: Chart | DividedNetwork) -> str:
    """The name of the file of a picture."""
    return f"{paper.name}-{shown.name}.svg"
