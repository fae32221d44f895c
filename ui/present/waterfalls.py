"""Waterfalls as bars, as a chart and as one sentence: why a step is shorter or longer than another."""

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from simulator.predict.waterfall import COMMUNICATION, CONTENTION, IDLE, LAUNCHES, UNEXPLAINED, WAITING, overlap_of
from traces import units
from traces.documents.comparison import Change, Prediction, Validation, ValidationResult
from ui.present import palette
from ui.present.blocks import Bar, Figure
from ui.present.labels import row_labels, strategy_name

if TYPE_CHECKING:
    import plotly.graph_objects as go

#: Parts below this share of the first step are shown together.
LEAST_SHARE = 0.005
BASELINES = "than the baseline's"
SMALLER = "smaller parts"
#: Share of the bars' width that the numbers beside them need on a page of 900 pixels.
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


def prediction_bars(prediction: Prediction) -> list[Bar]:
    """The bars from the baseline to a strategy. Raises ValueError if it is not compared with the baseline."""
    if prediction.baseline_step_s is None:
        raise ValueError(f"{prediction.strategy} has no waterfall: the baseline was not predicted")
    return bars("baseline", prediction.baseline_step_s, prediction.waterfall, strategy_name(prediction.strategy), prediction.step_s)


def measured_bars(result: ValidationResult) -> list[Bar]:
    """The bars from the predicted to the measured step of a strategy, which must have a waterfall."""
    predicted_s, measured_s = result.steps_s
    return bars("predicted", predicted_s, result.waterfall, "measured", measured_s)


def prediction_words(prediction: Prediction) -> list[str]:
    """Why a strategy is faster or slower than the baseline, in one sentence; none for the baseline itself."""
    return [_sentence("The step", prediction_bars(prediction), BASELINES)] if prediction.waterfall else []


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
            increasing={"marker": {"color": palette.LONGER}},
            decreasing={"marker": {"color": palette.SHORTER}},
            totals={"marker": {"color": palette.GREY}},
            connector={"line": {"color": palette.GREY, "width": 1}},
        )
    )
    figure.update_yaxes(autorange="reversed", showgrid=False, ticksuffix=" ")
    ends_ms = [1e3 * end_s for bar in drawn for end_s in (bar.start_s, bar.end_s)]
    room = LABEL_ROOM * (max(ends_ms) - min(0.0, *ends_ms))
    figure.update_xaxes(range=[min(0.0, *ends_ms), max(ends_ms) + room], zeroline=False, gridcolor=palette.GRID)
    figure.update_xaxes(title_text="step time, ms")
    return palette.finished(figure, title, drawn_px=40 + 30 * len(drawn), legend=False)
