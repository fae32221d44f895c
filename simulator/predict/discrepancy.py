"""The error of whole predictions that the spread of single costs does not explain, estimated from validations.

A step takes another time than its ops alone: other ops fill caches, clocks change, tasks contend. The validations that come with the
package show how much that is, for each kind of device and mode. Let e be the logarithms of predicted over measured (`scored_error`) and a
the A/A spreads. Then

    s² = max(0, mean(e²) − mean(a²))

which `intervals` uses as an error that all costs of a prediction share. That error cancels in a speed-up, because it makes the baseline and
the strategy slower by one factor. What does not cancel is the error that is a strategy's own: the root mean square of the logarithms of
predicted over measured speed-ups of its family. It is small for plans with the baseline's lanes (4 % for fusion) and large where lanes run
beside each other (12 % for TurboDL). The noise of the measurements stays in it, because few rows of one family say too little about it.
"""

import math
from collections.abc import Iterable, Sequence
from statistics import fmean
from types import MappingProxyType

from traces.comparison import PYTORCH, Validation
from traces.shipped import shipped_validations

#: With fewer results than these, no discrepancy is estimated.
LEAST = 6
#: Strategies that are variants of one idea. All others are families of their own.
_FAMILIES = MappingProxyType({"forward-fusion": "fusion", "backward-fusion": "fusion"})


def discrepancy(validations: Iterable[Validation], kind: str, mode: str, but: str | None = None) -> float:
    """Return the standard deviation of the logarithm of predicted over measured, from validations on devices of `kind` in `mode`.

    `kind` is cpu or gpu. `but` is a model whose validations are left out, to test the estimate on it. Returns 0 for fewer than LEAST
    results.
    """
    return _beyond_noise(_chosen(validations, kind, mode, but)) or 0.0


def speedup_discrepancy(validations: Iterable[Validation], strategy: str, kind: str, mode: str, but: str | None = None) -> float:
    """Return the root mean square of the logarithms of predicted over measured speed-ups of the strategy's family.

    If the family has fewer than LEAST results, those of all strategies count. Other arguments and the result for too few results as in
    `discrepancy`.
    """
    return _of_family(_chosen(validations, kind, mode, but), strategy) or 0.0


def family(strategy: str) -> str:
    """The family of a strategy's name, with or without options: strategies whose predictions err in the same way."""
    name = strategy.partition(":")[0]
    return _FAMILIES.get(name, name)


def shipped_discrepancy(kind: str, mode: str) -> float:
    """Return the `discrepancy` of the validations that come with the package.

    If too few of them are of this kind of device in this mode, those of this kind in any mode count, else all of them.
    """
    return next((s for pool in _pools(kind, mode) if (s := _beyond_noise(pool)) is not None), 0.0)


def shipped_speedup_discrepancy(strategy: str, kind: str, mode: str) -> float:
    """Return the `speedup_discrepancy` of the validations that come with the package, chosen as in `shipped_discrepancy`."""
    return next((s for pool in _pools(kind, mode) if (s := _of_family(pool, strategy)) is not None), 0.0)


def _pools(kind: str, mode: str) -> list[Sequence[Validation]]:
    """The shipped validations: the nearest ones to this kind of device and mode first."""
    validations = shipped_validations()
    same_kind = [v for v in validations if v.device.get("kind") == kind]
    return [[v for v in same_kind if v.mode == mode], same_kind, validations]


def _chosen(validations: Iterable[Validation], kind: str, mode: str, but: str | None) -> list[Validation]:
    return [v for v in validations if v.device.get("kind") == kind and v.mode == mode and v.model != but]


def _beyond_noise(validations: Sequence[Validation]) -> float | None:
    """The standard deviation of steps that is left when the noise is taken away; None for too few results."""
    errors = [math.log1p(error) for v in validations for error in v.scored_errors]
    noise = [v.aa_spread or 0.0 for v in validations for _ in v.scored_errors]
    if len(errors) < LEAST:
        return None
    return math.sqrt(max(0.0, fmean(e * e for e in errors) - fmean(a * a for a in noise)))


def _of_family(validations: Sequence[Validation], strategy: str) -> float | None:
    """The root mean square error of speed-ups of the strategy's family, or of all; None for too few results."""
    errors = [
        (family(row.strategy), math.log(row.predicted_speedup / row.measured_speedup))
        for v in validations
        for row in v.rows
        if row.ok and row.strategy != "baseline" and row.predicted_speedup and row.measured_speedup
    ]
    for chosen in ([error for name, error in errors if name == family(strategy)], [error for name, error in errors if name != PYTORCH]):
        if len(chosen) >= LEAST:
            return math.sqrt(fmean(e * e for e in chosen))
    return None
