"""A sweep: strategies predicted at several values of one or two parameters, and what the answers say together.

It does not matter where they come from: the caller predicts each point and stores its `Outcome`s. Times are seconds.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, product

from traces.documents.comparison import BASELINE, PYTORCH, MemoryNeed, Prediction
from traces.documents.step import Step
from traces.documents.verdict import Gain, verdict
from traces.errors import Refusal

#: The state of a stretch in which one of the two is refused or does not fit.
UNUSABLE = "unusable"


@dataclass(frozen=True)
class Axis:
    """A parameter and the values that it takes, from small to large."""

    name: str
    values: tuple[float, ...]


@dataclass(frozen=True)
class Outcome:
    """One strategy at one point of a sweep. `at`: the value of each axis.

    `step`: None if the strategy cannot be predicted there, and then there is a `refusal`. `peak_bytes`: what is
    allocated of the memory that is closest to its size, or exceeds it most. `speedup`: over plain PyTorch at the same point, or over the
    baseline if plain PyTorch is not predicted. `gains`: over plain PyTorch and over the baseline, by the name of these, if they are
    predicted. `at_limit`: as `Prediction.is_at_limit`; then others are preferred.
    """

    strategy: str
    at: tuple[float, ...] = ()
    step: Step | None = None
    peak_bytes: int | None = None
    fits: bool = True
    speedup: float | None = None
    refusal: Refusal | None = None
    gains: Mapping[str, Gain] = field(default_factory=dict)
    at_limit: bool = False

    @property
    def step_s(self) -> float | None:
        """Seconds of the step."""
        return None if self.step is None else self.step.step_s

    @property
    def interval_s(self) -> tuple[float, float] | None:
        """Their 90 % interval."""
        return None if self.step is None else self.step.interval_s

    @property
    def usable(self) -> bool:
        """Whether the strategy can be predicted, and its plan fits into memory."""
        return self.step is not None and self.fits

    @property
    def gain(self) -> Gain | None:
        """The gain over plain PyTorch, or over the baseline if plain PyTorch is not predicted."""
        return self.gains.get(PYTORCH) or self.gains.get(BASELINE)


def outcome(strategy: str, at: tuple[float, ...], prediction: Prediction) -> Outcome:
    """Return the outcome of a prediction. `strategy`: what it is called in the sweep."""
    closest = max(prediction.memories, key=lambda need: need.needed_bytes / max(1, need.size_bytes), default=None)
    gains = {PYTORCH: prediction.gain_over_pytorch, BASELINE: prediction.gain_over_baseline}
    return Outcome(
        strategy,
        at,
        Step(step_s=prediction.step_s, interval_s=prediction.interval_s),
        _allocated(closest) if closest is not None else max((use.peak_bytes for use in prediction.devices), default=None),
        prediction.fits,
        prediction.compared_by[prediction.compared_with][0],
        gains={rival: gain for rival, gain in gains.items() if gain is not None and prediction.strategy != PYTORCH},
        at_limit=prediction.is_at_limit,
    )


def _allocated(need: MemoryNeed) -> int:
    return need.needed_bytes if need.allocated_bytes is None else need.allocated_bytes


def points(axes: Sequence[Axis]) -> list[tuple[float, ...]]:
    """Return the points of a sweep, the last axis fastest."""
    return list(product(*(axis.values for axis in axes)))


def at_point(outcomes: Iterable[Outcome], at: tuple[float, ...]) -> dict[str, Outcome]:
    """Return the outcomes of one point by strategy."""
    return {each.strategy: each for each in outcomes if each.at == at}


def fastest(outcomes: Iterable[Outcome]) -> Outcome | None:
    """Return the outcome with the shortest step among those that fit, and not at their limit if one does not; None if there is none."""
    return min((each for each in outcomes if each.usable), key=lambda each: (each.at_limit, each.step_s), default=None)


def pareto(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """Return those that fit and that no other beats in step time without needing more memory; the fastest first, each with less memory."""
    front: list[tuple[Outcome, int]] = []
    known = ((each, peak) for each in outcomes if each.usable and (peak := each.peak_bytes) is not None)
    for each, peak_bytes in sorted(known, key=lambda own: (own[0].step_s, own[1])):
        if not front or peak_bytes < front[-1][1]:
            front.append((each, peak_bytes))
    return [each for each, _ in front]


@dataclass(frozen=True)
class Stretch:
    """Successive values of a parameter, from `first` to `last`, at which a strategy does the same against a rival.

    `state`: the verdict (`traces.documents.verdict`), or "unusable" (refused, or too large for memory).
    `gain_first`, `gain_last`: the rival's step time over the strategy's at the two ends; None if unusable.
    """

    state: str
    first: float
    last: float
    gain_first: float | None = None
    gain_last: float | None = None


def stretches(outcomes: Sequence[Outcome], strategy: str, rival: str) -> list[Stretch]:
    """Return how a strategy does against a rival along a sweep of one parameter, by stretches. Points without both are skipped."""
    rows = []
    for value in sorted({each.at[0] for each in outcomes}):
        here = at_point(outcomes, (value,))
        if strategy in here and rival in here:
            own_s, rival_s = (here[name].step_s if here[name].fits else None for name in (strategy, rival))
            gain = None if own_s is None or rival_s is None else rival_s / own_s
            rows.append((UNUSABLE if gain is None else _verdict(here[strategy].gains.get(rival)), value, gain))
    result = []
    for state, group in groupby(rows, key=lambda row: row[0]):
        own = list(group)
        result.append(Stretch(state, own[0][1], own[-1][1], own[0][2], own[-1][2]))
    return result


def _verdict(gain: Gain | None) -> str:
    return verdict(None) if gain is None else gain.verdict
