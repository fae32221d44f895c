"""Static pictures (PNG, SVG) for reports and the README: both timelines on one axis, and a validation's summary.

Drawn with matplotlib's own canvas, without pyplot, so that neither a display nor any global state is needed. White background: a picture
is looked at on its own.
"""

import io
from pathlib import Path

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from traces import units
from traces.comparison import Validation
from traces.critical import critical_spans
from traces.files import write_atomic
from traces.lanes import lanes
from traces.timeline import Span, Timeline
from ui.figures import palette
from ui.text.labels import headline, lane_label, row_labels

WIDTH_IN = 12.0
#: 2,400 pixels wide: sharp at the 1,200 that a README shows.
DOTS_PER_INCH = 200
INK, FAINT = "#1F2430", "#E3E6EB"
#: Above this many spans, white borders would hide them.
BORDERED_SPANS = 400
#: A label is drawn in a span that is at least this many times as wide as the label.
ROOM = 1.15
#: Characters of a strategy's label that fit left of a validation's summary in the usual size.
LABEL_CHARACTERS = 22


def timelines_picture(path: Path | str, predicted: Timeline, measured: Timeline | None = None, title: str = "") -> Path:
    """Draw one steady period, predicted above measured, into `path` (.png or .svg). The error stands in the heading after `title`."""
    shown = [timeline for timeline in (predicted, measured) if timeline is not None]
    rows = [lanes(timeline, timeline.window()) for timeline in shown]
    row_in = 0.42 if sum(map(len, rows)) <= 14 else 0.3
    drawn_in = [row_in * max(1, len(places)) for places in rows]
    top_in, between_in, bottom_in = 1.15, 0.62, 0.62
    height_in = top_in + sum(drawn_in) + between_in * (len(shown) - 1) + bottom_in
    figure = Figure(figsize=(WIDTH_IN, height_in), dpi=DOTS_PER_INCH, facecolor="white")
    FigureCanvasAgg(figure)
    end_ms = max(max(t.step_s, t.window_s[1] - t.window_s[0]) for t in shown) * 1e3
    labels = [[lane_label(*place) for place in places] for places in rows]
    left = (0.3 + 0.088 * max((len(label) for group in labels for label in group), default=0)) / WIDTH_IN
    above_in = top_in
    for timeline, places, names, drawn in zip(shown, rows, labels, drawn_in, strict=True):
        axes = figure.add_axes((left, 1 - (above_in + drawn) / height_in, 0.985 - left, drawn / height_in))
        _draw_timeline(axes, timeline, places, names, end_ms)
        if timeline is not predicted:
            axes.axvline(predicted.step_s * 1e3, color=INK, linewidth=1.0, linestyle=(0, (4, 3)), alpha=0.6)
        last = timeline is shown[-1]
        axes.tick_params(axis="x", labelbottom=last, length=3 if last else 0, colors=INK)
        above_in += drawn + between_in
    axes.set_xlabel("ms from the start of the steady period", fontsize=11, color=INK)
    times = headline(predicted.step_s, measured.step_s if measured else None)
    figure.text(
        0.012,
        1 - 0.16 / height_in,
        f"{title}: {times}" if title else times,
        fontsize=16,
        weight="bold",
        va="top",
        color=INK,
        parse_math=False,
    )
    _phase_legend(figure, {span.phase for t in shown for span in t.window()}, any(t.critical_path for t in shown), 1 - 0.47 / height_in)
    return write(figure, path)


def _draw_timeline(axes: Axes, timeline: Timeline, places: tuple[tuple[str, str], ...], names: list[str], end_ms: float) -> None:
    origin, end = timeline.window_s
    at = {place: row for row, place in enumerate(places)}
    spans = timeline.window()
    edge = 0.6 if len(spans) <= BORDERED_SPANS else 0.0
    critical = {span for span, _ in critical_spans(timeline)}

    def bars(group: list[Span], top: float, height: float, colour: str, edge: float) -> None:
        pieces = [((max(s.start_s, origin) - origin) * 1e3, (min(s.end_s, end) - max(s.start_s, origin)) * 1e3) for s in group]
        axes.broken_barh(pieces, (top, height), facecolor=colour, edgecolor="white", linewidth=edge)

    for place, row in at.items():
        own = [span for span in spans if (span.device, span.lane) == place]
        for phase in palette.phases_in_order({span.phase for span in own}):
            bars([span for span in own if span.phase == phase], row - 0.38, 0.7, palette.phase_colour(phase), edge)
        bars([span for span in own if span in critical], row + 0.34, 0.1, palette.CRITICAL, 0.0)
    axes.set_xlim(0, end_ms * 1.002)
    axes.set_ylim(len(places) - 0.45, -0.55)
    axes.set_yticks(range(len(places)), names, fontsize=11 if len(places) <= 12 else 8.5, color=INK)
    axes.tick_params(axis="y", length=0)
    axes.xaxis.set_major_locator(MaxNLocator(12))
    axes.grid(axis="x", color=FAINT, linewidth=0.8)
    axes.set_axisbelow(True)
    for side in axes.spines.values():
        side.set_visible(False)
    step_ms = timeline.step_s * 1e3
    axes.axvline(step_ms, color=INK, linewidth=1.6, clip_on=False)
    label = f"{units.duration(timeline.step_s)} "
    axes.annotate(label, (step_ms, 1), (-2, 4), xycoords=("data", "axes fraction"), textcoords="offset points", ha="right", fontsize=11.5,
                  weight="bold", color=INK)  # fmt: skip
    axes.annotate(
        timeline.kind, (0, 1), (0, 4), xycoords="axes fraction", textcoords="offset points", fontsize=11.5, weight="bold", color=INK
    )
    _label_spans(axes, spans, at, timeline)


def _label_spans(axes: Axes, spans: tuple[Span, ...], at: dict[tuple[str, str], int], timeline: Timeline) -> None:
    """Write the micro-batch (where there are several) or the layer into spans with room for it."""
    origin, end = timeline.window_s
    numbered = len({span.micro_batch for span in spans}) > 1
    ms_per_inch = axes.get_xlim()[1] / (axes.get_position().width * WIDTH_IN)
    for span in (s for s in spans if s.phase in ("forward", "backward")):
        start, stop = max(span.start_s, origin), min(span.end_s, end)
        room = (stop - start) * 1e3 / (ROOM * ms_per_inch)
        names = [str(span.micro_batch)] if numbered else _names(span.layer)
        text = next((name for name in names if room > 0.085 * len(name) + 0.02), "")
        if text:
            colour = "white" if span.phase == "forward" else INK
            middle = ((start + stop) / 2 - origin) * 1e3
            axes.text(middle, at[span.device, span.lane] - 0.04, text, fontsize=9, color=colour, ha="center", va="center", parse_math=False)


def _names(layer: str) -> list[str]:
    """The layer's path, then shorter ends of it that still start with a word: `layer1.0.conv1`, `conv1`; never a bare number."""
    parts = layer.split(".")
    return [".".join(parts[first:]) for first in range(len(parts)) if parts[first] and not parts[first].isdigit()]


def _phase_legend(figure: Figure, phases: set[str], critical: bool, top: float) -> None:
    marks = [Patch(facecolor=palette.phase_colour(phase), label=phase) for phase in palette.phases_in_order(phases)]
    if critical:
        marks.append(Patch(facecolor=palette.CRITICAL, label="critical path (stripe)"))
    legend(figure, marks, top, handlelength=1.0, handleheight=1.0, columnspacing=1.4)


def validation_picture(path: Path | str, validation: Validation, title: str = "") -> Path:
    """Draw every strategy's predicted step time with its 90 % interval beside all measured runs, into `path` (.png or .svg)."""
    results = validation.ran
    height_in = 1.75 + 0.62 * max(1, len(results))
    figure = Figure(figsize=(WIDTH_IN, height_in), dpi=DOTS_PER_INCH, facecolor="white")
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0.19, 0.62 / height_in, 0.60, 1 - 1.75 / height_in))
    highest = 0.0
    for row, result in enumerate(results):
        low, high = (1e3 * value for value in result.predicted_interval_s or (result.predicted_step_s, result.predicted_step_s))
        predicted, measured = result.predicted_step_s * 1e3, result.measured_step_s * 1e3
        runs = [run * 1e3 for run in result.measured_runs_s]
        axes.plot([low, high], [row - 0.14] * 2, color=palette.PREDICTED, linewidth=10, alpha=0.35, solid_capstyle="butt")
        axes.plot([predicted], [row - 0.14], "D", color=palette.PREDICTED, markersize=7)
        axes.plot(runs, [row + 0.16] * len(runs), "|", color=palette.MEASURED, markersize=17, alpha=0.8)
        axes.plot([measured], [row + 0.16], "o", color=palette.MEASURED, markersize=7)
        highest = max(highest, high, measured, *runs)
        gain = f"{units.speedup(result.predicted_speedup)} / {units.speedup(result.measured_speedup)}"
        for x, text in ((1.09, units.percent(result.error)), (1.31, gain)):
            axes.text(x, row, text, transform=axes.get_yaxis_transform(), ha="right", va="center", fontsize=12, color=INK)
    axes.set_xlim(0, highest * 1.05 or 1)
    axes.set_ylim(max(len(results), 1) - 0.5, -0.5)
    labels = [_folded(label) for label in row_labels(results)]
    axes.set_yticks(range(len(results)), labels, fontsize=12 if max(map(_width, labels), default=0) <= LABEL_CHARACTERS else 9, color=INK)
    axes.tick_params(axis="both", length=0, labelcolor=INK)
    axes.set_xlabel("step time, ms", fontsize=11, color=INK)
    axes.grid(axis="x", color=FAINT, linewidth=0.8)
    for side in axes.spines.values():
        side.set_visible(False)
    for x, text in ((1.09, "error"), (1.31, "speed-up,\npredicted / measured")):
        axes.text(x, 1.02, text, transform=axes.transAxes, ha="right", va="bottom", fontsize=10, color="#5A6070")
    heading = (
        title or f"{validation.model}, batch {validation.batch_size}, {validation.optimizer}, {validation.precision}, {validation.mode}"
    )
    figure.text(0.012, 1 - 0.16 / height_in, heading, fontsize=16, weight="bold", va="top", color=INK, parse_math=False)
    _result_legend(figure, 1 - 0.47 / height_in)
    return write(figure, path)


def _folded(label: str) -> str:
    """A long label with its options on a line of their own."""
    return label.replace(":", ":\n", 1) if len(label) > LABEL_CHARACTERS else label


def _width(label: str) -> int:
    return max(map(len, label.splitlines()), default=0)


def _result_legend(figure: Figure, top: float) -> None:
    marks = [
        Line2D([], [], marker="D", color=palette.PREDICTED, linestyle="", markersize=8, label="predicted"),
        Patch(facecolor=palette.PREDICTED, alpha=0.35, label="90 % interval"),
        Line2D([], [], marker="o", color=palette.MEASURED, linestyle="", markersize=8, label="measured"),
        Line2D([], [], marker="|", color=palette.MEASURED, linestyle="", markersize=9, label="each run"),
    ]
    legend(figure, marks, top)


def legend(figure: Figure, marks: list[Artist], top: float, **spacing: float) -> None:
    """One row of marks at the left, its top at the share `top` of the figure's height."""
    corner = (0.005, top)
    figure.legend(
        handles=marks, loc="upper left", bbox_to_anchor=corner, ncols=len(marks), frameon=False, fontsize=11, labelcolor=INK, **spacing
    )


def write(figure: Figure, path: Path | str) -> Path:
    """Save the figure; the ending of the name says as what (.png or .svg)."""
    content = io.BytesIO()
    kind = Path(path).suffix.lstrip(".")
    figure.savefig(content, format=kind, metadata={"Date": None} if kind == "svg" else None)
    return write_atomic(path, content.getvalue())
