"""How far off whole predictions were on machines that we had: what no cost's own spread explains.

A step is more than its ops alone: caches that other ops filled, clocks, contention. The validations that come with the package say how much
that made, for each kind of device and mode: with e the logarithms of predicted over measured (`scored_error`) and a the A/A spreads,

    s² = max(0, mean(e²) − mean(a²))

which `intervals` takes as an error that all costs of a prediction share.
"""

import math
from collections.abc import Iterable
from statistics import fmean

from traces.comparison import Validation
from traces.shipped import shipped_validations

#: Fewer results than these say nothing.
LEAST = 6


def discrepancy(validations: Iterable[Validation], kind: str, mode: str, but: str | None = None) -> float:
    """Standard deviation of the logarithm of a prediction's error, by validations on devices of `kind` (cpu or gpu) in `mode`.

    `but`: a model whose validations do not count, to score what the others say about it. 0 where too little is known.
    """
    chosen = [v for v in validations if v.device.get("kind") == kind and v.mode == mode and v.model != but]
    errors = [math.log1p(error) for v in chosen for error in v.scored_errors]
    noise = [v.aa_spread or 0.0 for v in chosen for _ in v.scored_errors]
    if len(errors) < LEAST:
        return 0.0
    return math.sqrt(max(0.0, fmean(e * e for e in errors) - fmean(a * a for a in noise)))


def known(kind: str, mode: str) -> float:
    """The same by the validations that come with the package."""
    return discrepancy(shipped_validations(), kind, mode)
