"""The outcomes of a sweep in words, table cells and charts: where a strategy starts or stops paying, what is fastest, what each needs."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from operator import itemgetter
from typing import TYPE_CHECKING

from simulator.engine.memory.contents import AT_LIMIT_WORDS
from simulator.predict.sweep import UNUSABLE, Axis, Outcome, Stretch, at_point, fastest, pareto, stretches
from traces import units
from traces.documents.comparison import BASELINE, PYTORCH
from traces.documents.step import Step
from traces.documents.verdict import chosen
from ui.present import labels
from ui.present.blocks import Block, Figure, Headline, Note, Section, Sentences, Table
from ui.present.labels import PEAK, PLAIN, strategy_name, verdict_cell

if TYPE_CHECKING:
    import plotly.graph_objects as go


def section(job: str, outcomes: Sequence[Outcome], axes: Sequence[Axis], batch: int) -> Section:
    """What a page says of a sweep of `job` in words: the fastest strategy, step times over the parameters, and every outcome."""
    over: list[Block] = []
    if len(axes) == 1:
        over = over_one(outcomes, axes[0], STEP, rivals(outcomes)[0], batch)
    elif len(axes) == 2:
        over = over_two(outcomes, (axes[0], axes[1]), None, STEP, batch)
    return Section(title(job, axes), [Headline(fastest_words(outcomes, axes)), *over, *front(outcomes, axes)])


def rivals(outcomes: Sequence[Outcome]) -> list[str]:
    """The strategies that the others may be compared with: the user's loop and the baseline; the first one if there is neither."""
    names = dict.fromkeys(each.strategy for each in outcomes)
    return [name for name in names if name in (PYTORCH, BASELINE)] or list(names)[:1]


def front(outcomes: Sequence[Outcome], axes: Sequence[Axis]) -> list[Block]:
    """Step time against memory, and every outcome in a table."""
    about = f"Step time against {MEMORY} of every outcome"
    return [Figure(lambda: pareto_figure(outcomes, axes), about), Table(outcome_cells(outcomes, axes), ("strategy", "verdict", "note"))]


def over_one(outcomes: Sequence[Outcome], axis: Axis, measure: str, rival: str, batch: int) -> list[Block]:
    """Where a strategy starts or stops being faster than `rival`, and a measure of every strategy, over one parameter."""
    figure = Figure(lambda: curves_figure(outcomes, axis, measure, batch), f"{measure} over {axis.name}")
    return [Sentences(crossover_words(outcomes, axis, rival)), figure]


def over_two(outcomes: Sequence[Outcome], axes: tuple[Axis, Axis], strategy: str | None, measure: str, batch: int) -> list[Block]:
    """A measure of a strategy, or of the fastest at each point, over two parameters."""
    return [Figure(lambda: heat_figure(outcomes, axes, strategy, measure, batch), f"{measure} over {axes[0].name} and {axes[1].name}")]


def compared(jobs: Sequence[tuple[str, Sequence[Outcome]]]) -> list[Block]:
    """Jobs, each in words with its outcomes, one column each; why strategies were refused; and all of them in one chart."""
    named = [replace(each, strategy=f"{each.strategy}, {words}", at=()) for words, outcomes in jobs for each in outcomes]
    refused = [f"{words}: {each.strategy}: {each.refusal.words}" for words, outcomes in jobs for each in outcomes if each.refusal]
    return [
        Table(side_by_side_cells(jobs), ("strategy",)),
        *map(Note, refused),
        *([Figure(lambda: pareto_figure(named), f"Step time against {MEMORY}")] if len(jobs) > 1 else []),
    ]


def value_text(value: float) -> str:
    """The value of a parameter: 128, 0.5, 1,024."""
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:.4g}"


def place(axis: str, value: float) -> str:
    """A parameter with its value: batch 128."""
    return f"{axis} {value_text(value)}"


def title(job: str, axes: Sequence[Axis]) -> str:
    """A job in words (model, batch B, ...), with the ranges of its parameters instead of their values."""
    parts = [part for part in job.split(", ") if not any(part.startswith(f"{axis.name} ") for axis in axes)]
    over = " and ".join(f"{axis.name} {_span(axis.values[0], axis.values[-1])}" for axis in axes)
    return ", ".join(parts) + (f", over {over}" if over else "")


def crossover_words(outcomes: Sequence[Outcome], axis: Axis, rival: str) -> list[str]:
    """One sentence per strategy on a sweep of one parameter: where it is faster than `rival`, and where that changes."""
    strategies = dict.fromkeys(each.strategy for each in outcomes if each.strategy not in (rival, PYTORCH))
    sentences = [(name, stretches(outcomes, name, rival)) for name in strategies]
    return [_sentence(name, own, axis.name, strategy_name(rival)) for name, own in sentences if own]


def _sentence(name: str, own: Sequence[Stretch], axis: str, rival: str) -> str:
    usable = [stretch for stretch in own if stretch.state != UNUSABLE]
    if not usable:
        return f"{name} cannot be compared with {rival} at any {axis}."
    limit = ""
    if own[-1].state == UNUSABLE:
        limit = f"; above {place(axis, usable[-1].last)} one of the two does not fit or is refused"
    paying = [stretch for stretch in usable if stretch.state == "faster"]
    if not paying:
        return f"{_not_paying(name, usable, axis, rival)}{limit}."
    if len(usable) == len(paying):
        return f"{name} pays {_everywhere(usable, axis)}: {_gains(paying)} against {rival}{limit}."
    if len(paying) > 1:
        runs = ", and ".join(_range(stretch, axis) for stretch in paying)
        return f"{name} pays {runs}: {_gains(paying)} against {rival}{limit}."
    (only,) = paying
    after = next((stretch for stretch in usable if stretch.first > only.last), None)
    before = next((stretch for stretch in reversed(usable) if stretch.last < only.first), None)
    begins = f"begins to pay at {place(axis, only.first)} ({units.speedup(only.gain_first)})" if before is not None else ""
    ends = ""
    if after is not None:
        at_last, beyond = units.speedup(only.gain_last), f"{units.speedup(after.gain_first)} at {value_text(after.first)}{_unclear(after)}"
        ends = f"stops paying above {place(axis, only.last)} ({at_last} there, {beyond})"
    return f"{name} {' and '.join(filter(None, (begins, ends)))}, against {rival}{limit}."


def _not_paying(name: str, usable: Sequence[Stretch], axis: str, rival: str) -> str:
    """A sentence, without its end, on a strategy that is surely faster nowhere."""
    states, where = {stretch.state for stretch in usable}, _everywhere(usable, axis)
    if states == {"slower"}:
        return f"{name} is slower than {rival} {where}"
    if states <= {"slower", "same"}:
        return f"{name} is no faster than {rival} {where}"
    if states <= {"cannot tell", "no verdict"}:
        return f"These predictions cannot tell whether {name} is faster than {rival} {where}: {_gains(usable)}"
    return f"{name} is not surely faster than {rival} {where}: {_gains(usable)}"


def _unclear(stretch: Stretch) -> str:
    return f", {stretch.state}" if stretch.state in ("cannot tell", "no verdict") else ""


def _everywhere(own: Sequence[Stretch], axis: str) -> str:
    return (
        f"at {place(axis, own[0].first)}" if own[0].first == own[-1].last else f"at every {axis} from {_span(own[0].first, own[-1].last)}"
    )


def _range(stretch: Stretch, axis: str) -> str:
    return f"at {axis} {_span(stretch.first, stretch.last)}"


def _span(first: float, last: float) -> str:
    return value_text(first) if first == last else f"{value_text(first)} to {value_text(last)}"


def _gains(paying: Iterable[Stretch]) -> str:
    gains = [gain for stretch in paying for gain in (stretch.gain_first, stretch.gain_last) if gain is not None]
    low, high = units.speedup(min(gains)), units.speedup(max(gains))
    return low if low == high else f"{low} to {high}"


def fastest_words(outcomes: Sequence[Outcome], axes: Sequence[Axis]) -> str:
    """Which strategy is the fastest at how many points, with the best of all; empty if nothing can be run."""
    places = dict.fromkeys(each.at for each in outcomes)
    winners = [best for at in places if (best := fastest(each for each in outcomes if each.at == at)) is not None]
    if not winners:
        return ""
    rivals = [each for each in outcomes if each.usable and each.strategy != PYTORCH]
    gains = ((own.factor, each) for each in rivals if (own := each.gain) is not None)
    factor, best = max(gains, key=itemgetter(0), default=(0.0, None))
    if not axes:
        (winner,) = winners
        return f"{strategy_name(winner.strategy)} is predicted to be the fastest: {units.duration(winner.step_s)}{_chosen(winner, rivals)}."
    counts = {name: sum(each.strategy == name for each in winners) for name in dict.fromkeys(each.strategy for each in winners)}
    ranked = sorted(counts.items(), key=lambda item: -item[1])
    shares = ", ".join(f"{strategy_name(name)} at {count}" for name, count in ranked)
    largest = ""
    if best is not None and factor > 1:
        where = ", ".join(place(axis.name, value) for axis, value in zip(axes, best.at, strict=True))
        largest = f" The largest gain: {strategy_name(best.strategy)} at {where}{_chosen(best, rivals)}."
    return f"The fastest of {len(winners)} points: {shares}.{largest}"


def _chosen(best: Outcome, rivals: Sequence[Outcome]) -> str:
    """The gain of the best of several outcomes, whose interval allows for the choice; "" for plain PyTorch."""
    if best.gain is None or best.strategy == PYTORCH:
        return ""
    over = PLAIN if PYTORCH in best.gains else BASELINE
    wider = f" (an interval for the best of {len(rivals)})" if len(rivals) > 1 and best.gain.interval is not None else ""
    return f"; against {over} {chosen(best.gain, len(rivals)).judged}{wider}"


def outcome_cells(outcomes: Sequence[Outcome], axes: Sequence[Axis]) -> list[dict[str, str]]:
    """One row per outcome, column name to text."""
    return [
        {axis.name: value_text(value) for axis, value in zip(axes, each.at, strict=True)}
        | {
            "strategy": strategy_name(each.strategy),
            "step ms": units.ms(each.step_s),
            "90 % interval": units.interval(each.interval_s),
            "against PyTorch": against_pytorch(each),
            "verdict": verdict_cell(each.gain, PYTORCH if PYTORCH in each.gains else BASELINE),
            PEAK: units.NONE if each.peak_bytes is None else units.memory(each.peak_bytes),
            "note": each.refusal.words if each.refusal else "does not fit" if not each.fits else AT_LIMIT_WORDS if each.at_limit else "",
        }
        for each in outcomes
    ]


def against_pytorch(each: Outcome) -> str:
    """The speed-up of an outcome over plain PyTorch; "-" if that is not predicted."""
    own = each.gains.get(PYTORCH)
    return own.text if own is not None else units.speedup(1.0 if each.strategy == PYTORCH and each.step_s is not None else None)


def side_by_side_cells(jobs: Sequence[tuple[str, Sequence[Outcome]]]) -> list[dict[str, str]]:
    """One row per strategy and one column per job: step time, gain over plain PyTorch and peak allocated memory."""
    names = dict.fromkeys(each.strategy for _, outcomes in jobs for each in outcomes)
    columns = {words: {each.strategy: each for each in outcomes} for words, outcomes in jobs}
    return [{"strategy": strategy_name(name)} | {words: _short(own.get(name)) for words, own in columns.items()} for name in names]


def _short(each: Outcome | None) -> str:
    if each is None:
        return ""
    if each.step_s is None:
        return "refused"
    if not each.fits:
        return "does not fit"
    memory = "" if each.peak_bytes is None else f", {units.memory(each.peak_bytes)} allocated"
    over = "" if PYTORCH in each.gains or each.strategy == PYTORCH else f" over the {BASELINE}"
    return f"{units.duration(each.step_s)}, {units.speedup(each.speedup)}{over}{memory}"


#: What a sweep can show, with the label of its axis.
SPEEDUP, STEP, RATE, MEMORY = "speed-up over plain PyTorch", "step time", "samples per second", f"{PEAK} memory"
LABELS = {SPEEDUP: SPEEDUP, STEP: "step time, ms", RATE: RATE, MEMORY: f"{MEMORY}, GiB"}
#: The parameter that is the number of samples of a step.
BATCH = "batch"
#: An axis whose values span at least this factor is logarithmic.
WIDE = 8.0
_SYMBOLS = ("circle", "diamond", "square", "triangle-up", "cross", "star", "hexagon", "pentagon", "bowtie")


@dataclass(frozen=True)
class Curve:
    """One strategy over one parameter: the points that fit, and in `beyond` those that do not fit, each with its measure."""

    strategy: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    beyond: tuple[tuple[float, float], ...]
    texts: tuple[str, ...]


def measured_as(each: Outcome, measure: str, axes: Sequence[Axis], batch: int) -> float | None:
    """An outcome in the unit of a measure; None if it has none. `batch`: the samples of a step, unless the sweep has that parameter."""
    if measure == SPEEDUP:
        return each.speedup
    if measure == MEMORY:
        return None if each.peak_bytes is None else each.peak_bytes / 2**30
    if each.step_s is None:
        return None
    names = [axis.name for axis in axes]
    samples = each.at[names.index(BATCH)] if BATCH in names else batch
    return samples / each.step_s if measure == RATE else each.step_s * 1e3


def curves(outcomes: Sequence[Outcome], axis: Axis, measure: str, batch: int) -> list[Curve]:
    """One curve per strategy, in the order of the outcomes."""
    result = []
    for name in dict.fromkeys(each.strategy for each in outcomes):
        known = sorted(
            ((each.at[0], value, each) for each in outcomes
             if each.strategy == name and (value := measured_as(each, measure, (axis,), batch)) is not None),
            key=lambda row: row[0],
        )  # fmt: skip
        inside = [row for row in known if row[2].fits]
        beyond = tuple((x, y) for x, y, each in known if not each.fits)
        texts = tuple(hover(each, (axis,)) for _, _, each in inside)
        result.append(Curve(name, tuple(x for x, _, _ in inside), tuple(y for _, y, _ in inside), beyond, texts))
    return result


def hover(each: Outcome, axes: Sequence[Axis]) -> str:
    """What a point's hover box says: strategy, place, step time with its interval, gain and memory."""
    where = ", ".join(f"{axis.name} {value_text(value)}" for axis, value in zip(axes, each.at, strict=True))
    lines = [f"<b>{labels.plotly_escaped(strategy_name(each.strategy))}</b>", labels.plotly_escaped(where)]
    if each.step_s is not None:
        lines.append(units.duration(each.step_s, each.interval_s))
    if each.gain is not None:
        lines.append(f"{each.gain.text} against {PLAIN if PYTORCH in each.gains else BASELINE}: {each.gain.verdict}")
    if each.peak_bytes is not None:
        lines.append(f"{PEAK} {units.memory(each.peak_bytes)}{'' if each.fits else ', does not fit'}")
    return "<br>".join([*lines, *([labels.plotly_escaped(each.refusal.words)] if each.refusal else [])])


def too_large(outcomes: Sequence[Outcome], axis: Axis) -> list[tuple[float, float]]:
    """By strategy that does not fit at some values: the stretches of the parameter's axis to shade, between its values' middles."""
    values, borders = axis.values, _borders(axis.values)
    bands = []
    for name in dict.fromkeys(each.strategy for each in outcomes):
        beyond = {each.at[0] for each in outcomes if each.strategy == name and not each.fits}
        bands += [(borders[number], borders[number + 1]) for number, value in enumerate(values) if value in beyond]
    return bands


def _borders(values: Sequence[float]) -> list[float]:
    """Where the stretch of each value begins, and where the last one ends; the middle of two is geometric on a logarithmic axis."""
    inner = [(a * b) ** 0.5 if _logarithmic(values) else (a + b) / 2 for a, b in pairwise(values)]
    return [values[0], *inner, values[-1]] if inner else [values[0] * 0.9, values[0] * 1.1]


def _logarithmic(values: Sequence[float]) -> bool:
    return min(values) > 0 and max(values) / min(values) >= WIDE


def curves_figure(outcomes: Sequence[Outcome], axis: Axis, measure: str, batch: int) -> "go.Figure":
    """A measure of every strategy over one parameter.

    Where a strategy does not fit its marks are hollow, and the ground is shaded, the darker the more strategies do not fit.
    """
    import plotly.graph_objects as go

    figure = go.Figure()
    for left, right in too_large(outcomes, axis):
        figure.add_vrect(left, right, fillcolor=labels.LIMIT, opacity=0.10, line_width=0, layer="below")
    for number, curve in enumerate(curves(outcomes, axis, measure, batch)):
        name, look = labels.plotly_escaped(strategy_name(curve.strategy)), labels.line_color(number)
        symbol = _SYMBOLS[number % len(_SYMBOLS)]
        common = {"legendgroup": name, "name": name}
        figure.add_scatter(
            x=curve.x, y=curve.y, mode="lines+markers", line={"color": look, "width": 2}, marker={"size": 8, "symbol": symbol},
            hovertext=curve.texts, hovertemplate="%{hovertext}<extra></extra>", showlegend=bool(curve.x), **common,
        )  # fmt: skip
        if curve.beyond:
            x, y = zip(*curve.beyond, strict=True)
            figure.add_scatter(
                x=x, y=y, mode="markers", marker={"size": 8, "symbol": f"{symbol}-open", "color": look}, showlegend=not curve.x,
                hovertemplate="does not fit<extra>%{fullData.name}</extra>", **common,
            )  # fmt: skip
    ticks = {"tickvals": list(axis.values), "ticktext": [value_text(value) for value in axis.values]}
    kind = "log" if _logarithmic(axis.values) else "linear"
    figure.update_xaxes(title_text=labels.plotly_escaped(axis.name), type=kind, gridcolor=labels.GRID, zeroline=False, **ticks)
    figure.update_yaxes(title_text=LABELS[measure], rangemode="tozero", gridcolor=labels.GRID, zeroline=False)
    if measure == SPEEDUP:
        figure.add_hline(1.0, line={"color": labels.GREY, "width": 1.5, "dash": "dash"})
    return labels.finished(figure, f"{measure[0].upper()}{measure[1:]} over {axis.name}", drawn_px=340)


@dataclass(frozen=True)
class Heat:
    """A heat map: a value and a text for each (row of the second axis, column of the first axis); None where nothing can be run."""

    values: list[list[float | None]]
    texts: list[list[str]]
    hovers: list[list[str]]


def heat(outcomes: Sequence[Outcome], axes: tuple[Axis, Axis], strategy: str | None, measure: str, batch: int) -> Heat:
    """A strategy's measure at every point of two parameters; of the fastest one at each point, by name, if `strategy` is None."""
    result = Heat([], [], [])
    for second in axes[1].values:
        row: list[tuple[float | None, str, str]] = []
        for first in axes[0].values:
            here = at_point(outcomes, (first, second))
            each = fastest(here.values()) if strategy is None else here.get(strategy)
            row.append(_cell(each, axes, measure, batch, named=strategy is None))
        result.values.append([value for value, _, _ in row])
        result.texts.append([text for _, text, _ in row])
        result.hovers.append([said for _, _, said in row])
    return result


def _cell(each: Outcome | None, axes: Sequence[Axis], measure: str, batch: int, named: bool) -> tuple[float | None, str, str]:
    if each is None:
        return None, "nothing fits" if named else "", ""
    if not each.usable:
        return None, "does not fit" if each.step_s is not None else "refused", hover(each, axes)
    value = measured_as(each, measure, axes, batch)
    shown = "" if value is None else f"{units.digits(value)}{'x' if measure == SPEEDUP else ''}"
    return value, f"{labels.plotly_escaped(strategy_name(each.strategy))}<br>{shown}" if named else shown, hover(each, axes)


def heat_figure(outcomes: Sequence[Outcome], axes: tuple[Axis, Axis], strategy: str | None, measure: str, batch: int) -> "go.Figure":
    """A heat map over two parameters. Points at which nothing can be run have a gray ground and say why."""
    import plotly.graph_objects as go

    cells = heat(outcomes, axes, strategy, measure, batch)
    x, y = ([value_text(value) for value in axis.values] for axis in axes)
    figure = go.Figure(
        go.Heatmap(
            z=cells.values, x=x, y=y, text=cells.texts, texttemplate="%{text}", hovertext=cells.hovers, hoverinfo="text", xgap=2, ygap=2,
            colorscale="Cividis", reversescale=measure in (STEP, MEMORY), colorbar={"title": {"text": LABELS[measure], "side": "right"}},
        )
    )  # fmt: skip
    for row, values in enumerate(cells.values):
        for column, value in enumerate(values):
            if value is None:
                figure.add_shape(
                    type="rect", x0=column - 0.5, x1=column + 0.5, y0=row - 0.5, y1=row + 0.5, fillcolor=labels.LIMIT, opacity=0.15,
                    line_width=0, layer="below",
                )  # fmt: skip
                figure.add_annotation(x=column, y=row, text=cells.texts[row][column], showarrow=False)
    figure.update_xaxes(title_text=labels.plotly_escaped(axes[0].name), type="category", showgrid=False)
    figure.update_yaxes(title_text=labels.plotly_escaped(axes[1].name), type="category", showgrid=False)
    whose = "the fastest strategy" if strategy is None else strategy_name(strategy)
    return labels.finished(figure, f"{measure[0].upper()}{measure[1:]} of {whose}", drawn_px=max(200, 56 * len(y)))


def pareto_figure(outcomes: Sequence[Outcome], axes: Sequence[Axis] = ()) -> "go.Figure":
    """Step time against allocated memory, one mark per outcome. A line joins those that no other beats in both; hollow ones do not fit.

    Over several batches, the time is that of a sample.
    """
    import plotly.graph_objects as go

    figure, names = go.Figure(), [axis.name for axis in axes]
    per_sample = BATCH in names
    texts = {(each.strategy, each.at): hover(each, axes) for each in outcomes}
    if per_sample:
        outcomes = [_per_sample(each, names.index(BATCH)) for each in outcomes]
    front = pareto(outcomes)
    if front:
        x, y = _ms_and_gib(front)
        figure.add_scatter(
            x=x, y=y, mode="lines", name="not beaten in both",
            line={"color": labels.GREY, "width": 1.5, "dash": "dot", "shape": "hv"}, hoverinfo="skip",
        )  # fmt: skip
    for number, name in enumerate(dict.fromkeys(each.strategy for each in outcomes)):
        own = [each for each in outcomes if each.strategy == name and each.step_s is not None and each.peak_bytes is not None]
        symbol = _SYMBOLS[number % len(_SYMBOLS)]
        x, y = _ms_and_gib(own)
        figure.add_scatter(
            x=x, y=y, mode="markers",
            name=labels.plotly_escaped(strategy_name(name)), showlegend=bool(own),
            marker={"size": 10, "color": labels.line_color(number), "symbol": [symbol if each.fits else f"{symbol}-open" for each in own]},
            hovertext=[texts[each.strategy, each.at] for each in own], hovertemplate="%{hovertext}<extra></extra>",
        )  # fmt: skip
    what = "time per sample" if per_sample else "step time"
    figure.update_xaxes(title_text=f"{what}, ms", rangemode="tozero", gridcolor=labels.GRID, zeroline=False)
    figure.update_yaxes(title_text=LABELS[MEMORY], rangemode="tozero", gridcolor=labels.GRID, zeroline=False)
    return labels.finished(figure, f"{what.capitalize()} against {MEMORY}", drawn_px=320)


def _ms_and_gib(outcomes: Iterable[Outcome]) -> tuple[list[float], list[float]]:
    """The step times and the peaks of the outcomes that have both."""
    known = [(each.step_s, each.peak_bytes) for each in outcomes]
    both = [(step_s * 1e3, peak / 2**30) for step_s, peak in known if step_s is not None and peak is not None]
    return [ms for ms, _ in both], [gib for _, gib in both]


def _per_sample(each: Outcome, place: int) -> Outcome:
    """An outcome with the times of one sample. `place`: of the batch among the axes."""
    batch = each.at[place]
    if each.step is None:
        return each
    interval = each.interval_s and (each.interval_s[0] / batch, each.interval_s[1] / batch)
    return replace(each, step=Step(step_s=each.step.step_s / batch, interval_s=interval))
