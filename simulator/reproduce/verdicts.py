"""Judging a claim of a paper from predicted numbers."""

from collections.abc import Sequence

from traces.reproduction import Check

#: A rank correlation of at least this much, with the claim's sign, is a trend.
LEAST_CORRELATION = 0.5
#: Speed-ups that differ by no more than this are equal.
EQUAL = 0.01


def rank_correlation(x: Sequence[float], y: Sequence[float]) -> float | None:
    """Spearman's: 1 where y rises with x, -1 where it falls. None for fewer than three points, or where one of them never changes.

    Both are rounded to the three decimals that tables show, so that what a reader sees as equal has no order.
    """
    shown = [[round(value, 3) for value in values] for values in (x, y)]
    if len(x) < 3 or any(len(set(values)) == 1 for values in shown):
        return None
    from scipy.stats import spearmanr  # here, because it takes a second to load

    return float(spearmanr(*shown).statistic)


def trend(name: str, claim: str, reason: str, what: str, x: Sequence[float], y: Sequence[float], sign: int) -> Check:
    """Whether y rises (`sign` 1) or falls (-1) with x by rank, and by more than what counts as equal from its least to its greatest."""
    if len(x) < 3:
        return undecided(name, claim, f"{len(x)} of at least 3 points could be predicted")
    found = rank_correlation(x, y)
    said = f"{what} {span(y)}; rank correlation {'none: it never changes' if found is None else f'{found:+.2f}'}"
    holds = found is not None and sign * found >= LEAST_CORRELATION and max(y) - min(y) > EQUAL
    figures = {"least": min(y), "most": max(y), **({"rank_correlation": found} if found is not None else {})}
    return judged(name, claim, holds, said, figures, reason)


def judged(name: str, claim: str, holds: bool, said: str, figures: dict[str, float], reason: str) -> Check:
    """A check with a verdict; the reason is told only where the claim does not hold."""
    return Check(name=name, claim=claim, holds=holds, said=said, figures=figures, reason="" if holds else reason)


def undecided(name: str, claim: str, why: str) -> Check:
    """A check that cannot be judged."""
    return Check(name=name, claim=claim, holds=None, said=why, figures={})


def span(values: Sequence[float]) -> str:
    """From the least to the greatest speed-up: 1.02x to 1.31x."""
    return f"{min(values):.3f}x to {max(values):.3f}x"
