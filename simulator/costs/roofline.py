"""Fit how long kernels take from their FLOPs and bytes, and say how far off such a fit is on keys it has not seen.

Three kinds of fit are tried and the one with the least leave-one-out error is kept:
scaled      t = factor · (what the committed efficiencies say)
roofline    t = t0 + max(flops / F, bytes / B)
log-linear  log t = a + b·log flops + c·log bytes
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

#: With fewer keys nothing is fitted.
LEAST_KEYS = 4
#: A regression with three coefficients needs more than that.
LEAST_KEYS_LOG_LINEAR = 8
#: How far beyond the smallest and largest key, as a factor, a law is trusted.
REACH = 2.0


@dataclass(frozen=True, slots=True)
class Point:
    """One key's work and time. `flops` per SM, so that partitions of one GPU can be pooled; `table_s`: what the efficiencies say."""

    flops: float
    bytes: float
    table_s: float
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Fit:
    """A fitted law. `error`: root mean square of the leave-one-out residuals of log t; `keys`: how many it was fitted on.

    `reach`: ranges of those keys' FLOPs, bytes and FLOPs per byte, widened. Beyond them `scale`, which has the table's shape, answers.
    """

    law: str
    error: float
    keys: int
    predict: Callable[[Point], float]
    reach: tuple[tuple[float, float], ...] = ()
    scale: "Fit | None" = None

    def at(self, point: Point) -> tuple[float, float]:
        """Predicted seconds, and one standard deviation of their logarithm."""
        within = all(least <= measure <= most for measure, (least, most) in zip(_measures(point), self.reach, strict=False))
        used = self if within or self.scale is None else self.scale
        return used.predict(point), used.error


def fit(points: Sequence[Point]) -> Fit | None:
    """The best law through `points`; None for fewer than four usable ones."""
    usable = _usable(points)
    if len(usable) < LEAST_KEYS:
        return None
    scale = _scaled(usable)
    found = [scale, _roofline(usable)]
    if len(usable) >= LEAST_KEYS_LOG_LINEAR:
        found.append(_log_linear(usable))
    reach = tuple((min(column) / REACH, max(column) * REACH) for column in zip(*map(_measures, usable), strict=True))
    return replace(min(found, key=lambda f: f.error), reach=reach, scale=scale)


def _measures(point: Point) -> tuple[float, float, float]:
    return point.flops, point.bytes, point.flops / max(point.bytes, 1.0)


def fit_scale(points: Sequence[Point]) -> Fit | None:
    """One factor for the whole table, which is all that points of several classes can say; None for fewer than four usable ones."""
    usable = _usable(points)
    return _scaled(usable) if len(usable) >= LEAST_KEYS else None


def _usable(points: Sequence[Point]) -> list[Point]:
    return [p for p in points if p.seconds > 0 and p.table_s > 0]


def _scaled(points: list[Point]) -> Fit:
    logs = np.log([p.seconds / p.table_s for p in points])
    left_out = [value - np.median(np.delete(logs, i)) for i, value in enumerate(logs)]
    factor = float(np.exp(np.median(logs)))
    return Fit("scaled", _rms(left_out), len(points), lambda p: factor * p.table_s)


def _roofline(points: list[Point]) -> Fit:
    """Search t0, F and B on a grid of rates that the keys themselves reach; every combination's error is known for every key, so that
    leaving one out is a subtraction."""
    flops, moved, seconds = (np.array([getattr(p, name) for p in points]) for name in ("flops", "bytes", "seconds"))
    combinations = []
    for t0 in seconds.min() * np.array([0.0, 0.3, 0.6, 0.9]):
        quantiles = np.linspace(0.1, 1.0, 19)
        rest = seconds - t0
        slow = [np.quantile(rest[work > 0] / work[work > 0], quantiles[::-1]) if (work > 0).any() else [0.0] for work in (flops, moved)]
        combinations += [(t0, f, b) for f in slow[0] for b in slow[1]]
    t0, per_flop, per_byte = np.array(combinations).T[:, :, None]
    residuals = np.log(t0 + np.maximum(per_flop * flops, per_byte * moved) + 1e-12) - np.log(seconds)
    total = np.abs(residuals).sum(axis=1)
    left_out = [residuals[np.argmin(total - np.abs(residuals[:, i])), i] for i in range(len(points))]
    best_t0, best_flop, best_byte = map(float, combinations[int(np.argmin(total))])
    return Fit("roofline", _rms(left_out), len(points), lambda p: best_t0 + max(best_flop * p.flops, best_byte * p.bytes) + 1e-12)


def _log_linear(points: list[Point]) -> Fit:
    rows = np.array([_features(p) for p in points])
    logs = np.log([p.seconds for p in points])
    inverse = np.linalg.pinv(rows, rcond=1e-6)
    weights = inverse @ logs
    leverage = np.clip(np.einsum("ij,ji->i", rows, inverse), 0.0, 0.999)
    left_out = (logs - rows @ weights) / (1 - leverage)
    return Fit("log-linear", _rms(left_out), len(points), lambda p: float(np.exp(np.dot(_features(p), weights))))


def _features(point: Point) -> tuple[float, float, float]:
    return (1.0, float(np.log(max(point.flops, 1.0))), float(np.log(max(point.bytes, 1.0))))


def _rms(residuals: Sequence[float]) -> float:
    return float(np.sqrt(np.mean(np.square(residuals))))
