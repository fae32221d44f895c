"""Align two sequences of names: their longest common subsequence, which survives inserted, removed and replaced items."""

from collections.abc import Callable, Hashable, Sequence

import numpy as np

#: Cells of a table at most; larger problems are divided (Hirschberg), which takes twice the time and little memory.
MOST_CELLS = 1 << 22

Pairs = list[tuple[int, int]]


def aligned(first: Sequence[Hashable], second: Sequence[Hashable]) -> Pairs:
    """Return pairs of positions with equal items, both ascending, as many as possible."""
    numbers: dict[Hashable, int] = {}
    a, b = (np.array([numbers.setdefault(item, len(numbers)) for item in items], dtype=np.int64) for items in (first, second))
    return _aligned(a, b, 0, 0)


def refined(
    first: Sequence[int], second: Sequence[int], keys: Sequence[tuple[Callable[[int], Hashable], Callable[[int], Hashable]]]
) -> Pairs:
    """Align items by the first key, then those between two pairs by the next key, and so on. Returns pairs of items.

    `keys`: for each pass, the key of an item of `first` and that of an item of `second`.
    """
    if not keys or not first or not second:
        return []
    key_a, key_b = keys[0]
    pairs = aligned([key_a(item) for item in first], [key_b(item) for item in second])
    result = []
    for (begin_a, begin_b), (end_a, end_b) in zip([(-1, -1), *pairs], [*pairs, (len(first), len(second))], strict=True):
        result += refined(first[begin_a + 1 : end_a], second[begin_b + 1 : end_b], keys[1:])
        if end_a < len(first):
            result.append((first[end_a], second[end_b]))
    return result


def _aligned(a: np.ndarray, b: np.ndarray, at_a: int, at_b: int) -> Pairs:
    """Return the pairs of two parts that begin at the positions `at_a` and `at_b`."""
    begin = _equal(a, b)
    pairs = [(at_a + i, at_b + i) for i in range(begin)]
    a, b, at_a, at_b = a[begin:], b[begin:], at_a + begin, at_b + begin
    end = _equal(a[::-1], b[::-1])
    suffix = [(at_a + len(a) - end + i, at_b + len(b) - end + i) for i in range(end)]
    a, b = a[: len(a) - end], b[: len(b) - end]
    if len(a) and len(b):
        if len(a) * len(b) <= MOST_CELLS or len(a) == 1:
            pairs += [(at_a + i, at_b + j) for i, j in _by_table(a, b)]
        else:
            middle = len(a) // 2
            left = _last_row(a[:middle], b)
            right = _last_row(a[middle:][::-1], b[::-1])[::-1]
            cut = int(np.argmax(left + right))
            pairs += _aligned(a[:middle], b[:cut], at_a, at_b) + _aligned(a[middle:], b[cut:], at_a + middle, at_b + cut)
    return pairs + suffix


def _equal(a: np.ndarray, b: np.ndarray) -> int:
    """Return how many items at the begin are equal."""
    length = min(len(a), len(b))
    different = np.flatnonzero(a[:length] != b[:length])
    return int(different[0]) if len(different) else length


def _next_row(row: np.ndarray, item: int, b: np.ndarray) -> np.ndarray:
    """Return the lengths of the common subsequences with each prefix of `b` after one more item, from those before it."""
    longer = np.maximum(row[1:], (row[:-1] + 1) * (b == item))
    return np.concatenate(([0], np.maximum.accumulate(longer)))


def _last_row(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    row = np.zeros(len(b) + 1, dtype=np.int32)
    for item in a:
        row = _next_row(row, item, b)
    return row


def _by_table(a: np.ndarray, b: np.ndarray) -> Pairs:
    rows = [np.zeros(len(b) + 1, dtype=np.int32)]
    for item in a:
        rows.append(_next_row(rows[-1], item, b))
    pairs = []
    i, j = len(a), len(b)
    while i and j:
        if a[i - 1] == b[j - 1]:
            i, j = i - 1, j - 1
            pairs.append((i, j))
        elif rows[i - 1][j] >= rows[i][j - 1]:
            i -= 1
        else:
            j -= 1
    return pairs[::-1]
