"""The accuracy of a training in words and cells: how high it is, when it reaches the target, and who reaches it earlier."""

import statistics
from collections.abc import Sequence

from traces import units
from traces.documents.curves import AUTOGRAD, Curve
from traces.documents.targets import Reached, Wins
from traces.documents.training import TrainingRun


def cells(document: TrainingRun, curves: Sequence[Curve]) -> dict[str, str]:
    """Columns of one training, with its curves of all seeds; none without evaluations in the document."""
    if not any(curve.evaluations for curve in document.curves):
        return {}
    last = [curve.evaluations[-1] for curve in curves if curve.evaluations]
    row = {
        "train accuracy": _percents([each.train_accuracy for each in last]),
        "test accuracy": _percents([each.test_accuracy for each in last]),
    }
    if document.target is None:
        return row
    times = [each for each in document.reached if each.name == curves[0].name]
    row[f"iterations to {share(document.target)}"] = _median([each.iterations for each in times], lambda value: f"{value:,.0f}")
    row[f"seconds to {share(document.target)}"] = _median([each.measured_s for each in times], units.digits)
    if document.predicted_on:
        row[f"predicted s to {share(document.target)}"] = _median([each.predicted_s for each in times], units.digits)
    return row


def sentences(document: TrainingRun) -> list[str]:
    """A line on how often the first training reaches the target earlier than each other one, or one on each that never does."""
    if document.target is None:
        return []
    return [_wins_words(each, document) for each in document.wins] or [_reached_words(each, document) for each in document.reached]


def _wins_words(wins: Wins, document: TrainingRun) -> str:
    goal = f"a test accuracy of {share(document.target)}"
    rival = "plain PyTorch" if wins.rival == AUTOGRAD else wins.rival
    if not wins.seeds:
        return f"neither {wins.name} nor {rival} reaches {goal}"
    counts = [f"{wins.iterations} by iterations", f"{wins.measured_s} by measured seconds"]
    if wins.predicted_s is not None:
        counts.append(f"{wins.predicted_s} by the seconds predicted for {document.predicted_on}")
    return f"{wins.name} reaches {goal} earlier than {rival}: of {wins.seeds} {_seeds(wins.seeds)}, in {', '.join(counts)}"


def _reached_words(reached: Reached, document: TrainingRun) -> str:
    goal = f"a test accuracy of {share(document.target)}"
    seed = f" with seed {reached.seed}" if len(document.reached) > 1 else ""
    if reached.iterations is None:
        return f"{reached.name} does not reach {goal}{seed}"
    predicted = f", {units.digits(reached.predicted_s)} s predicted for {document.predicted_on}" if reached.predicted_s is not None else ""
    return f"{reached.name} reaches {goal}{seed} after {reached.iterations:,} iterations, {units.digits(reached.measured_s)} s{predicted}"


def share(value: float) -> str:
    """A share in percent with no more decimals than it needs: 95 %, 97.5 %."""
    return f"{100 * value:.4g} %"


def _seeds(count: int) -> str:
    return "seed" if count == 1 else "seeds"


def _percents(shares: Sequence[float]) -> str:
    """The median, and the range of several."""
    if not shares:
        return units.NONE
    middle, low, high = (100 * each for each in (statistics.median(shares), min(shares), max(shares)))
    return f"{middle:.1f} %" + (f" ({low:.1f} to {high:.1f})" if len(shares) > 1 else "")


def _median(values: Sequence[float | None], text) -> str:
    """The median of those that there are, the range of several, and how many there are if some are missing."""
    known = [value for value in values if value is not None]
    if not known:
        return units.NONE
    spread = f" ({text(min(known))} to {text(max(known))})" if len(known) > 1 else ""
    return f"{text(statistics.median(known))}{spread}" + (f", {len(known)} of {len(values)}" if len(known) < len(values) else "")
