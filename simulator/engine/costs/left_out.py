"""How wrong fitted costs are: learned by leaving out whole models, by op class and by how far a key lies beyond those that were fitted.

Each model of a profile is predicted from the keys of the others. A residual is the logarithm of measured over predicted seconds. Within a
model, keys count by their seconds, since the error of a step is what matters; models count alike. Leaving out single keys instead
understates the error, because a model has many keys that are like each other and none that are like those of the next model.
"""

import json
import math
from bisect import bisect_left
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple, Protocol

from simulator.engine.costs.cost import Z_90
from simulator.engine.costs.roofline import Estimate
from traces.documents.profile import KeyCost, Profile

#: With fewer models than these a profile says too little about the next one, and with fewer in a bin that bin does.
LEAST_MODELS, LEAST_IN_BIN = 4, 3
#: Upper limits of the bins of `Fit.beyond`: within the fitted keys, up to 4 and 32 times beyond, farther, and a class without keys.
LIMITS = (0.0, math.log(4), math.log(32), 1e9)
#: The row of all classes together.
EVERY = ""
#: One standard deviation of the logarithm if nothing is known: a factor of four either way in 90 of 100 cases.
WIDE = math.log(4) / Z_90
#: Models that are left out, and keys of one model and class that are predicted then, at most. More of them only take time.
_MOST_MODELS, _MOST_KEYS = 12, 60
SHIPPED = Path(__file__).with_name("left_out.json")


class Bin(NamedTuple):
    """The root mean square residual of some models' keys."""

    models: int
    rms: float


class LeftOut(NamedTuple):
    """The errors by op class (EVERY: all together), one `Bin` for each limit and one for classes without keys. `models`: which they are."""

    models: tuple[str, ...]
    bins: Mapping[str, tuple[Bin, ...]]

    def error(self, op_class: str, beyond: float) -> float:
        """One standard deviation of the logarithm of a cost; never less than nearer to the fitted keys."""
        last = bisect_left(LIMITS, beyond)
        return max(self._of_bin(op_class, number) for number in range(last + 1)) if last < len(LIMITS) else self._of_bin(op_class, last)

    def _of_bin(self, op_class: str, number: int) -> float:
        rows = (self.bins.get(name) for name in (op_class, op_class.partition(".")[0], EVERY))
        return next((row[number].rms for row in rows if row is not None and row[number].models >= LEAST_IN_BIN), WIDE)


class Fits(Protocol):
    """Predicts keys from others."""

    def estimate(self, key: str, cost: KeyCost) -> Estimate | None:
        """The predicted seconds of a measured key."""


def left_out(profile: Profile, without: Callable[[str], Fits]) -> LeftOut | None:
    """The errors of the profile's models. `without`: fits on all models but one. None if the profile has fewer than LEAST_MODELS."""
    models = sorted({cost.model for cost in profile.costs.values()} - {""})
    if len(models) < LEAST_MODELS:
        return None
    squares: dict[tuple[str, int], list[float]] = {}
    for model in models[:: (len(models) - 1) // _MOST_MODELS + 1]:
        fits = without(model)
        own: dict[tuple[str, int], list[tuple[float, float]]] = {}
        for key, cost in _keys_of(profile, model):
            estimate, measured_s = fits.estimate(key, cost), (cost.cold or cost.warm).median_s
            if estimate is not None and estimate.seconds > 0:
                residual = math.log(measured_s / estimate.seconds)
                for name in (cost.op_class, EVERY):
                    own.setdefault((name, bisect_left(LIMITS, estimate.beyond)), []).append((measured_s, residual**2))
        for place, weighted in own.items():
            total_s = sum(seconds for seconds, _ in weighted)
            squares.setdefault(place, []).append(sum(seconds * square for seconds, square in weighted) / total_s)
    bins = {
        name: tuple(_bin(squares.get((name, number), ())) for number in range(len(LIMITS) + 1)) for name in sorted({n for n, _ in squares})
    }
    return LeftOut(tuple(models), bins)


def _bin(squares) -> Bin:
    return Bin(len(squares), round(math.sqrt(sum(squares) / len(squares)), 3) if squares else 0.0)


def _keys_of(profile: Profile, model: str) -> list[tuple[str, KeyCost]]:
    """A model's keys that a fit can be scored on, at most _MOST_KEYS of each class, spread evenly."""
    by_class: dict[str, list[tuple[str, KeyCost]]] = {}
    for key, cost in profile.costs.items():
        if cost.model == model and cost.op_class and (cost.cold or cost.warm).median_s > 0:
            by_class.setdefault(cost.op_class, []).append((key, cost))
    return [pair for own in by_class.values() for pair in own[:: len(own) // _MOST_KEYS + 1]]


@cache
def shipped_left_out() -> LeftOut:
    """The errors of the models that `python -m tests.benchmarks cost-fit` measured; `left_out.json` names them."""
    document = json.loads(SHIPPED.read_text())
    return LeftOut(tuple(document["models"]), {name: tuple(Bin(*each) for each in row) for name, row in document["classes"].items()})
