"""Fits the law of a collective to its measured times by size, and stores it in the profile.

A library (NCCL, gloo) changes its algorithm and protocol with the size of what it reduces; each of them has a latency and a time per byte.
So times follow a few lines, one per range of sizes, with jumps where the library does not switch at the best size. The fit chooses lines
and borders with the least squared relative error (dynamic programming over the points; Bellman, "On the approximation of curves by line
segments using dynamic programming", 1961), and the fewest lines that predict held-out points as well as any number, within a standard
error.
"""

import statistics
from collections.abc import Iterable, Sequence

import numpy as np

from traces.documents.collectives import CollectiveLaw, LawPiece, law_name
from traces.documents.profile import Profile
from traces.errors import SchedcastError

#: The most pieces that are tried, and the fewest points of a piece.
MOST_PIECES, LEAST_POINTS = 8, 4
#: The points are divided into this many folds; each is held out once.
FOLDS = 5

#: (bytes, seconds)
Point = tuple[float, float]


def store_collective(profile: Profile, operation: str, library: str, ranks: int, points: Iterable[Point]) -> CollectiveLaw:
    """Add measured (bytes, seconds) to the profile's points of other sizes, and fit the law again.

    Bytes are those of one rank's operands. Raises SchedcastError if there are no points, or times of 0.
    """
    name = law_name(operation, library, ranks)
    law = profile.collectives.get(name)
    merged = {**dict(law.points if law else ()), **dict(_by_size(points))}
    profile.collectives[name] = fit_collective(merged.items())
    return profile.collectives[name]


def fit_collective(points: Iterable[Point]) -> CollectiveLaw:
    """The law of (bytes, seconds). Several times of one size count as their median.

    Raises SchedcastError if there are no points, or times of 0.
    """
    medians = _by_size(points)
    if not medians or medians[0][0] < 0 or min(seconds for _, seconds in medians) <= 0:
        raise SchedcastError(f"a collective's law needs sizes of at least 0 bytes and times above 0 s; got {medians[:4]}")
    count, error = _pieces_needed(medians)
    return CollectiveLaw(pieces=_fits(medians, count)[-1], points=medians, held_out_error=error)


def _by_size(points: Iterable[Point]) -> list[Point]:
    by_size: dict[float, list[float]] = {}
    for size, seconds in points:
        by_size.setdefault(float(size), []).append(float(seconds))
    return [(size, statistics.median(by_size[size])) for size in sorted(by_size)]


def _pieces_needed(points: Sequence[Point]) -> tuple[int, float | None]:
    """The number of pieces, and their mean relative error on held-out points; 1 and None if there are too few points to tell."""
    if len(points) < 2 * LEAST_POINTS:
        return 1, None
    errors = np.full((FOLDS, MOST_PIECES), np.inf)
    for fold in range(FOLDS):
        fitted = [point for index, point in enumerate(points) if index % FOLDS != fold]
        held_out = points[fold::FOLDS]
        for number, pieces in enumerate(_fits(fitted, MOST_PIECES)):
            law = CollectiveLaw(pieces=pieces)
            errors[fold, number] = statistics.fmean(abs(law.seconds(size) / seconds - 1) for size, seconds in held_out)
    usable = errors[:, np.isfinite(errors).all(axis=0)]
    mean, uncertain = usable.mean(axis=0), usable.std(axis=0) / np.sqrt(FOLDS)
    best = int(mean.argmin())
    fewest = int((mean <= mean[best] + uncertain[best]).argmax())
    return fewest + 1, float(mean[fewest])


def _fits(points: Sequence[Point], most: int) -> list[list[LawPiece]]:
    """The best laws of 1, 2, ... pieces, up to `most` or as many as the points allow."""
    sizes, seconds = np.array(points).T
    errors, latency_s, s_per_byte = _lines(sizes, seconds)
    count = len(sizes)
    first, last = np.indices((count, count))
    errors[last - first + 1 < min(LEAST_POINTS, count)] = np.inf
    best, begins = errors[0], []
    laws = []
    for number in range(most):
        if number:
            totals = best[:-1, None] + errors[1:]  # indexed by the end of the earlier pieces, and by the end of the last piece
            begins.append(totals.argmin(axis=0) + 1)
            best = totals.min(axis=0)
        if not np.isfinite(best[-1]):
            break
        pieces, end = [], count - 1
        for begin in (*(table for table in reversed(begins)), np.zeros(count, int)):
            start = int(begin[end])
            pieces.append(LawPiece(float(sizes[end]), float(latency_s[start, end]), float(s_per_byte[start, end])))
            end = start - 1
        laws.append(pieces[::-1])
    return laws


def _lines(sizes: np.ndarray, seconds: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(squared relative error, latency, time per byte) of the line through points i to j, at [i, j]. Latency and time are at least 0."""
    unit = sizes.max() or 1.0
    x, weight = sizes / unit, seconds**-2.0

    def sums(values: np.ndarray) -> np.ndarray:
        total = np.concatenate([[0.0], np.cumsum(values)])
        return total[None, 1:] - total[:-1, None]

    one, by_x, by_xx = sums(weight), sums(weight * x), sums(weight * x * x)
    by_y, by_xy, by_yy = sums(weight * seconds), sums(weight * x * seconds), sums(weight * seconds**2)
    with np.errstate(divide="ignore", invalid="ignore"):
        spread = one * by_xx - by_x**2
        slope = np.where(spread > 1e-12 * one * by_xx, (one * by_xy - by_x * by_y) / spread, 0.0).clip(min=0.0)
        start = (by_y - slope * by_x) / one
        through_0 = start < 0.0
        slope, start = np.where(through_0, by_xy / by_xx, slope), np.where(through_0, 0.0, start)
    error = by_yy - 2 * start * by_y - 2 * slope * by_xy + start**2 * one + 2 * start * slope * by_x + slope**2 * by_xx
    ordered = np.tri(len(x), dtype=bool).T
    return np.where(ordered, error.clip(min=0.0), np.inf), start, slope / unit
