"""Judge a claim of a paper from predicted numbers."""

from collections.abc import Sequence

from traces.reproduction import Check

#: A rank correlation of at least this much, with the claim's sign, is a trend.
LEAST_CORRELATION = 0.5
#: Speed-ups that differ by no more than this are equal.
EQUAL = 0.01


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


def trend(name: str, claim: str, reason: str, what: str, x: Sequence[float], y: Sequence[float], sign: int) -> Check:
    """Check that y rises (`sign` 1) or falls (-1) with x by rank, and that its range is larger than EQUAL."""
    if len(x) < 3:
        return undecided(name, claim, f"{len(x)} of at least 3 points could be predicted")
    correlation = rank_correlation(x, y)
    result = f"{what} {span(y)}; rank correlation {'none: it never changes' if correlation is None else f'{correlation:+.2f}'}"
    holds = correlation is not None and sign * correlation >= LEAST_CORRELATION and max(y) - min(y) > EQUAL
    figures = {"least": min(y), "most": max(y), **({"rank_correlation": correlation} if correlation is not None else {})}
    return judged(name, claim, holds, result, figures, reason)


def judged(name: str, claim: str, holds: bool, result: str, figures: dict[str, float], reason: str) -> Check:
    """Return a check with a verdict; the reason is included only if the claim does not hold."""
    return Check(name=name, claim=claim, holds=holds, said=result, figures=figures, reason="" if holds else reason)


def undecided(name: str, claim: str, why: str) -> Check:
    """Return a check that cannot be judged."""
    return Check(name=name, claim=claim, holds=None, said=why, figures={})


def span(values: Sequence[float]) -> str:
    """Format the range of speed-ups: 1.02x to 1.31x."""
    return f"{min(values):.3f}x to {max(values):.3f}x"
