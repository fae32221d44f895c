"""The static picture of a network whose layers are divided: every layer is a rectangle, cut as its output is among the workers.

Cuts by images and by width are vertical, cuts by channels and by height horizontal. Images and channels make separate blocks; height and
width cut a block without a gap. Layers run from left to right and continue in the next row; branches lie below each other.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.patches import Patch, Rectangle

from traces.documents.reproduction import DividedLayer, DividedNetwork
from ui.present.figures import palette
from ui.present.figures.canvas import INK, SOFT, add_legend, hide_frame, new_figure, save

#: Inches: width of a column of layers and height of a lane, and of a layer's rectangle in them; between rows; above and below all rows.
COLUMN_IN, LANE_IN, BOX_IN, ROW_GAP_IN, TOP_IN, BOTTOM_IN = 0.98, 0.66, (0.72, 0.3), 0.22, 1.0, 0.2
COLUMNS = 12
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
    lanes = _lanes(network.layers, places)
    height_in = TOP_IN + sum(lanes) * LANE_IN + (len(lanes) - 1) * ROW_GAP_IN + BOTTOM_IN
    figure = new_figure(height_in, network.title)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(0, figure.get_figwidth())
    axes.set_ylim(height_in, 0)
    axes.axis("off")
    hide_frame(axes)
    tops = [TOP_IN + sum(lanes[:row]) * LANE_IN + row * ROW_GAP_IN for row in range(len(lanes))]
    corners = [_corner(place, tops) for place in places]
    for number, layer in enumerate(network.layers):
        for source in layer.inputs:
            _line(axes, places[source], places[number], tops)
    for layer, corner in zip(network.layers, corners, strict=True):
        _draw(axes, layer, corner)
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
    return [Place(*divmod(depth, COLUMNS), lane) for depth, lane in zip(depths, lanes, strict=True)]


def color_of(degrees: Sequence[int]) -> str:
    """The color of a layer: that of the dimension with the largest degree."""
    most = max(degrees)
    return WHOLE if most == 1 else COLORS[_NAMES[list(degrees).index(most)]]


def cells(degrees: Sequence[int], width: float, height: float) -> list[tuple[float, float, float, float]]:
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


def _lanes(layers: Sequence[DividedLayer], places: Sequence[Place]) -> list[int]:
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


def _draw(axes: Axes, layer: DividedLayer, corner: tuple[float, float]) -> None:
    left, top = corner
    width, height = BOX_IN
    color = color_of(layer.degrees)
    for x, y, wide, tall in cells(layer.degrees, width, height):
        axes.add_patch(Rectangle((left + x, top + y), wide, tall, facecolor=color, edgecolor="white", linewidth=0.5))
    middle = left + width / 2
    name = layer.name.removesuffix(".conv").rpartition(".")[2] if len(layer.name) > _LETTERS else layer.name
    axes.text(middle, top - 0.025, name[:_LETTERS], fontsize=6, ha="center", va="bottom", color=INK, parse_math=False)
    axes.text(middle, top + height + 0.02, words(layer.degrees), fontsize=6, ha="center", va="top", color=SOFT, parse_math=False)


def _line(axes: Axes, source: Place, target: Place, tops: Sequence[float]) -> None:
    """The line from one layer to another, in the lane of the first until the column of the other; it continues in the next row."""
    left, right = 0.04, 0.12 + COLUMNS * COLUMN_IN
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
