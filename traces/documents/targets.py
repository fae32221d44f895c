"""The time to a target accuracy: of each training, and which of two reaches it earlier, seed by seed."""

from collections.abc import Sequence

from traces.documents.base import Data
from traces.documents.curves import Curve, by_name

#: The measures of time in which trainings are compared.
MEASURES = ("iterations", "measured_s", "predicted_s")


class Reached(Data):
    """When a training reached the target; all of them are null if it never did, and `predicted_s` also without a prediction."""

    name: str
    seed: int
    iterations: int | None = None
    measured_s: float | None = None
    predicted_s: float | None = None


class Wins(Data):
    """In how many of `seeds` the training `name` reached the target earlier than `rival`, by each measure of time.

    `seeds` counts those in which either of them reached it; one that never does is later than one that does. `predicted_s` is null if not
    both have a prediction.
    """

    name: str
    rival: str
    seeds: int
    iterations: int
    measured_s: int
    predicted_s: int | None = None


def reached(curve: Curve, target: float) -> Reached:
    """When `curve` reaches a test accuracy of `target`: the first of two successive evaluations that are both at least that high.

    The last evaluation needs no second one.
    """
    evaluations = curve.evaluations
    for number, evaluation in enumerate(evaluations):
        if all(each.test_accuracy >= target for each in evaluations[number : number + 2]):
            at = evaluation.iteration
            times = {"iterations": at, "measured_s": curve.measured_s(at), "predicted_s": curve.predicted_s(at)}
            return Reached(name=curve.name, seed=curve.seed, **times)
    return Reached(name=curve.name, seed=curve.seed)


def wins(curves: Sequence[Curve], target: float) -> tuple[Wins, ...]:
    """How often the first training reaches `target` earlier than each of the others."""
    named = by_name(curves)
    times = {name: {curve.seed: reached(curve, target) for curve in of_name} for name, of_name in named.items()}
    first = next(iter(times), "")
    return tuple(_wins(times[first], times[rival]) for rival in times if rival != first)


def _wins(own: dict[int, Reached], rivals: dict[int, Reached]) -> Wins:
    pairs = [(own[seed], rivals[seed]) for seed in own if seed in rivals]
    pairs = [pair for pair in pairs if any(each.iterations is not None for each in pair)]
    counts: dict[str, int | None] = {measure: sum(_earlier(a, b, measure) for a, b in pairs) for measure in MEASURES}
    if any(each.iterations is not None and each.predicted_s is None for pair in pairs for each in pair):
        counts["predicted_s"] = None
    first, rival = next(iter(own.values())), next(iter(rivals.values()))
    return Wins(name=first.name, rival=rival.name, seeds=len(pairs), **counts)


def _earlier(a: Reached, b: Reached, measure: str) -> bool:
    """Whether `a` reached the target before `b`."""
    if a.iterations is None or b.iterations is None:
        return a.iterations is not None
    return (getattr(a, measure) or 0.0) < (getattr(b, measure) or 0.0)
