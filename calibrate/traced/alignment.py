"""Aligns the ops of a plan with recorded ops: the common subsequence of the largest weight.

Either side may have ops that the other lacks. Two ops can be the same if they have one name and the plan's shapes are among the recorded
ones; recorded operators may take more tensors, such as results to write into.
"""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from traces.errors import SchedcastError
from traces.formats.operators import Shape

#: Pairs of a plan's op and a recorded one at most; more take half a gigabyte.
MOST_PAIRS = 100_000_000
#: Weights of a pair whose phases differ or agree.
_OTHER_PHASE, _SAME_PHASE = 1, 3


class Token(NamedTuple):
    """What is compared: the op's common name, the shapes of its tensors with dimensions, and its phase."""

    name: str
    shapes: tuple[Shape, ...]
    phase: str


def aligned(plan: Sequence[Token], recorded: Sequence[Token], with_shapes: bool = True) -> list[tuple[int, int]]:
    """Pairs (index in `plan`, index in `recorded`), increasing in both. Raises SchedcastError if there are too many ops."""
    if len(plan) * len(recorded) > MOST_PAIRS:
        raise SchedcastError(f"the trace has {len(recorded):,} ops in one step, too many to align with the plan's {len(plan):,}")
    weights = _weights(plan, recorded, with_shapes)
    rows, columns = weights.shape
    best = np.zeros((rows + 1, columns + 1), dtype=np.int32)
    for row in range(rows):
        here = np.where(weights[row] > 0, best[row, :-1] + weights[row], 0)
        np.maximum.accumulate(np.maximum(best[row, 1:], here), out=best[row + 1, 1:])
    pairs = []
    row, column = rows, columns
    while row and column:
        if best[row, column] == best[row - 1, column]:
            row -= 1
        elif best[row, column] == best[row, column - 1]:
            column -= 1
        else:
            row, column = row - 1, column - 1
            pairs.append((row, column))
    return pairs[::-1]


def _weights(plan: Sequence[Token], recorded: Sequence[Token], with_shapes: bool) -> np.ndarray:
    """The weight of every pair, 0 if it cannot be the same op."""
    mine, theirs = list(dict.fromkeys(plan)), list(dict.fromkeys(recorded))
    table = np.array([[_weight(a, b, with_shapes) for b in theirs] for a in mine], dtype=np.int8).reshape(len(mine), len(theirs))
    row_of, column_of = ({token: index for index, token in enumerate(tokens)} for tokens in (mine, theirs))
    rows, columns = np.array([row_of[t] for t in plan], dtype=int), np.array([column_of[t] for t in recorded], dtype=int)
    return table[np.ix_(rows, columns)]


def _weight(plan: Token, recorded: Token, with_shapes: bool) -> int:
    if plan.name != recorded.name:
        return 0
    if with_shapes and (Counter(plan.shapes) - Counter(recorded.shapes) or bool(plan.shapes) != bool(recorded.shapes)):
        return 0
    return _SAME_PHASE if plan.phase == recorded.phase else _OTHER_PHASE
