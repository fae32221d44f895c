"""Figures of plotly as pictures (.svg), in which they look as on a page: without a browser, and in black on white, for use outside of
pages.

Drawn are the kinds of traces that our pictures have: lines, marks, areas and words (`Scatter`), bars that lie (`Bar`) and waterfalls.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape, unescape
from itertools import pairwise
from math import ceil, floor, isfinite, log10
from pathlib import Path
from textwrap import wrap
from types import MappingProxyType
from typing import Any

import plotly.graph_objects as go

from traces.files import write_atomic

#: Pixels: the width of a picture, and the room around what is drawn.
WIDTH, RIGHT, TOP, ROW = 1200, 24, 14, 22
INK, FAINT = "#1F2430", "#E3E6EB"
#: The size of letters and of a title's, and how many of these a line has at most.
LETTER, TITLE_LETTER, TITLE_CHARACTERS = 13, 18, 100
_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_DASHES = MappingProxyType({"dash": "6 4", "dot": "2 3"})
#: The height of a figure without a stated height.
_USUAL_PX = 450


def write_picture(path: Path | str, *figures: go.Figure, heading: str = "") -> Path:
    """Write the picture of figures, and return its path. Raises SchedcastError if it cannot be written."""
    return write_atomic(path, svg(*figures, heading=heading))


def svg(*figures: go.Figure, heading: str = "") -> str:
    """The picture of figures, one below the other, with a heading above all of them."""
    drawings, height = [], ROW * 1.0 if heading else 0.0
    for figure in figures:
        drawing = _Drawing(figure, height)
        drawings.append(drawing)
        height = drawing.bottom
    if heading:
        drawings[0].text(14, TOP + 6, [heading])
    title = _xml(" ".join(filter(None, [heading, *_lines(figures[0].layout.title.text)])))
    parts = "\n".join(part for drawing in drawings for part in drawing.parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{_n(height)}" viewBox="0 0 {WIDTH} {_n(height)}" role="img"'
        f' aria-label="{title}" font-family="system-ui, \'Segoe UI\', sans-serif" fill="{INK}">\n<title>{title}</title>\n'
        f'<rect width="{WIDTH}" height="{_n(height)}" fill="#fff"/>\n{parts}\n</svg>\n'
    )


def text_width(text: str, letter: float = LETTER) -> float:
    """About how many pixels a line of text takes."""
    return letter * sum(1.0 if character > "\u2e80" else 0.62 for character in text)


@dataclass(frozen=True)
class _Axis:
    """From values to pixels. `names`: the categories, if it has them; `log`: `low` and `high` are exponents of ten."""

    layout: Any
    low: float
    high: float
    start: float
    end: float
    names: tuple[str, ...] = ()

    @property
    def log(self) -> bool:
        return self.layout.type == "log"

    def at(self, value: Any) -> float:
        """The pixel of a value."""
        value = self.names.index(value) if isinstance(value, str) else float(value)
        if self.log:
            value = log10(value) if value > 0 else self.low
        return self.start + (value - self.low) / ((self.high - self.low) or 1.0) * (self.end - self.start)

    def ticks(self) -> list[tuple[Any, str]]:
        """Values and labels."""
        if self.layout.visible is False:
            return []
        if self.layout.tickvals is not None:
            return list(zip(self.layout.tickvals, self.layout.ticktext or map(str, self.layout.tickvals), strict=True))
        if self.names:
            return [(name, name) for name in self.names]
        low, high = sorted((self.low, self.high))
        if self.log:
            parts = (1,) if high - low > 2 else (1, 2, 5)
            values = [part * 10.0**power for power in range(floor(low), ceil(high) + 1) for part in parts]
            return [(value, _power(value)) for value in values if low - 1e-9 <= log10(value) <= high + 1e-9]
        room = abs(self.end - self.start) / (80 if self.layout.plotly_name.startswith("x") else 32)
        step = _step((high - low) / max(1.0, room))
        return [(step * number, f"{step * number:,.10g}") for number in range(ceil(low / step - 1e-9), floor(high / step + 1e-9) + 1)]


def _step(least: float) -> float:
    """The smallest step of ticks that is not below `least`: 1, 2 or 5 times a power of ten."""
    power = 10.0 ** floor(log10(least)) if least > 0 else 1.0
    return next(part * power for part in (1, 2, 5, 10) if part * power >= least * (1 - 1e-9))


def _power(value: float) -> str:
    """The label of a logarithmic axis' tick; large ones are powers of ten."""
    return f"{value:.6g}" if value < 1e5 or log10(value) % 1 > 1e-9 else f"10{str(round(log10(value))).translate(_SUPERSCRIPT)}"


def _values(trace: Any, letter: str) -> list[Any]:
    """What an axis has to show of a trace, with the ends of its intervals and the starts of its bars."""
    values = [value for value in getattr(trace, letter) if value is not None] if getattr(trace, letter) is not None else []
    error = getattr(trace, f"error_{letter}", None)
    if error is not None and error.array is not None:
        values += [value + more for value, more in zip(values, error.array, strict=True)]
        values += [value - less for value, less in zip(values[: len(error.array)], error.arrayminus, strict=True)]
    if trace.type == "bar" and letter == "x":
        starts = [0.0] * len(values) if trace.base is None else list(trace.base)
        values = [end for start, length in zip(starts, values, strict=True) for end in (start, start + length)]
    return [value for value in values if isinstance(value, str) or isfinite(value)]


class _Drawing:
    """One figure, `top` pixels below the upper edge. `parts` are the elements, and `bottom` is where the figure ends."""

    def __init__(self, figure: go.Figure, top: float):
        self.parts: list[str] = []
        self.figure, layout = figure, figure.layout
        margin = layout.margin
        drawn_px = (layout.height or _USUAL_PX) - (margin.t or 0) - (margin.b or 0)
        y = self._head(top + TOP)
        y += 20 if any(note.yref == "paper" or note.yanchor == "bottom" for note in layout.annotations) else 0
        self.box = (0.0, y, WIDTH - RIGHT, y + drawn_px)
        ranges = {name: self._range(name) for name in self._axes()}
        left = max((self._beside(name, ranges[name]) for name in ranges if self._is_first(name)), default=0.0)
        self.box = (left + 12, y, WIDTH - RIGHT, y + drawn_px)
        self.axes = {name: self._axis(name, *ranges[name]) for name in ranges}
        below = [self._below(name) for name in self.axes if name[0] == "x"]
        self.bottom = self.box[3] + max([16.0, *below])
        for name in self.axes:
            self._frame(name)
        previous = None
        for shape in layout.shapes:
            if shape.layer == "below":
                self._shape(shape)
        for trace in figure.data:
            _DRAW[trace.type](self, trace, self.axes[trace.xaxis or "x"], self.axes[trace.yaxis or "y"], previous)
            previous = trace
        for shape in layout.shapes:
            if shape.layer != "below":
                self._shape(shape)
        for note in layout.annotations:
            self._annotation(note)

    def _axes(self) -> list[str]:
        """The axes that have traces: x, y, x2, y2, ..."""
        return list(dict.fromkeys(name for trace in self.figure.data for name in (trace.xaxis or "x", trace.yaxis or "y")))

    def _layout(self, name: str) -> Any:
        return self.figure.layout[f"{name[0]}axis{name[1:]}"]

    def _of(self, name: str) -> list[Any]:
        """The traces of an axis."""
        return [trace for trace in self.figure.data if (getattr(trace, f"{name[0]}axis") or name[0]) == name]

    def _range(self, name: str) -> tuple[float, float, tuple[str, ...]]:
        """Both ends of an axis, and its categories."""
        axis = self._layout(name)
        values = [value for trace in self._of(name) for value in _values(trace, name[0])]
        names = tuple(dict.fromkeys(value for value in values if isinstance(value, str)))
        letter = name[0]
        values += [s[f"{letter}{end}"] for s in self.figure.layout.shapes if (s[f"{letter}ref"] or letter) == name for end in "01"]
        if axis.range is not None:
            low, high = axis.range
        elif names:
            low, high = -0.5, len(names) - 0.5
        else:
            if axis.type == "log":
                values = [log10(value) for value in values if value > 0]
            low, high = min(values, default=0.0), max(values, default=1.0)
            room = 0.05 * (high - low) or 0.5
            to_zero = axis.rangemode == "tozero" and axis.type != "log" and low >= 0
            low, high = 0.0 if to_zero else low - room, high + room
        return (high, low, names) if axis.autorange == "reversed" else (low, high, names)

    def _axis(self, name: str, low: float, high: float, names: tuple[str, ...]) -> _Axis:
        return _Axis(self._layout(name), low, high, *self._span(name), names)

    def _span(self, name: str) -> tuple[float, float]:
        """The pixels from which and to which an axis goes."""
        left, top, right, bottom = self.box
        start, end = (left, right) if name[0] == "x" else (bottom, top)
        low, high = self._layout(name).domain or (0.0, 1.0)
        return start + low * (end - start), start + high * (end - start)

    def _is_first(self, name: str) -> bool:
        """Whether it is a y axis at the left edge."""
        if name[0] != "y":
            return False
        partner = self._layout(self._layout(name).anchor or "x")
        return partner.domain is None or partner.domain[0] < 0.01

    def _labels(self, axis: _Axis) -> list[tuple[Any, list[str]]]:
        """The ticks of an axis with the lines of their labels."""
        return [] if axis.layout.showticklabels is False else [(value, _lines(label)) for value, label in axis.ticks()]

    def _beside(self, name: str, ends: tuple[float, float, tuple[str, ...]]) -> float:
        """Pixels that the labels and the title of a y axis take."""
        axis = self._axis(name, *ends)
        widest = max((text_width(line) for _, label in self._labels(axis) for line in label), default=0.0)
        return widest + 8 + (ROW if axis.layout.title.text and axis.layout.visible is not False else 0)

    def _below(self, name: str) -> float:
        """Pixels that the labels and the title of an x axis take below the figure, if it is at its bottom edge."""
        axis = self.axes[name]
        partner = self._layout(axis.layout.anchor or "y")
        if partner.domain is not None and partner.domain[0] > 0.01:
            return 0.0
        labels = max((len(label) for _, label in self._labels(axis)), default=0)
        return 14 + 16 * labels + (17 * len(_lines(axis.layout.title.text)) if axis.layout.title.text else 0)

    def _head(self, y: float) -> float:
        """Draw the title and the legend. Returns where they end."""
        for line in wrap(" ".join(_lines(self.figure.layout.title.text)), TITLE_CHARACTERS):
            self.text(14, y + 10, [line], letter=TITLE_LETTER, bold=True)
            y += ROW + 2
        x, entries = 14.0, self._entries()
        for trace in entries:
            words = _lines(trace.name)[0]
            wide = 30 + text_width(words) + 16
            if x > 14 and x + wide > WIDTH:
                x, y = 14.0, y + ROW
            self._mark(trace, x, y + 10)
            self.text(x + 30, y + 10, [words])
            x += wide
        return y + (ROW if entries else 0) + 8

    def _entries(self) -> list[Any]:
        """The traces that the legend names."""
        if self.figure.layout.showlegend is False:
            return []
        named = [trace for trace in self.figure.data if trace.name and trace.showlegend is not False]
        return list({trace.legendgroup or trace.name: trace for trace in reversed(named)}.values())[::-1]

    def _mark(self, trace: Any, x: float, y: float) -> None:
        """Draw a trace's entry in the legend."""
        if trace.type == "bar" or trace.fill == "toself" or trace.fill == "tozeroy":
            color = self._fill(trace.marker) if trace.type == "bar" else trace.fillcolor
            self.parts.append(f'<rect x="{_n(x + 8)}" y="{_n(y - 6)}" width="16" height="12" fill="{color}"/>')
            return
        if "lines" in trace.mode:
            self._path(f"M{_n(x)} {_n(y)}H{_n(x + 26)}", trace.line, trace.opacity)
        if "markers" in trace.mode:
            self._marks(trace, [(x + 13, y)])

    def _frame(self, name: str) -> None:
        """Draw an axis' lines, labels and title."""
        axis = self.axes[name]
        if axis.layout.visible is False:
            return
        is_x = name[0] == "x"
        low, high = self._span(axis.layout.anchor or ("y" if is_x else "x"))
        if axis.layout.showgrid is not False:
            places = "".join(
                f"M{_n(axis.at(value))} {_n(low)}V{_n(high)}" if is_x else f"M{_n(low)} {_n(axis.at(value))}H{_n(high)}"
                for value, _ in axis.ticks()
            )
            self.parts.append(f'<path d="{places}" stroke="{FAINT}" fill="none"/>' if places else "")
        for value, label in self._labels(axis):
            if is_x:
                self.text(axis.at(value), low + 14, label, "middle", from_top=True)
            else:
                self.text(low - 8, axis.at(value), label, "end")
        title, middle = _lines(axis.layout.title.text), (axis.start + axis.end) / 2
        if is_x and title != [""]:
            labels = max((len(label) for _, label in self._labels(axis)), default=0)
            self.text(middle, low + 16 + 16 * labels, title, "middle", from_top=True)
        elif title != [""]:
            x = low - self._beside(name, self._range(name)) + 10
            self.text(x, middle, title, "middle", turned=True)

    def _place(self, reference: str, value: Any, is_x: bool) -> float:
        """The pixel of a place that is given in `reference`: an axis, "x2 domain", or "paper"."""
        name, _, domain = reference.partition(" ")
        if reference == "paper":
            left, top, right, bottom = self.box
            start, end = (left, right) if is_x else (bottom, top)
        elif domain:
            start, end = self._span(name)
        else:
            return self.axes[name].at(value)
        return start + value * (end - start)

    def _shape(self, shape: Any) -> None:
        x0, x1 = (self._place(shape.xref or "x", value, True) for value in (shape.x0, shape.x1))
        y0, y1 = (self._place(shape.yref or "y", value, False) for value in (shape.y0, shape.y1))
        self._path(f"M{_n(x0)} {_n(y0)}L{_n(x1)} {_n(y1)}", shape.line, shape.opacity)

    def _annotation(self, note: Any) -> None:
        x = self._place(note.xref, note.x, True) + (note.xshift or 0)
        y = self._place(note.yref, note.y, False) - (note.yshift or 0) - (9 if note.yanchor == "bottom" else 0)
        anchor = {"left": "start", "right": "end"}.get(note.xanchor, "middle")
        self.text(x, y, _lines(note.text), anchor, letter=note.font.size or LETTER, bold="<b>" in note.text or note.yref == "paper")

    def _scatter(self, trace: Any, x_axis: _Axis, y_axis: _Axis, previous: Any) -> None:
        runs = list(_runs(trace, x_axis, y_axis))
        if trace.fill in ("toself", "tozeroy", "tonexty"):
            base = y_axis.at(0.0 if not y_axis.log else 10.0**y_axis.low)
            back = [place for run in _runs(previous, x_axis, y_axis) for place in run] if trace.fill == "tonexty" else []
            closed = [[*run, (run[-1][0], base), (run[0][0], base)] if trace.fill == "tozeroy" else [*run, *reversed(back)] for run in runs]
            edge = f' stroke="{trace.line.color}" stroke-width="{trace.line.width}"' if trace.line.width else ""
            self.parts.append(f'<path d="{"".join(f"M{_joined(run)}Z" for run in closed)}" fill="{trace.fillcolor}"{edge}/>')
        elif "lines" in trace.mode:
            self._path("".join(f"M{_joined(run)}" for run in runs), trace.line, trace.opacity)
        places = [place for run in runs for place in run]
        self._whiskers(trace, places, x_axis)
        if "markers" in trace.mode:
            self._marks(trace, places)
        if "text" in trace.mode:
            look = trace.textfont
            for (x, y), text in zip(places, trace.text, strict=True):
                above = str(trace.textposition).startswith("top")
                below = str(trace.textposition).startswith("bottom")
                y += (trace.marker.size or 0) * (below - above) / 2
                size = look.size or LETTER
                self.text(x, y + (10 * below - 6 * above), _lines(text), "middle", size, color=look.color, from_top=below)

    def _whiskers(self, trace: Any, places: Sequence[tuple[float, float]], axis: _Axis) -> None:
        error = trace.error_x
        if error.array is None:
            return
        ends = zip(trace.x, error.arrayminus, error.array, places, strict=True)
        path = "".join(
            f"M{_n(axis.at(value - less))} {_n(y - 5)}v10m0 -5H{_n(axis.at(value + more))}m0 -5v10" for value, less, more, (_, y) in ends
        )
        self.parts.append(f'<path d="{path}" stroke="{error.color}" stroke-width="{error.thickness or 2}" fill="none"/>')

    def _marks(self, trace: Any, places: Sequence[tuple[float, float]]) -> None:
        half, color = (trace.marker.size or 6) / 2, trace.marker.color or trace.line.color
        shape = _SYMBOLS[trace.marker.symbol or "circle"](half)
        path = "".join(f"M{_n(x)} {_n(y)}{shape}" for x, y in places)
        self.parts.append(f'<path d="{path}" fill="{color}"/>' if path else "")

    def _bar(self, trace: Any, x_axis: _Axis, y_axis: _Axis, _: Any) -> None:
        starts = trace.base if trace.base is not None else [0.0] * len(trace.x)
        width = trace.width or 0.8
        offset = -width / 2 if trace.offset is None else trace.offset
        path = []
        for start, length, row in zip(starts, trace.x, trace.y, strict=True):
            left, right = x_axis.at(start), x_axis.at(start + length)
            middle = y_axis.names.index(row) if isinstance(row, str) else row
            upper, lower = y_axis.at(middle + offset), y_axis.at(middle + offset + width)
            path.append(f"M{_n(left)} {_n(upper)}H{_n(right)}V{_n(lower)}H{_n(left)}Z")
        edge = f' stroke="{trace.marker.line.color}" stroke-width="{trace.marker.line.width}"' if trace.marker.line.width else ""
        self.parts.append(f'<path d="{"".join(path)}" fill="{self._fill(trace.marker)}"{edge}/>' if path else "")
        for start, length, row, text in zip(starts, trace.x, trace.y, trace.text or (), strict=bool(trace.text)):
            self.text(x_axis.at(start + length / 2), y_axis.at(row + offset + width / 2), [text], "middle", 11, color=trace.textfont.color)

    def _waterfall(self, trace: Any, x_axis: _Axis, y_axis: _Axis, _: Any) -> None:
        reached = 0.0
        ends: list[tuple[float, float, float]] = []
        for row, (kind, value, text) in enumerate(zip(trace.measure, trace.x, trace.text, strict=True)):
            start, end = (0.0, value) if kind == "absolute" else (reached, reached + value)
            look = trace.totals if kind == "absolute" else trace.increasing if value >= 0 else trace.decreasing
            (left, right), (upper, lower) = sorted((x_axis.at(start), x_axis.at(end))), sorted(map(y_axis.at, (row - 0.38, row + 0.38)))
            size = f'x="{_n(left)}" y="{_n(upper)}" width="{_n(max(right - left, 1.5))}" height="{_n(lower - upper)}"'
            self.parts.append(f'<rect {size} fill="{look.marker.color}"/>')
            self.text(right + 6, (upper + lower) / 2, _lines(text), bold=kind == "absolute")
            reached, ends = end, [*ends, (x_axis.at(end), upper, lower)]
        path = "".join(f"M{_n(x)} {_n(lower)}V{_n(upper)}" for (x, _, lower), (_, upper, _) in pairwise(ends))
        self._path(path, trace.connector.line, None)

    def _fill(self, marker: Any) -> str:
        """The color of bars, or their hatch."""
        if marker.pattern.shape is None:
            return marker.color
        name = f"hatch{len(self.parts)}"
        self.parts.append(
            f'<pattern id="{name}" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
            f'<path d="M0 0V6" stroke="{marker.color}" stroke-width="2"/></pattern>'
        )
        return f"url(#{name})"

    def _path(self, path: str, line: Any, opacity: float | None) -> None:
        look = f'stroke="{line.color or INK}" stroke-width="{2 if line.width is None else line.width}" fill="none"'
        dashes = f' stroke-dasharray="{_DASHES[line.dash]}"' if line.dash in _DASHES else ""
        clear = f' stroke-opacity="{opacity}"' if opacity is not None and opacity < 1 else ""
        self.parts.append(f'<path d="{path}" {look}{dashes}{clear} stroke-linejoin="round"/>' if path else "")

    def text(
        self, x: float, y: float, lines: Sequence[str], anchor: str = "start", letter: float = LETTER, bold: bool = False,
        color: str | None = None, turned: bool = False, from_top: bool = False,
    ) -> None:  # fmt: skip
        """Write lines with their middle at `y`, or the middle of the first one."""
        first = y if from_top else y - (len(lines) - 1) * letter * 0.6
        for number, line in enumerate(lines):
            at = first + number * letter * 1.2 + letter * 0.35
            look = ' font-weight="600"' if bold else ""
            look += f' fill="{color}"' if color else ""
            look += f' transform="rotate(-90 {_n(x)} {_n(y)})"' if turned else ""
            place = f'x="{_n(x)}" y="{_n(at)}" font-size="{_n(letter)}" text-anchor="{anchor}"'
            self.parts.append(f"<text {place}{look}>{_xml(line)}</text>")


def _runs(trace: Any, x_axis: _Axis, y_axis: _Axis) -> Iterator[list[tuple[float, float]]]:
    """The places of a trace between its gaps, in pixels; a line that steps has a corner more per step."""
    run: list[tuple[float, float]] = []
    for x, y in zip(trace.x, trace.y, strict=True):
        if x is None or y is None or not isfinite(y):
            if run:
                yield run
            run = []
            continue
        place = x_axis.at(x), y_axis.at(y)
        if run and trace.line.shape == "hv":
            run.append((place[0], run[-1][1]))
        run.append(place)
    if run:
        yield run


def _joined(places: Sequence[tuple[float, float]]) -> str:
    return "L".join(f"{_n(x)} {_n(y)}" for x, y in places)


def _circle(half: float) -> str:
    return f"m{_n(-half)} 0a{_n(half)} {_n(half)} 0 1 0 {_n(2 * half)} 0a{_n(half)} {_n(half)} 0 1 0 {_n(-2 * half)} 0Z"


def _polygon(*corners: tuple[float, float]) -> Callable[[float], str]:
    """A mark with corners at a mark's half size times these."""
    steps = [corners[0], *((x - before_x, y - before_y) for (before_x, before_y), (x, y) in pairwise(corners))]
    return lambda half: "m" + "l".join(f"{_n(x * half)} {_n(y * half)}" for x, y in steps) + "Z"


#: The outlines of marks around a place, by plotly's names.
_SYMBOLS: Mapping[str, Callable[[float], str]] = MappingProxyType({
    "circle": _circle,
    "diamond": _polygon((0, -1.3), (1.3, 0), (0, 1.3), (-1.3, 0)),
    "square": _polygon((-1, -1), (1, -1), (1, 1), (-1, 1)),
    "triangle-up": _polygon((0, -1.2), (1.1, 0.8), (-1.1, 0.8)),
    "triangle-down": _polygon((0, 1.2), (-1.1, -0.8), (1.1, -0.8)),
})  # fmt: skip
#: What draws a trace, by its kind.
_DRAW = MappingProxyType({"scatter": _Drawing._scatter, "bar": _Drawing._bar, "waterfall": _Drawing._waterfall})


def _lines(text: str | None) -> list[str]:
    """The lines of a text of plotly's, without its marks."""
    return [unescape(line.replace("<b>", "").replace("</b>", "")) for line in (text or "").split("<br>")]


def _xml(text: str) -> str:
    """A text as a part of XML. Control characters, which XML cannot contain and no font has, are dropped."""
    return escape("".join(c for c in text if c.isprintable() or c == "\N{NO-BREAK SPACE}"))


def _n(value: float) -> str:
    """A number of pixels."""
    return f"{value:.1f}".removesuffix(".0")
