"""The error of whole predictions that the spread of single costs does not explain, estimated from validations.

A step takes another time than its ops alone: other ops fill caches, clocks change, tasks contend. The validations that come with the
package show how much that is, for each kind of device and mode. Let e be the logarithms of predicted over measured (`scored_error`) and a
the A/A spreads. Then

    s² = max(0, mean(e²) − mean(a²))

which `intervals` uses as an error that all costs of a prediction share.
"""

import math
from collections.abc import Iterable
from statistics import fmean

from traces.comparison import Validation
from traces.shipped import shipped_validations

#: With fewer results than these, no discrepancy is estimated.
LEAST = 6


def discrepancy(validations: Iterable[Validation], kind: str, mode: str, but: str | None = None) -> float:
    """Return the standard deviation of the logarithm of predicted over measured, from validations on devices of `kind` in `mode`.

    `kind` is cpu or gpu. `but` is a model whose validations are left out, to test the estimate on it. Returns 0 for fewer than LEAST
    results.
    """
    chosen = [v for v in validations if v.device.get("kind") == kind and v.mode == mode and v.model != but]
    errors = [math.log1p(error) for v in chosen for error in v.scored_errors]
    noise = [v.aa_spread or 0.0 for v in chosen for _ in v.scored_errors]
    if len(errors) < LEAST:
        return 0.0
    return math.sqrt(max(0.0, fmean(e * e for e in errors) - fmean(a * a for a in noise)))


def shipped_discrepancy(kind: str, mode: str) -> float:
    """Return the `discrepancy` of the validations that come with the package."""
    return discrepancy(shipped_validations(), kind, mode)
