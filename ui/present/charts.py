"""Charts of predicted and measured steps: step times, speed-ups, phases, measured steps in their intervals; and waterfalls, which say, as
bars and as one sentence, why a step is shorter or longer than another.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from math import sqrt
from types import MappingProxyType
from typing import TYPE_CHECKING

from simulator.engine.memory.contents import KIND_NAMES, NAMED_SHARE
from simulator.predict.coverage import Judged, by_group, coverage
from simulator.predict.waterfall import COMMUNICATION, CONTENTION, IDLE, LAUNCHES, UNEXPLAINED, WAITING, overlap_of
from traces import units
from traces.documents.comparison import BASELINE, PYTORCH, Change, Comparison, Prediction, Validation, ValidationResult
from traces.documents.verdict import Gain
from ui.present import labels
from ui.present.blocks import Bar, Figure
from ui.present.labels import finished, labelled_rows, plain_label, plotly_escaped, row_labels, strategy_name

if TYPE_CHECKING:
    import plotly.graph_objects as go

#: How much of a bar's color is seen.
_FAINT = 0.35
#: The names and marks of measured steps, by whether they are in their intervals.
_MEASURED = MappingProxyType({
    True: ("measured, inside", labels.MEASURED, "circle"),
    False: ("measured, outside", labels.CRITICAL, "x"),
})  # fmt: skip


def coverage_figure(steps: Sequence[Judged]) -> "go.Figure":
    """One bar per step, its 90 % interval over its prediction, with the measured step over the prediction as a dot.

    Groups that share a discrepancy are side by side, the fastest step of each first; a small group gets more room for each step. The
    axis is logarithmic: a step that took twice as long is as far from 1 as one that took half as long. Raises ValueError without steps.
    """
    from plotly.subplots import make_subplots  # here, because a machine that only measures may lack plotly, as in all of these

    groups = by_group(steps)
    title = f"{_share(steps)} measured steps lie in their 90 % interval"
    widths = [sqrt(len(own)) for own in groups.values()]
    figure = make_subplots(1, len(groups), shared_yaxes=True, column_widths=widths, horizontal_spacing=0.02)
    for column, (name, own) in enumerate(groups.items(), start=1):
        for trace in _traces(sorted(own, key=lambda step: step.ratio)):
            figure.add_trace(trace.update(legendgroup=trace.name, showlegend=False), row=1, col=column)
        figure.update_xaxes(title_text=f"{name}<br>{_share(own)}", row=1, col=column)
    for place, (name, color, symbol) in enumerate((("90 % interval", labels.PREDICTED, "square"), *_MEASURED.values())):
        marker = {"color": color, "symbol": symbol, "size": 9, "opacity": 1 if place else _FAINT}
        figure.add_scatter(x=[None], y=[None], mode="markers", name=name, legendgroup=name, marker=marker)
    figure.add_hline(y=1.0, line={"color": labels.GREY, "width": 1, "dash": "dash"})
    figure.update_yaxes(type="log", gridcolor=labels.GRID, zeroline=False)
    figure.update_yaxes(title_text="measured / predicted", col=1)
    figure.update_xaxes(showticklabels=False, showgrid=False, zeroline=False)
    return finished(figure, title, drawn_px=320, bargap=0)


def _traces(drawn: Sequence[Judged]) -> "Iterator[go.Bar | go.Scatter]":
    """The bars of steps in the order in which they are drawn, and the dots inside and outside their intervals."""
    import plotly.graph_objects as go

    places = range(len(drawn))
    lows, highs = ([step.interval_s[end] / step.predicted_s for step in drawn] for end in (0, 1))
    yield go.Bar(
        x=list(places), y=[high - low for low, high in zip(lows, highs, strict=True)], base=lows, name="90 % interval", width=0.8,
        marker={"color": labels.PREDICTED, "opacity": _FAINT}, hoverinfo="skip",
    )  # fmt: skip
    for is_inside, (name, color, symbol) in _MEASURED.items():
        chosen = [place for place in places if drawn[place].inside == is_inside]
        yield go.Scatter(
            x=chosen, y=[drawn[place].ratio for place in chosen], mode="markers", name=name,
            marker={"color": color, "symbol": symbol, "size": 7}, hovertext=[_words(drawn[place]) for place in chosen],
            hovertemplate="%{hovertext}<extra></extra>",
        )  # fmt: skip


def _share(steps: Sequence[Judged]) -> str:
    return f"{sum(step.inside for step in steps)} of {len(steps)} ({coverage(steps):.0%})"


def _words(step: Judged) -> str:
    return (
        f"<b>{plotly_escaped(step.strategy)}</b>, {plotly_escaped(step.model)}, batch {step.batch}<br>predicted"
        f" {units.duration(step.predicted_s, step.interval_s)}, measured {units.duration(step.measured_s)}"
    )


@dataclass(frozen=True)
class Row:
    """One row. In earlier documents plain PyTorch has no prediction.

    `gain`: over plain PyTorch, or over the baseline if plain PyTorch was not measured.
    """

    label: str
    predicted_s: float | None
    interval_s: tuple[float, float] | None
    measured_s: float
    runs_s: tuple[float, ...]
    gain: Gain | None
    predicted_speedup: float | None
    measured_speedup: float | None

    @property
    def seconds(self) -> tuple[float, ...]:
        """Every time that is drawn."""
        return (self.measured_s, *self.runs_s, *(self.interval_s or ()), *((self.predicted_s,) if self.predicted_s else ()))

    @property
    def factors(self) -> tuple[float, ...]:
        """Every speed-up that is drawn."""
        return () if self.gain is None else (self.gain.factor, *(self.gain.interval or ()))


def rows(validation: Validation) -> list[Row]:
    """The rows of a validation, plain PyTorch first."""
    gain_of = validation.gain_over_baseline if validation.reference_step_s is None else validation.gain_over_pytorch
    strategies = [
        Row(label, predicted_s=result.predicted_step_s, interval_s=result.predicted_interval_s, measured_s=result.steps_s[1],
            runs_s=result.measured_runs_s, gain=gain_of(result), predicted_speedup=result.predicted_speedup,
            measured_speedup=result.measured_speedup)
        for label, result in labelled_rows(validation) if result.ok
    ]  # fmt: skip
    if not strategies or validation.reference_step_s is None or validation.pytorch is not None:
        return strategies
    plain_s, gain = validation.reference_step_s, validation.plain_speedup
    return [
        Row(
            label=plain_label(validation),
            predicted_s=None,
            interval_s=None,
            measured_s=plain_s,
            runs_s=validation.reference_runs_s,
            gain=None,
            predicted_speedup=None,
            measured_speedup=gain,
        ),
        *strategies,
    ]


def rival_name(validation: Validation) -> str:
    """What the speed-ups of the rows are over."""
    return "the baseline" if validation.reference_step_s is None else "PyTorch"


def speedups_figure(validation: Validation, title: str = "") -> "go.Figure":
    """Step times and speed-ups per strategy, plain PyTorch first. `title`: the result in a few words.

    Left: predicted step times with 90 % intervals, and measured ones with the range of all runs. Right: speed-ups over plain PyTorch (over
    the baseline, if plain PyTorch was not measured) with 90 % intervals.
    """
    from plotly.subplots import make_subplots

    drawn = rows(validation)
    figure = make_subplots(1, 2, shared_yaxes=True, column_widths=[0.62, 0.38], horizontal_spacing=0.04)
    predicted = [row for row in drawn if row.predicted_s is not None]
    _add_points(
        figure, "predicted, 90 % interval", labels.PREDICTED, symbol="diamond", names=[row.label for row in predicted],
        values=[(own_s, *(row.interval_s or (own_s, own_s))) for row in predicted if (own_s := row.predicted_s) is not None],
        heights=[drawn.index(row) - 0.12 for row in predicted],
    )  # fmt: skip
    _add_points(
        figure, "measured, all runs", labels.MEASURED, symbol="circle", names=[row.label for row in drawn],
        values=[(row.measured_s, min((*row.runs_s, row.measured_s)), max((*row.runs_s, row.measured_s))) for row in drawn],
        heights=[number + (0.12 if row in predicted else 0.0) for number, row in enumerate(drawn)],
    )  # fmt: skip
    _add_gains(figure, drawn)
    notes = [row.gain.judged if row.gain is not None else "" for row in drawn]
    figure.update_xaxes(
        title_text=f"speed-up<br>over {rival_name(validation)}",
        automargin=True,
        showgrid=True,
        gridcolor=labels.GRID,
        zeroline=False,
        col=2,
    )
    return _strategy_axes(figure, title or "Step time per strategy", [row.label for row in drawn], notes, col=1)


def _add_gains(figure: "go.Figure", drawn: Sequence[Row]) -> None:
    """Add speed-ups with whiskers to the right half."""
    for number, row in enumerate(drawn):
        if row.gain is None:
            continue
        gain, color = row.gain, labels.VERDICT[row.gain.verdict]
        low, high = gain.interval or (gain.factor, gain.factor)
        whiskers = {"type": "data", "symmetric": False, "array": [high - gain.factor], "arrayminus": [gain.factor - low]}
        figure.add_scatter(
            x=[gain.factor], y=[number], mode="markers", marker={"color": color, "size": 10}, error_x=whiskers | {"color": color},
            hovertext=[f"<b>{plotly_escaped(row.label)}</b><br>{gain.judged}"], hovertemplate="%{hovertext}<extra></extra>",
            showlegend=False, row=1, col=2,
        )  # fmt: skip
    figure.add_vline(x=1.0, line={"color": labels.GREY, "width": 1.5, "dash": "dash"}, row=1, col=2)


def predictions_figure(predictions: Sequence[Prediction], names: Sequence[str]) -> "go.Figure":
    """Predicted step time per strategy with its 90 % interval, and its speed-up over plain PyTorch. `names`: the strategies' labels."""
    import plotly.graph_objects as go

    figure = go.Figure()
    values = [(p.step_s, *(p.interval_s or (p.step_s,) * 2)) for p in predictions]
    _add_points(
        figure,
        "predicted, 90 % interval",
        labels.PREDICTED,
        symbol="diamond",
        names=names,
        values=values,
        heights=list(range(len(values))),
    )
    return _strategy_axes(
        figure, "Predicted step time per strategy (speed-up over plain PyTorch)", names, [_note(prediction) for prediction in predictions]
    )


def _note(prediction: Prediction) -> str:
    return units.speedup(*prediction.compared_by[PYTORCH]) if prediction.fits else "does not fit"


def _add_points(
    figure: "go.Figure",
    name: str,
    color: str,
    symbol: str,
    names: Sequence[str],
    values: Sequence[tuple[float, float, float]],
    heights: Sequence[float],
) -> None:
    """Add one point with whiskers per strategy. `values`: (value, low, high) in seconds. `heights`: its place on the y axis."""
    whiskers = {"type": "data", "symmetric": False, "thickness": 1.5, "color": color}
    whiskers["array"] = [(high - value) * 1e3 for value, _, high in values]
    whiskers["arrayminus"] = [(value - low) * 1e3 for value, low, _ in values]
    texts = [
        f"<b>{plotly_escaped(label)}</b><br>{name}: {units.duration(value, (low, high))}"
        for label, (value, low, high) in zip(names, values, strict=True)
    ]
    figure.add_scatter(
        x=[value * 1e3 for value, _, _ in values],
        y=list(heights),
        mode="markers",
        name=name,
        marker={"color": color, "symbol": symbol, "size": 10},
        error_x=whiskers,
        hovertext=texts,
        hovertemplate="%{hovertext}<extra></extra>",
    )


def _strategy_axes(figure: "go.Figure", title: str, names: Sequence[str], notes: Sequence[str], col: int | None = None) -> "go.Figure":
    texts = [f"{plotly_escaped(name)}<br>{note}" for name, note in zip(names, notes, strict=True)]
    count = len(texts)
    figure.update_yaxes(range=[count - 0.5, -0.5], zeroline=False, showgrid=False, ticksuffix=" ")
    figure.update_yaxes(tickvals=list(range(count)), ticktext=texts, col=col)
    figure.update_xaxes(title_text="step time, ms", rangemode="tozero", zeroline=False, showgrid=True, gridcolor=labels.GRID, col=col)
    return finished(figure, title, drawn_px=20 + 55 * count)


def phases_figure(comparison: Comparison) -> "go.Figure":
    """Task time per phase within one training step, predicted and measured."""
    import plotly.graph_objects as go

    seconds = comparison.phases()
    phases = labels.phases_in_order(set(seconds))
    names = [plotly_escaped(phase) for phase in phases]
    figure = go.Figure()
    for name, color, pick in (("predicted", labels.PREDICTED, "predicted_s"), ("measured", labels.MEASURED, "measured_s")):
        values = [getattr(seconds[phase], pick) for phase in phases]
        figure.add_bar(
            x=names,
            y=[v * 1e3 for v in values],
            name=name,
            marker_color=color,
            text=[units.ms(v) for v in values],
            textposition="outside",
            cliponaxis=False,
        )
    figure.update_yaxes(title_text="task time per step, ms", gridcolor=labels.GRID)
    return finished(figure, "Task time per phase", drawn_px=240, barmode="group")


#: Parts below this share of the first step are shown together.
LEAST_SHARE = 0.005
BASELINES = "than the baseline's"
SMALLER = "smaller parts"
#: Share of the bars' width that the numbers next to them need on a page of 900 pixels.
LABEL_ROOM = 0.18
#: Tasks of a part, in words; other parts are phases.
_TASKS = {"update": "updates", COMMUNICATION: "transfers and collectives"}
#: Why a step is longer because of a part; "more" becomes "less" if it is shorter.
_LONGER = {
    LAUNCHES: "because issuing tasks takes more time",
    CONTENTION: "because tasks that run at the same time slow each other down more",
    IDLE: "because the critical path is idle for more time",
    WAITING: "because more time passes between tasks",
    UNEXPLAINED: "that task times do not explain",
    SMALLER: "in smaller parts",
}


def bars(
    before: str, before_s: float, changes: Sequence[Change], after: str, after_s: float, least_share: float = LEAST_SHARE
) -> list[Bar]:
    """The bars from one step to the other: the step called `before`, the parts, and the step called `after`.

    `least_share`: parts below this share of the first step are shown together.
    """
    shown = [(change.part, change.seconds) for change in changes if abs(change.seconds) >= least_share * before_s]
    small_s = sum(change.seconds for change in changes if abs(change.seconds) < least_share * before_s)
    shown += [(SMALLER, small_s)] if small_s else []
    first, parts, last = units.adding_up(before_s, [seconds for _, seconds in shown], after_s)
    steps, reached_s = [Bar(before, first, 0.0, before_s, True)], before_s
    for (part, seconds), ms in zip(shown, parts, strict=True):
        if part != SMALLER or ms != "0":
            steps.append(Bar(part, ms, reached_s, reached_s + seconds))
        reached_s += seconds
    return [*steps, Bar(after, last, 0.0, after_s, True)]


#: What the allocator holds besides tensors.
RESERVED = "reserved by PyTorch"


def memory_parts(prediction: Prediction) -> tuple[list[tuple[str, int]], int]:
    """(what, bytes) of the memory that a plan needs of its fullest device: by kind, reserved beyond that, the driver's; and its size."""
    peak = max(prediction.at_peak, key=lambda own: own.bytes)
    need = max(prediction.memories, key=lambda own: own.needed_bytes)
    parts = [(KIND_NAMES.get(kind, kind), size) for kind, size in peak.by_kind.items()]
    held = sum(size for _, size in parts)
    reserved = max(0, (need.reserved_bytes or 0) - held)
    rest = max(0, need.needed_bytes - held - reserved)
    return [*parts, (RESERVED, reserved), ("driver and CUDA context", rest)], need.size_bytes


def memory_figure(prediction: Prediction) -> "go.Figure":
    """One stacked bar of `memory_parts`, with a line at the size of the memory."""
    import plotly.graph_objects as go

    parts, size = memory_parts(prediction)
    colors = {KIND_NAMES.get(kind, kind): color for kind, color in labels.KIND.items()} | {RESERVED: labels.IDLE}
    figure = go.Figure()
    for name, count in parts:
        if count > NAMED_SHARE * sum(each for _, each in parts):
            figure.add_bar(
                x=[count / 2**30], y=[""], orientation="h", name=f"{name} {units.memory(count)}", hoverinfo="name",
                marker_color=colors.get(name, labels.GREY),
            )  # fmt: skip
    figure.add_vline(
        size / 2**30, line={"color": labels.LIMIT, "width": 2}, annotation_text=units.capacity(size), annotation_position="top"
    )
    most = 1.05 * max(size, sum(count for _, count in parts)) / 2**30
    figure.update_xaxes(title_text="GiB of the fullest device", range=[0, most], gridcolor=labels.GRID, zeroline=False)
    return finished(figure, "Memory at its peak", drawn_px=150, barmode="stack")


def prediction_bars(prediction: Prediction) -> list[Bar]:
    """The bars from the baseline to a strategy; none if it is not compared with the baseline, or that does not fit in memory."""
    if prediction.baseline_step_s is None or not prediction.waterfall or BASELINE in prediction.too_large:
        return []
    return bars("baseline", prediction.baseline_step_s, prediction.waterfall, strategy_name(prediction.strategy), prediction.step_s)


def measured_bars(result: ValidationResult) -> list[Bar]:
    """The bars from the predicted to the measured step of a strategy, which must have a waterfall."""
    predicted_s, measured_s = result.steps_s
    return bars("predicted", predicted_s, result.waterfall, "measured", measured_s)


def prediction_words(prediction: Prediction) -> list[str]:
    """Why a strategy is faster or slower than the baseline, in one sentence; none for the baseline itself."""
    return [_sentence("The step", own, BASELINES)] if (own := prediction_bars(prediction)) else []


def change_words(subject: str, before: str, before_s: float, changes: Sequence[Change], after: str, after_s: float) -> str:
    """Why the step of the plan `after` is shorter or longer than that of the plan `before`, in one sentence."""
    return _sentence(subject, bars(before, before_s, changes, after, after_s), f"than {before}'s" if before != "baseline" else BASELINES)


def measured_words(result: ValidationResult, label: str = "") -> list[str]:
    """Why the measured step (of `label`) is not as long as predicted, in one sentence; none if that is unknown."""
    subject = f"The measured step of {label}" if label else "The measured step"
    return [_sentence(subject, measured_bars(result), "than predicted")] if result.waterfall else []


def validation_words(validation: Validation) -> list[str]:
    """`measured_words` of every strategy that ran."""
    labelled = zip(row_labels(validation.results), validation.results, strict=True)
    return [sentence for label, result in labelled if result.ok for sentence in measured_words(result, label)]


def _sentence(subject: str, waterfall: Sequence[Bar], than: str) -> str:
    """Who is shorter or longer, by how much, and which parts make it so; then those that do the opposite."""
    first, *parts, last = waterfall
    (_, (total,), _) = units.adding_up(first.end_s, [last.end_s - first.end_s], last.end_s)
    if total == "0":
        total = ""
    sign = total[:1] or "-"
    with_it = _reasons([bar for bar in parts if bar.ms.startswith(sign)])
    against = _reasons([bar for bar in parts if bar.ms != "0" and not bar.ms.startswith(sign)])
    if not total:
        balanced = f": {with_it} make up for {against}" if with_it and against else ""
        return f"{subject} takes as long {than.replace('than', 'as', 1)}{balanced}."
    less = f", less {against}" if against else ""
    return f"{subject} is {total[1:]} ms {'shorter' if sign == '-' else 'longer'} {than}: {with_it}{less}."


def _reasons(parts: Sequence[Bar]) -> str:
    """The parts in words, the largest first: 6.6 ms because ... and 1.0 ms because ..."""
    texts = [f"{bar.ms[1:]} ms {_reason(bar)}" for bar in sorted(parts, key=lambda bar: (bar.label == SMALLER, -abs(bar.change_s)))]
    return " and ".join(filter(None, (", ".join(texts[:-1]), texts[-1]))) if texts else ""


def _reason(bar: Bar) -> str:
    longer = bar.change_s > 0
    if bar.label in _LONGER:
        return _LONGER[bar.label] if longer else _LONGER[bar.label].replace(" more", " less")
    part = bar.label.removeprefix(overlap_of(""))
    tasks = _TASKS.get(part, f"{part} tasks")
    if bar.label != part:
        return f"because {tasks} {'no longer run' if longer else 'run'} beside other tasks"
    return f"because {tasks} take {'more' if longer else 'less'} time"


def waterfall(drawn: Sequence[Bar], title: str, about: str = "", picture: str = "") -> Figure:
    """The block of a waterfall. `about`: what it shows, if its title does not say it."""
    return Figure(lambda: waterfall_figure(drawn, title), about or title, picture, drawn)


def waterfall_figure(drawn: Sequence[Bar], title: str) -> "go.Figure":
    """Bars one below the other: steps from 0, each part from where the part above it ends. The numbers add up."""
    import plotly.graph_objects as go

    figure = go.Figure(
        go.Waterfall(
            orientation="h",
            measure=["absolute" if bar.is_step else "relative" for bar in drawn],
            y=[escape(bar.label) for bar in drawn],
            x=[(bar.end_s if bar.is_step else bar.change_s) * 1e3 for bar in drawn],
            text=[f"{bar.ms} ms" for bar in drawn],
            textposition="outside",
            cliponaxis=False,
            hoverinfo="y+text",
            increasing={"marker": {"color": labels.LONGER}},
            decreasing={"marker": {"color": labels.SHORTER}},
            totals={"marker": {"color": labels.GREY}},
            connector={"line": {"color": labels.GREY, "width": 1}},
        )
    )
    figure.update_yaxes(autorange="reversed", showgrid=False, ticksuffix=" ")
    ends_ms = [1e3 * end_s for bar in drawn for end_s in (bar.start_s, bar.end_s)]
    room = LABEL_ROOM * (max(ends_ms) - min(0.0, *ends_ms))
    figure.update_xaxes(range=[min(0.0, *ends_ms), max(ends_ms) + room], zeroline=False, gridcolor=labels.GRID)
    figure.update_xaxes(title_text="step time, ms")
    return labels.finished(figure, title, drawn_px=40 + 30 * len(drawn), legend=False)
