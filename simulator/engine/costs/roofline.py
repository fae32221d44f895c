"""Fits kernel times as functions of FLOPs and bytes, and estimates the error of each fit on unseen keys.

Three laws are tried, and the one with the smallest leave-one-out error is used:
scaled      t = factor · (time by the committed efficiencies)
roofline    t = t0 + max(flops / F, bytes / B)
log-linear  log t = a + b·log flops + c·log bytes
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

#: Fewest keys for any fit.
LEAST_KEYS = 4
#: Fewest keys for the log-linear law, a regression with three coefficients.
LEAST_KEYS_LOG_LINEAR = 8
#: Factor beyond the smallest and largest key within which a law is trusted.
REACH = 2.0


@dataclass(frozen=True, slots=True)
class Point:
    """Work and time of one key.

    `table_s`: time by the committed efficiencies. `seconds`: measured time.
    """

    flops: float
    bytes: float
    table_s: float
    seconds: float = 0.0


class Estimate(NamedTuple):
    """Predicted seconds, one standard deviation of their logarithm, and how far the key lies beyond those fitted (`Fit.beyond`)."""

    seconds: float
    error: float
    beyond: float


@dataclass(frozen=True, slots=True)
class Fit:
    """A fitted law.

    `error`: root mean square of the leave-one-out residuals of log t. `ranges`: those of the fitted keys' FLOPs, bytes and FLOPs per byte;
    empty for a law of other classes' keys. More than REACH beyond them `scale` predicts instead, which has the shape of the table.
    """

    law: str
    error: float
    predict: Callable[[Point], float]
    ranges: tuple[tuple[float, float], ...] = ()
    scale: "Fit | None" = None

    def at(self, point: Point) -> Estimate:
        """The estimate for a key."""
        used = self._trusted(point)
        return Estimate(used.predict(point), used.error, self.beyond(point))

    def beyond(self, point: Point) -> float:
        """The logarithm of the largest factor by which a measure of the key lies outside the ranges: 0 within, inf if there are none."""
        if not self.ranges:
            return math.inf
        return math.log(max(max(least / own, own / most, 1.0) for own, (least, most) in zip(_measures(point), self.ranges, strict=True)))

    def _trusted(self, point: Point) -> "Fit":
        """This law if the point is within its reach, else `scale`."""
        return self if self.scale is None or self.beyond(point) <= math.log(REACH) else self.scale


def fit(points: Sequence[Point]) -> Fit | None:
    """The law that fits `points` best; None if fewer than LEAST_KEYS of them are usable."""
    usable = _usable(points)
    if len(usable) < LEAST_KEYS:
        return None
    scale = _scaled(usable)
    fits = [scale, _roofline(usable)]
    if len(usable) >= LEAST_KEYS_LOG_LINEAR:
        fits.append(_log_linear(usable))
    ranges = tuple((min(column), max(column)) for column in zip(*map(_measures, usable), strict=True))
    return replace(min(fits, key=lambda f: f.error), ranges=ranges, scale=scale)


def _measures(point: Point) -> tuple[float, float, float]:
    """FLOPs, bytes and FLOPs per byte, of one more each, since some ops have none."""
    flops, moved = point.flops + 1.0, point.bytes + 1.0
    return flops, moved, flops / moved


def fit_scale(points: Sequence[Point]) -> Fit | None:
    """One factor for the whole table, the only law for points of several op classes; None if fewer than LEAST_KEYS are usable."""
    usable = _usable(points)
    return _scaled(usable) if len(usable) >= LEAST_KEYS else None


def _usable(points: Sequence[Point]) -> list[Point]:
    return [p for p in points if p.seconds > 0 and p.table_s > 0]


def _scaled(points: list[Point]) -> Fit:
    logs = np.log([p.seconds / p.table_s for p in points])
    factor = float(np.exp(np.median(logs)))
    return Fit("scaled", _rms(_median_residuals(np.sort(logs))), lambda p: factor * p.table_s)


def _median_residuals(ordered: np.ndarray) -> np.ndarray:
    """Each of two or more sorted values minus the median of the others."""
    places, middle = np.arange(len(ordered)), ((len(ordered) - 2) // 2, (len(ordered) - 1) // 2)
    return ordered - sum(ordered[own + (places <= own)] for own in middle) / 2


def _roofline(points: list[Point]) -> Fit:
    """Search t0, F and B on a grid of rates that the keys reach.

    The error of every combination is computed for every key, so that leaving a key out is a subtraction.
    """
    flops, moved, seconds = (np.array([getattr(p, name) for p in points]) for name in ("flops", "bytes", "seconds"))
    combinations = []
    for t0 in seconds.min() * np.array([0.0, 0.3, 0.6, 0.9]):
        quantiles = np.linspace(0.1, 1.0, 19)
        rest = seconds - t0
        # Less than one FLOP or byte is none: no op has so little, and dividing by it may overflow.
        slow = [np.quantile(rest[work >= 1] / work[work >= 1], quantiles[::-1]) if (work >= 1).any() else [0.0] for work in (flops, moved)]
        combinations += [(t0, f, b) for f in slow[0] for b in slow[1]]
    t0, per_flop, per_byte = np.array(combinations).T[:, :, None]
    residuals = np.log(t0 + np.maximum(per_flop * flops, per_byte * moved) + 1e-12) - np.log(seconds)
    total = np.abs(residuals).sum(axis=1)
    left_out = [residuals[np.argmin(total - np.abs(residuals[:, i])), i] for i in range(len(points))]
    best_t0, best_flop, best_byte = map(float, combinations[int(np.argmin(total))])
    return Fit("roofline", _rms(left_out), lambda p: best_t0 + max(best_flop * p.flops, best_byte * p.bytes) + 1e-12)


def _log_linear(points: list[Point]) -> Fit:
    rows = np.array([_features(p) for p in points])
    logs = np.log([p.seconds for p in points])
    inverse = np.linalg.pinv(rows, rcond=1e-6)
    weights = inverse @ logs
    leverage = np.clip(np.einsum("ij,ji->i", rows, inverse), 0.0, 0.999)
    left_out = (logs - rows @ weights) / (1 - leverage)
    return Fit("log-linear", _rms(left_out), lambda p: float(np.exp(np.dot(_features(p), weights))))


def _features(point: Point) -> tuple[float, float, float]:
    return (1.0, float(np.log(max(point.flops, 1.0))), float(np.log(max(point.bytes, 1.0))))


def _rms(residuals: Sequence[float] | np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(residuals))))
