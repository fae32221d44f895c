"""The measured key that is most like one that was not measured: the same op on operands of another batch, or of another image size.

The two keys differ in extents only, all by one factor. The fits say how the time grows with that factor, and the measured key what is
special about the op, such as the algorithm that a library chose for it.
"""

import math
import re
from collections.abc import Iterable, Sequence

import numpy as np

_NUMBERS = re.compile(r"\d+\.?\d*")
_DIGITS = re.compile(r"[\d.]+")


def family(key: str) -> str:
    """The family of a key: the key without its numbers, shared by the same op with the same arguments at any size."""
    return _DIGITS.sub("", key.rpartition("@")[0])


class Relatives:
    """The measured keys by family."""

    def __init__(self, keys: Iterable[tuple[str, str]]):
        """`keys`: (family, key)."""
        self._keys: dict[tuple[str, str], list[str]] = {}
        for family, key in keys:
            self._keys.setdefault((family, _share(key)), []).append(key)
        self._numbers: dict[tuple[str, str], np.ndarray] = {}

    def nearest(self, family: str, key: str) -> tuple[str, float] | None:
        """The measured key that differs least from `key` on the same share of a device, and the logarithm of the factor between them.

        None if no key differs by one factor.
        """
        group = (family, _share(key))
        keys = self._keys.get(group)
        if not keys:
            return None
        if group not in self._numbers:
            self._numbers[group] = np.array([_numbers(other) for other in keys])
        table, own = self._numbers[group], np.array(_numbers(key))
        differs = table != own
        with np.errstate(divide="ignore", invalid="ignore"):
            logs = np.where(differs, np.log(own / table), np.nan)
        best: tuple[float, int] | None = None
        for row in np.flatnonzero(differs.any(axis=1)):
            factors = logs[row][differs[row]]
            if np.isfinite(factors).all() and np.ptp(factors) < 1e-9 and (best is None or abs(factors[0]) < abs(best[0])):
                best = (float(factors[0]), int(row))
        return None if best is None else (keys[best[1]], best[0])


def scaling_error(error: float, factor_log: float) -> float:
    """The error of a time scaled from a relative: that of the fit, less if the factor is small, since then little is scaled."""
    return error * min(1.0, abs(factor_log) / math.log(2))


def _share(key: str) -> str:
    """The part of a device that a key names: its SMs."""
    return key.rpartition("@")[2]


def _numbers(key: str) -> Sequence[float]:
    """The numbers of a key. Those that the two keys must share are among them, such as strides and axes."""
    return [float(number) for number in _NUMBERS.findall(key.rpartition("@")[0])]
