"""The claims of a paper, judged by predictions alone: that figures rise or fall, have an order, or lie within bounds."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Literal

from traces.documents.base import Data
from traces.documents.reproduction import Check

#: A rank correlation of at least this much, with the claim's sign, is a trend.
LEAST_CORRELATION = 0.5
#: Speed-ups that differ by no more than this are equal.
EQUAL = 0.01

#: The least and the largest value of a figure; None: no bound.
Bounds = tuple[float | None, float | None]


class Claim(Data, extra="forbid"):
    """A claim and how it is judged.

    `source`: where the paper says it. `reason`: why it may not have been reproduced. `undecided`: what is said of no case. `said`: a format
    of one case, from the name `case` and the values by position, or the first words of a trend. `summary`: a format of all cases, from
    `cases`, `right` and `count`.

    A trend has a `sign`: y rises (1) or falls (-1) with x. Other claims are about the figures of each case. `figures`: their names (formats
    of the values), which `label` combines with the case; with no names, a case has one figure. `order`: names of figures in rising order,
    each larger than the one before by more than `margin`. `within`: bounds by position, widened by the share `tolerance` and the amount
    `rounding`.
    """

    name: str
    claim: str
    source: str = ""
    reason: str = ""
    undecided: str = ""
    said: str = ""
    summary: str = "{cases}"
    sign: Literal[-1, 1] = 1
    figures: tuple[str, ...] = ()
    label: str = "{case}, {name}"
    order: tuple[str, ...] = ()
    margin: float = 0.0
    within: tuple[Bounds, ...] = ()
    tolerance: float = 0.0
    rounding: float = 0.0

    def trend(self, points: Sequence[tuple[float, float]], reason: str = "") -> Check:
        """Judge that y rises or falls with x by rank, and that its range is larger than EQUAL. `points`: x and y."""
        if len(points) < 3:
            return self.unjudged(f"{len(points)} of at least 3 points could be predicted")
        x, y = zip(*points, strict=True)
        correlation = rank_correlation(x, y)
        said = f"{self.said} {span(y)}; rank correlation {'none: it never changes' if correlation is None else f'{correlation:+.2f}'}"
        holds = correlation is not None and self.sign * correlation >= LEAST_CORRELATION and max(y) - min(y) > EQUAL
        figures = {"least": min(y), "most": max(y), **({"rank_correlation": correlation} if correlation is not None else {})}
        return self.judged(holds, said, figures, reason)

    def each(self, cases: Mapping[str, Sequence], within: Mapping[str, Sequence[Bounds]] | None = None, **words: object) -> Check:
        """Judge that every case has the order and the bounds. A case without one of its values (None) is left out.

        `cases`: values by case; those beyond the figures are for formats. `within`: bounds of each case. `words`: more for the summary.
        """
        known = {case: values for case, values in cases.items() if None not in values}
        if not known:
            return self.unjudged()
        figures = {
            self.label.format(case=case, name=name.format(*values)) if name else case: value
            for case, values in known.items()
            for name, value in zip(self.figures or ("",), values, strict=False)
        }
        right = sum(self._right(values, self.within if within is None else within.get(case, ())) for case, values in known.items())
        phrases = "; ".join(self.said.format(*values, case=case) for case, values in known.items())
        return self.judged(right == len(known), self.summary.format(cases=phrases, right=right, count=len(known), **words), figures)

    def _right(self, values: Sequence[float], within: Sequence[Bounds]) -> bool:
        named = dict(zip(self.figures, values, strict=False))
        ordered = all(named[larger] > named[smaller] + self.margin for smaller, larger in pairwise(self.order))
        return ordered and all(self._inside(value, *bounds) for value, bounds in zip(values, within, strict=False))

    def _inside(self, value: float, least: float | None, most: float | None) -> bool:
        enough = least is None or value >= least * (1 - self.tolerance) - self.rounding
        return enough and (most is None or value <= most * (1 + self.tolerance) + self.rounding)

    def judged(self, holds: bool, said: str, figures: Mapping[str, float], reason: str = "") -> Check:
        """Return a check with a verdict; the reason (default: the claim's) is included only if the claim does not hold."""
        why = "" if holds else reason or self.reason
        return Check(name=self.name, claim=self.claim, holds=holds, said=said, figures=figures, reason=why)

    def unjudged(self, why: str = "") -> Check:
        """Return a check that cannot be judged; `why`: default `undecided`."""
        return Check(name=self.name, claim=self.claim, holds=None, said=why or self.undecided, figures={})


def rank_correlation(x: Sequence[float], y: Sequence[float]) -> float | None:
    """Return Spearman's rank correlation: 1 if y always rises with x, -1 if it always falls.

    Returns None for fewer than three points, or if x or y is constant. Both are rounded to the three decimals that tables show, so that
    values that look equal in a table have no order.
    """
    shown = [[round(value, 3) for value in values] for values in (x, y)]
    if len(x) < 3 or any(len(set(values)) == 1 for values in shown):
        return None
    from scipy.stats import spearmanr  # here, because it takes a second to load

    return float(spearmanr(*shown).statistic)


def span(values: Sequence[float]) -> str:
    """Format the range of speed-ups: 1.02x to 1.31x."""
    return f"{min(values):.3f}x to {max(values):.3f}x"
