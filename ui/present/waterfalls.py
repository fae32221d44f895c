"""Waterfalls as bars, as a terminal table and as one sentence: why a step is shorter or longer than another."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table
from rich.text import Text

from simulator.predict.waterfall import COMMUNICATION, CONTENTION, IDLE, LAUNCHES, UNEXPLAINED, WAITING, overlap_of
from traces import units
from traces.documents.comparison import Change, Prediction, Validation, ValidationResult
from ui.present.labels import row_labels, strategy_name

#: Parts below this share of the first step are shown together.
LEAST_SHARE = 0.005
BASELINES = "than the baseline's"
SMALLER = "smaller parts"
#: Characters of the terminal's bars at most.
WIDTH = 50
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


@dataclass(frozen=True)
class Bar:
    """One bar of a waterfall, from `start_s` to `end_s`: a whole step, which starts at 0, or a part. `ms`: its length or change, rounded.

    The rounded numbers of a waterfall add up.
    """

    label: str
    ms: str
    start_s: float
    end_s: float
    is_step: bool = False

    @property
    def change_s(self) -> float:
        """By how much the bar makes the step longer."""
        return self.end_s - self.start_s


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


def terminal_table(waterfall: Sequence[Bar], columns: int = 100) -> Table:
    """The bars for a terminal of so many columns: label, milliseconds, and the bar.

    What shortens the step is green, what lengthens it red.
    """
    table = Table(box=None, show_header=False, padding=(0, 1))
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(no_wrap=True)
    words = max(len(bar.label) for bar in waterfall) + max(len(f"{bar.ms} ms") for bar in waterfall)
    width = max(8, min(WIDTH, columns - words - 6))
    longest_s = max(max(bar.start_s, bar.end_s) for bar in waterfall)
    for bar in waterfall:
        left, right = (round(width * max(0.0, end) / longest_s) for end in sorted((bar.start_s, bar.end_s)))
        left = min(left, width - 1)
        style = "bold" if bar.is_step else "green" if bar.change_s < 0 else "red"
        blocks = " " * left + ("█" if bar.is_step else "▓") * max(1, right - left)
        table.add_row(Text(bar.label, style="bold" if bar.is_step else ""), Text(f"{bar.ms} ms"), Text(blocks, style=style))
    return table
