"""Scores of predicted steps: errors and the coverage of intervals, by GPU, model, precision or batch."""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from statistics import median
from typing import NamedTuple

from tests.benchmarks.measured_steps import LeftOut, Row


class ScoredRow(NamedTuple):
    """A published step beside its prediction, in seconds."""

    row: Row
    predicted_s: float
    interval_s: tuple[float, float]

    @property
    def log_error(self) -> float:
        """The logarithm of predicted over published."""
        return math.log(self.predicted_s / self.row.published_s)

    @property
    def error(self) -> float:
        """Predicted over published, less 1."""
        return self.predicted_s / self.row.published_s - 1

    @property
    def covered(self) -> bool:
        """Whether the published step lies in the interval."""
        return self.interval_s[0] <= self.row.published_s <= self.interval_s[1]


#: What rows are grouped by, in this order.
GROUPS: dict[str, Callable[[Row], str]] = {
    "GPU": lambda row: row.machine,
    "model": lambda row: row.model,
    "precision": lambda row: row.job.precision,
    "batch": lambda row: _batch(row.job.batch),
    "software": lambda row: f"{row.year}, {row.source}",
}


def _batch(batch: int) -> str:
    return next(
        (name for most, name in ((4, "1 to 4"), (16, "5 to 16"), (64, "17 to 64"), (256, "65 to 256")) if batch <= most), "above 256"
    )


def row_line(item: ScoredRow) -> str:
    """A line of the table of rows."""
    row, (low, high) = item.row, item.interval_s
    job = f"{row.job.model}, {row.job.batch} | {row.job.precision}{'' if row.mode == 'eager' else ', ' + row.mode}"
    times = f"{1e3 * row.published_s:.4g} | {1e3 * item.predicted_s:.4g} ({1e3 * low:.4g} to {1e3 * high:.4g})"
    return f"| {row.number} | {row.source} {row.year} | {row.machine} | {job} | {times} | {item.error:+.0%} |"


ROW_HEAD = (
    "| row | source | machine | model, batch | precision | published/ms | predicted/ms (90 %) | error |\n|---|---|---|---|---|---|---|---|"
)
GROUP_HEAD = "rows | median error | worst | median signed | in the interval |\n|---|---|---|---|---|---|"


def group_lines(scored: Sequence[ScoredRow], name: str) -> Iterable[str]:
    """The lines of a table by one of `GROUPS`, with its head."""
    yield f"\n| {name} | {GROUP_HEAD}"
    groups: dict[str, list[ScoredRow]] = defaultdict(list)
    for item in scored:
        groups[GROUPS[name](item.row)].append(item)
    for group, items in sorted(groups.items()):
        yield total_line(group, items)


def total_line(name: str, items: Sequence[ScoredRow]) -> str:
    """Number of rows, median and worst absolute error, median error with its sign, and the share in the interval."""
    worst = max((item.error for item in items), key=abs)
    typical, signed = median(abs(item.error) for item in items), median(item.error for item in items)
    inside = sum(item.covered for item in items) / len(items)
    return f"| {name} | {len(items)} | {typical:.0%} | {worst:+.0%} | {signed:+.0%} | {inside:.0%} |"


def left_out_lines(left_out: Iterable[LeftOut]) -> Iterable[str]:
    """The reasons why rows were left out, with the number of rows."""
    counts = Counter(item.why for item in left_out)
    yield "\n| left out | rows |\n|---|---|"
    for why, count in counts.most_common():
        yield f"| {why} | {count} |"
