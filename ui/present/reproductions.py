"""A reproduction in tables, sentences and charts, and the folder of its page.

index.html                      the page; needs no network and no other file
reproduction.json               the document of `schedcast reproduce --json`
PAPER-CHART.svg                 the pictures of charts, and of networks

In the picture of a network whose layers are divided, every layer is a rectangle, cut as its output is among the workers. Cuts by images and
by width are vertical, cuts by channels and by height horizontal. Images and channels make separate blocks; height and width cut a block
without a gap. Layers run from left to right and continue in the next row; branches lie below each other.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, log10
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from traces import units
from traces.documents.comparison import Validation
from traces.documents.reproduction import DEMONSTRATION, OK, Chart, Check, DividedLayer, DividedNetwork, Paper, Reproduction, Verdict
from traces.documents.reproduction import Figure as FigureOfPaper
from traces.documents.reproduction import Table as TableOfPaper
from traces.files import check_writable
from ui.present import labels
from ui.present.blocks import Block, Figure, Group, Note, Section, Sentences, Table, first_and_last
from ui.present.blocks import markdown as in_markdown
from ui.present.labels import source_words
from ui.present.validations import folded, job_words, validation_cells, validation_table

if TYPE_CHECKING:
    import plotly.graph_objects as go

#: Shorter times are rounding errors of sums and print as 0.
_NOTHING_S = 1e-7
#: Units that are named in a column's head, because its cells are bare numbers.
_IN_HEAD = ("s", "ms")
#: Speed-ups from _FEW on print without decimals; counts from _MANY on print with four digits.
_FEW, _MANY = 1e3, 1e6
#: Shares closer to 1 than this print with three decimals of a percent.
_NEARLY = 0.01
#: A table with a time at least as long as this is in seconds instead of ms.
_LONG_S = 10.0
#: By `Check.verdict`.
VERDICTS: Mapping[Verdict, str] = {
    "holds": "holds",
    "other": "holds, but not by this mechanism",
    "refuted": "does not hold",
    "open": "cannot be judged",
    "identity": "identity",
}
#: The column with the status of rows that have no result.
NOTE = "note"


DOCUMENT = "reproduction.json"


def write(folder: Path | str, document: Reproduction) -> Path:
    """Write the folder, its page last, and return the page's path. Raises SchedcastError if the folder cannot be written."""
    from ui.present.page import write_page  # here, because it loads plotly

    folder = Path(folder)
    check_writable(folder, folder=True)
    document.save(folder / DOCUMENT)  # first, because the folder is recognized by it
    return write_page(folder, "Published and predicted", *sections(document, linked=True))


def sections(document: Reproduction, linked: bool = False) -> list[Section]:
    """One section per paper. `linked`: whether the files of the folder are next to the page."""
    return [_section(paper, linked) for paper in document.papers]


def _section(paper: Paper, linked: bool) -> Section:
    files = [(_file(paper, shown), f"{shown.title} (SVG)") for shown in drawn_of(paper)] if linked else ()
    return Section(paper.title, blocks(paper, linked), Reproduction(papers=(paper,)), DOCUMENT, files, holding_words(paper))


def holding_words(paper: Paper) -> str:
    """How many claims hold, and by what; empty if none can be judged."""
    count = Counter(check.verdict for check in paper.checks)
    judged = count["holds"] + count["other"] + count["refuted"]
    if not judged:
        return ""
    words = [f"{count['holds']} of {judged} claims hold"]
    others, identities = count["other"], count["identity"]
    words += [f"{others} more {'holds' if others == 1 else 'hold'}, but not by the paper's mechanism"] * bool(others)
    words += [f"{identities} {'is an identity' if identities == 1 else 'are identities'}"] * bool(identities)
    return f"{'; '.join(words)}."


def blocks(paper: Paper, linked: bool = False) -> list[Block]:
    """The finding, the claims, and, folded, tables; charts, measurements and notes. `linked`: whether pictures are next to the page."""
    address = paper.reference.rpartition(" ")[2]
    demonstrations, others = _split(paper)
    return [
        *([Sentences([paper.finding], listed=False, style="bold", mark="")] if paper.finding else []),
        Note(paper.reference, address if address.startswith("https://") else ""),
        Sentences(about_words(paper), listed=False, mark=""),
        *(Group(table.title, [_table(table)]) for table in demonstrations),
        *([Group("What the paper claims", [_claims(paper.checks)])] if paper.checks else []),
        *(Group(table.title, [_table(table)], folded=True) for table in others),
        *(_chart(shown, _file(paper, shown) if linked else "") for shown in drawn_of(paper)),
        *(_measured(Validation.model_validate(document)) for document in paper.measured),
        Group("", [Sentences(paper.notes)]),
    ]


def _claims(checks: Sequence[Check]) -> Sentences:
    """Each claim with its verdict, above its figures. Their texts are too long for the columns of `claim_cells`, except in Markdown."""
    claims, figures = zip(*map(check_words, checks), strict=True)
    styles = {number: "yellow" for number, check in enumerate(checks) if check.verdict != "holds"}
    return Sentences(claims, styles=styles, below=figures)


def claim_cells(check: Check) -> dict[str, str]:
    """The cells of a claim."""
    return {
        "claim": check.claim,
        "published": check.published or units.NONE,
        "predicted": check.said,
        "executed": check.executed or units.NONE,
        "mechanism off": check.without or units.NONE,
        "verdict (what the paper credits)": verdict_words(check),
    }


def verdict_words(check: Check) -> str:
    """The verdict, with the mechanism that the paper credits."""
    verdict = VERDICTS[check.verdict]
    if not check.mechanism or check.verdict == "open":
        return verdict
    shown = " by this mechanism" if check.verdict == "holds" and check.holds_without is False else ""
    return f"{verdict}{shown} ({check.mechanism})"


def _chart(shown: Chart | DividedNetwork, picture: str) -> Figure:
    return Figure(lambda: figure_of(shown), shown.title, picture)


def _measured(validation: Validation) -> Group:
    rows = [folded(cells) for cells in validation_cells(validation)]
    table = Table(rows, first_and_last(rows), narrow=validation_table([validation]))
    return Group(f"Measured: {job_words(validation)}", [table])


def _table(table: TableOfPaper) -> Table:
    """A table without its title. In a terminal, a row without a result is dim; its note is printed below the table."""
    rows, left = cells(table), text_columns(cells(table))
    shown = [{head: text for head, text in row.items() if head != NOTE} for row in rows]
    styles = {n: "dim" for n, row in enumerate(rows) if row.get(NOTE)}
    narrow = Table(shown, left, styles=styles, about="\n".join([table.about, *_notes(table)]))
    return Table(rows, left, about=table.about, asks=[row.asks for row in table.rows], narrow=narrow)


def _file(paper: Paper, shown: Chart | DividedNetwork) -> str:
    """The name of the file of a picture."""
    return f"{paper.name}-{shown.name}.svg"


def cells(table: TableOfPaper) -> list[dict[str, str]]:
    """One dictionary per row, column name to text.

    A quantity that the paper publishes in any row has columns for published, predicted and their ratio; others have one column. If any row
    has no result, the last column says why.
    """
    labels = list(dict.fromkeys(name for row in table.rows for name in row.labels))
    unit_of = {figure.name: figure.unit for row in table.rows for figure in row.figures}
    printed = {figure.name for row in table.rows for figure in row.figures if figure.published is not None}
    ranged = {figure.name for row in table.rows for figure in row.figures if figure.interval is not None}
    noted = any(row.status != OK for row in table.rows)
    times = _time_unit(table)
    rows = []
    for row in table.rows:
        by_name = {figure.name: figure for figure in row.figures}
        line = {name: row.labels.get(name, "") for name in labels}
        for name, unit in unit_of.items():
            figure = by_name.get(name, FigureOfPaper(name=name, unit=unit))
            line |= _figure_cells(figure, times if unit == "s" else unit, name in printed, name in ranged)
        rows.append(line | ({NOTE: "" if row.status == OK else row.status} if noted else {}))
    return rows


def _time_unit(table: TableOfPaper) -> str:
    """The unit of the table's times: ms or s."""
    times = [figure for row in table.rows for figure in row.figures if figure.unit == "s"]
    longest = max((abs(value) for f in times for value in (f.predicted, f.published) if value is not None), default=0.0)
    return "s" if longest >= _LONG_S and all(figure.interval is None for figure in times) else "ms"


def _figure_cells(figure: FigureOfPaper, unit: str, printed: bool, ranged: bool) -> dict[str, str]:
    head = f"{figure.name} {unit}" if unit in _IN_HEAD else figure.name
    if not printed:
        texts = {head: _value(figure.predicted, unit)}
    else:
        texts = {f"{head} published": _value(figure.published, unit), f"{head} predicted": _value(figure.predicted, unit)}
        if figure.unit != "count":
            texts[f"{figure.name} pred. / publ."] = units.NONE if figure.ratio is None else f"{figure.ratio:.2f}"
    return texts | ({f"{figure.name} 90 % interval": units.interval(figure.interval)} if ranged else {})


def _value(value: float | None, unit: str) -> str:
    if value is None:
        return units.NONE
    if unit == "s":
        return units.digits(value)
    if unit == "ms":
        return units.ms(value) if abs(value) >= _NOTHING_S else "0"
    if unit == "x":
        return f"{value:.0f}x" if value >= _FEW else f"{value:.3f}x"
    if unit == "share":
        return f"{100 * value:.3f} %" if 0 < 1 - value < _NEARLY else units.percent(value, signed=False)
    return units.memory(round(value)) if unit == "bytes" else f"{value:.4g}" if value >= _MANY else f"{value:g}"


def check_words(check: Check) -> tuple[str, str]:
    """The claim with its verdict, then what the paper credits and the figures, and why the claim does not hold."""
    parts = {
        "Credited": check.mechanism,
        "Published": check.published,
        "Predicted": check.said,
        "Executed": check.executed,
        "Mechanism off": check.without,
    }
    figures = "; ".join(f"{name.lower() if number else name}: {text}" for number, (name, text) in enumerate(parts.items()) if text)
    verdict = VERDICTS[check.verdict]
    return f"{verdict}: {check.claim}", f"{figures}." + (f" Why not: {check.reason}." if check.reason else "")


def about_words(paper: Paper) -> list[str]:
    """The setting of the predictions, their machine, and the source of their costs."""
    lines = [paper.setting]
    if paper.shares is not None:
        costs = source_words(paper.shares, here=False)
        lines.append(f"Predicted for {paper.machine}; {paper.fitted or 'nothing'} is fitted to the paper. Predicted task time: {costs}.")
    return lines


#: What precedes the papers in `markdown`.
_BEGIN = """# Papers: published and predicted

```console
schedcast reproduce                          # lists the papers
schedcast reproduce fusion --out fusion      # claims and tables here; page, pictures and JSON in the folder
schedcast reproduce fusion --fresh           # predicts all of it again; a minute or two
schedcast reproduce fusion --measure         # also runs what this machine can run of it
```

Reproductions predict the card that the paper used, from the model alone: no calibration and no GPU. A claim is judged by the predictions.
Beside it, where the mechanism that the paper credits can be switched off, stands the same judgment without it: a gain that stays is another
mechanism's. An identity follows from counting alone, and is not counted among the claims that hold. Where a claim does not hold, the cause
is an experiment of the simulator or of this machine, a CPU with two cores. The trainings of `reproduce pipeline --measure` take half an
hour; after an interruption, the next run makes those that are left. This page is generated: `make papers` predicts all papers again and
writes it.
"""


def markdown(papers: Sequence[Paper], pictures: Mapping[str, str] = MappingProxyType({})) -> str:
    """The page about all papers: how many claims hold, and for each paper its claims; its tables, measurements and notes are folded.

    `pictures`: the address of a picture of the idea, by the paper's name.
    """
    overview = [_overview(f"[{paper.name}](#{paper.name})", paper.checks) for paper in papers]
    overview.append(_overview("all", [check for paper in papers for check in paper.checks]))
    return "\n".join([_BEGIN, *in_markdown(overview), *(line for paper in papers for line in _paper_lines(paper, pictures))]) + "\n"


def _overview(name: str, checks: Sequence[Check]) -> dict[str, str]:
    """How many claims have each verdict."""
    count = Counter(check.verdict for check in checks)
    shown = sum(check.verdict == "holds" and check.holds_without is False for check in checks)
    return {
        "paper": name,
        "claims": str(len(checks) - count["identity"]),
        "hold": str(count["holds"]),
        "of these, not without the mechanism": str(shown),
        "hold, but not by this mechanism": str(count["other"]),
        "do not hold": str(count["refuted"]),
        "cannot be judged": str(count["open"]),
        "identities": str(count["identity"]),
    }


def _split(paper: Paper) -> tuple[list[TableOfPaper], list[TableOfPaper]]:
    """The paper's tables: its small job's, which are shown first, and the others."""
    demonstrations = [table for table in paper.tables if table.name == DEMONSTRATION]
    return demonstrations, [table for table in paper.tables if table.name != DEMONSTRATION]


def _paper_lines(paper: Paper, pictures: Mapping[str, str]) -> Iterator[str]:
    yield from ("", f"## {paper.name}", "", *([f"**{paper.finding}**", ""] if paper.finding else []))
    yield from (f"*{paper.title}* ({paper.reference}).", *about_words(paper))
    yield from ("", f"`schedcast reproduce {paper.name}`", "")
    demonstrations, others = _split(paper)
    for table in demonstrations:
        yield from (f"**{table.title}.** {table.about}", "", *in_markdown(cells(table)), "", f"`{asking_command(table)}`", "")
        yield from ((f"![{table.title}, task by task]({pictures[paper.name]})", "") if paper.name in pictures else ())
    yield from in_markdown([claim_cells(check) for check in paper.checks])
    if causes := [f"- {check.claim}: {check.reason}." for check in paper.checks if check.reason]:
        yield from _folded_lines("Why the others do not hold", causes)
    for table in others:
        yield from _folded_lines(table.title, [*in_markdown(cells(table)), "", table.about])
    for document in paper.measured:
        validation = Validation.model_validate(document)
        yield from _folded_lines(f"Measured: {job_words(validation)}", in_markdown(validation_cells(validation)))
    if paper.notes:
        yield from _folded_lines("Notes", [f"- {note}" for note in paper.notes])


def asking_command(table: TableOfPaper) -> str:
    """The command that asks for the steps of the first row."""
    options = (f"--{name} {value}" for name, values in table.rows[0].asks.items() for value in values)
    return " ".join(["schedcast predict", *options])


def _folded_lines(title: str, lines: Iterable[str]) -> Iterator[str]:
    """Lines that a page shows on request."""
    yield from ("", '<details markdown="1">', f"<summary>{title}</summary>", "", *lines, "", "</details>")


def _notes(table: TableOfPaper) -> list[str]:
    """One line per status other than ok: the rows that have it, then the status."""
    rows_by_status: dict[str, list[str]] = {}
    for row in table.rows:
        if row.status != OK:
            rows_by_status.setdefault(row.status, []).append(" ".join(row.labels.values()))
    return [f"{'; '.join(names)}: {status}" for status, names in rows_by_status.items()]


def text_columns(rows: list[dict[str, str]]) -> set[str]:
    """The columns whose cells are words instead of numbers."""
    return {head for head in (rows[0] if rows else ()) if head == NOTE or not _numeric([row[head] for row in rows])}


def _numeric(texts: list[str]) -> bool:
    return all(text == units.NONE or text[:1].isdigit() or text[:1] in "+-" for text in texts if text)


def drawn_of(paper: Paper) -> list[Chart | DividedNetwork]:
    """The charts of `paper` that have points to draw, and its networks."""
    return [*(chart for chart in paper.charts if any(series.x for panel in chart.panels for series in panel.series)), *paper.networks]


def figure_of(shown: Chart | DividedNetwork) -> "go.Figure":
    """The figure of a chart or of a network."""
    return chart_figure(shown) if isinstance(shown, Chart) else division_figure(shown)


#: Pixels: width of a column of layers and height of a lane, and of a layer's rectangle in them; and between rows.
COLUMN_PX, LANE_PX, BOX_PX, ROW_GAP_PX = 98.0, 66.0, (72.0, 30.0), 22.0
LAYER_COLUMNS = 12
#: Characters of a layer's name that fit above its rectangle.
_LETTERS = 17
_NAMES = ("image", "channel", "height", "width")
#: By dimension, the color of layers that are divided along it more than along any other.
COLORS: Mapping[str, str] = {
    "image": labels.PHASE["forward"],
    "channel": labels.PHASE["backward"],
    "height": labels.PHASE["update"],
    "width": labels.PHASE["transfer"],
}
WHOLE = labels.OTHER


@dataclass(frozen=True)
class Place:
    """Where a layer is drawn: row, column in the row, lane in the row."""

    row: int
    column: int
    lane: int


def division_figure(network: DividedNetwork) -> "go.Figure":
    """Every layer of a network with what each worker has of it, and which layers read which."""
    import plotly.graph_objects as go

    places = places_of(network.layers)
    lanes = _lanes_of(network.layers, places)
    tops = [sum(lanes[:row]) * LANE_PX + row * ROW_GAP_PX for row in range(len(lanes))]
    drawn_px = tops[-1] + lanes[-1] * LANE_PX
    figure = go.Figure()
    lines = [_connection(places[source], places[n], tops) for n, layer in enumerate(network.layers) for source in layer.inputs]
    _add_outlines(figure, lines, line={"color": labels.GREY, "width": 1}, showlegend=False)
    meanings = {**{color: f"mostly by {name}" for name, color in COLORS.items()}, WHOLE: "one worker"}
    corners = [_corner(place, tops) for place in places]
    for color, meaning in meanings.items():
        parts = [
            _outline(left + x, top + y, wide, tall)
            for layer, (left, top) in zip(network.layers, corners, strict=True) if color_of(layer.degrees) == color
            for x, y, wide, tall in divided_cells(layer.degrees, *BOX_PX)
        ]  # fmt: skip
        if parts:
            _add_outlines(figure, parts, fill="toself", fillcolor=color, line={"color": "#fff", "width": 0.7}, name=meaning)
    middles, tops_px = [left + BOX_PX[0] / 2 for left, _ in corners], [top for _, top in corners]
    names, how = [_short(layer.name) for layer in network.layers], [division_words(layer.degrees) for layer in network.layers]
    for y, texts, where in ((tops_px, names, "top center"), ([top + BOX_PX[1] for top in tops_px], how, "bottom center")):
        figure.add_scatter(
            x=middles, y=y, text=list(map(labels.plotly_escaped, texts)), mode="text", textposition=where, textfont={"size": 9},
            showlegend=False, hoverinfo="skip",
        )  # fmt: skip
    figure.update_xaxes(range=[0, LAYER_COLUMNS * COLUMN_PX + 12], visible=False)
    figure.update_yaxes(range=[drawn_px, 0], visible=False)
    return labels.finished(figure, network.title, drawn_px)


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


def division_words(degrees: Sequence[int]) -> str:
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


def _add_outlines(figure: "go.Figure", outlines: Sequence[Outline], **look: Any) -> None:
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


def chart_figure(chart: Chart) -> "go.Figure":
    """The figure of a chart. Solid lines are predicted, dashed lines published."""
    from plotly.subplots import make_subplots

    count = len(chart.panels)
    columns = min(COLUMNS, count)
    rows = ceil(count / columns)
    drawn_px = rows * ROW_PX + (rows - 1) * GAP_PX if count > 1 else SINGLE_PX
    titles = [f"<b>{labels.plotly_escaped(panel.title)}</b>" if panel.title else "" for panel in chart.panels]
    figure = make_subplots(rows, columns, subplot_titles=titles, horizontal_spacing=0.06, vertical_spacing=GAP_PX / drawn_px)
    looks = _looks(chart)
    for number, panel in enumerate(chart.panels):
        place = {"row": number // columns + 1, "col": number % columns + 1}
        for order, series in enumerate(panel.series):
            color, mark = looks[series.name, series.published]
            named = order == 0 and bool(series.names)
            figure.add_scatter(
                x=series.x, y=series.y, name=labels.plotly_escaped(series.name), legendgroup=f"{series.name} {series.published}",
                mode="+".join(["lines"] * chart.joined + ["markers"] + ["text"] * named), text=_staggered(series.names) if named else None,
                textposition="bottom center", marker={"color": color, "symbol": mark, "size": 8},
                line={"color": color, "width": 2, "dash": "dash" if series.published else "solid"}, showlegend=False, **place,
            )  # fmt: skip
        if number % columns == 0:
            figure.update_yaxes(title_text=labels.plotly_escaped(chart.y_label), **place)
        if number + columns >= count:
            figure.update_xaxes(title_text=labels.plotly_escaped(chart.x_label), **place)
    first = {trace.legendgroup: trace for trace in reversed(figure.data)}
    for trace in first.values():
        trace.showlegend = True
    if chart.level is not None:
        figure.add_hline(chart.level, line={"color": labels.GREY, "width": 1.2})
    low, high = _y_range(chart)
    figure.update_yaxes(range=[log10(low), log10(high)] if chart.log_y else [low, high], type="log" if chart.log_y else "linear")
    figure.update_xaxes(type="log" if chart.log_x else "linear")
    if chart.ticks:
        figure.update_xaxes(tickvals=list(range(1, len(chart.ticks) + 1)), ticktext=list(map(labels.plotly_escaped, chart.ticks)))
    figure.update_xaxes(gridcolor=labels.GRID, zeroline=False).update_yaxes(gridcolor=labels.GRID, zeroline=False)
    return labels.finished(figure, chart.title, drawn_px)


def _staggered(names: Sequence[str]) -> list[str]:
    """Names of points, each a line lower than the one before, so that those of nearby points do not overlap."""
    return [f"{'<br>' * (place % 3)}{labels.plotly_escaped(name)}" for place, name in enumerate(names)]


def _looks(chart: Chart) -> dict[tuple[str, bool], tuple[str, str]]:
    """The color and mark of every series, by (name, published)."""
    names = list(dict.fromkeys((s.name, s.published) for panel in chart.panels for s in panel.series))
    shades = [*labels.PHASE.values(), labels.OTHER]
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
