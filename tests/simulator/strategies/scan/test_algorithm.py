"""Back-propagation as a scan: the algorithm against its printed form, and the layout of a batch of equal elements."""

from itertools import pairwise
from math import ceil, log2

import numpy as np
import pytest

from simulator.model.ops.scan_order import elements_per_worker, order, prefix_order
from simulator.strategies.scan.algorithm import exclusive_scan, full_level


def printed(a: list) -> tuple[list, list[int]]:
    """Algorithm 1 of Wang et al. 2020 as PAPERS states it, on the texts a = [dl/dx_n, J_n^T, ..., J_1^T].

    Returns the prefixes and the number of products of the up-sweep and of the down-sweep.
    """
    a, n, identity, counts = list(a), len(a) - 1, None, [0, 0]
    levels = ceil(log2(n + 1))
    for d in range(levels - 1):
        for i in range(0, n - 2**d + 1, 2 ** (d + 1)):
            left, right = i + 2**d - 1, min(i + 2 ** (d + 1) - 1, n)
            if right < n:
                a[right] = a[right] + a[left]
                counts[0] += 1
    a[n] = identity
    for d in reversed(range(levels)):
        for i in range(0, n - 2**d + 1, 2 ** (d + 1)):
            left, right = i + 2**d - 1, min(i + 2 ** (d + 1) - 1, n)
            earlier, a[left] = a[left], a[right]
            a[right] = earlier if a[right] is identity else earlier + a[right]
            counts[1] += a[left] is not identity
    return a[1:], counts


@pytest.mark.parametrize("n", range(1, 41))
def test_blellochs_scan_is_the_printed_algorithm(n):
    elements = [f"{j}." for j in range(n)]
    products = []
    prefixes = exclusive_scan(elements, full_level(n), lambda later, earlier: products.append(1) or later + earlier)
    expected, counts = printed([*elements, "never used"])
    assert prefixes == expected
    assert len(products) == sum(counts)


@pytest.mark.parametrize("n", [1, 2, 3, 7, 21, 40])
def test_every_level_gives_every_prefix(n):
    elements = [f"{j}." for j in range(n)]
    for level in range(full_level(n) + 1):
        assert exclusive_scan(elements, level, str.__add__) == ["".join(reversed(elements[:k])) for k in range(1, n + 1)]


def product_counts(elements: int, level: int) -> tuple[int, int, int]:
    """Closed form: (matrix-matrix products up, matrix-vector products up, matrix-vector products after them) of a scan."""
    sizes = [elements >> d for d in range(level + 1)]
    up = [size // 2 for size in sizes[:-1]]
    down = sum((size - 1) // 2 for size in sizes[:-1])
    return sum(count - 1 for count in up), len(up), sizes[-1] - 1 + down


def test_the_products_of_twenty_one_elements():
    """4 matrix-vector and 14 matrix-matrix products up and 16 matrix-vector products down; a linear scan has 20 of the latter."""
    assert product_counts(21, full_level(21)) == (14, 4, 16)
    assert product_counts(21, 0) == (0, 0, 20)


@pytest.mark.parametrize("n", [1, 2, 3, 9, 16, 21])
def test_a_scan_makes_the_products_of_the_closed_form(n):
    for level in range(full_level(n) + 1):
        kinds = []

        def product(later, earlier, kinds=kinds):
            kinds.append(earlier)
            return "vector" if earlier == "vector" else "matrix"

        exclusive_scan(["vector"] + ["matrix"] * (n - 1), level, product)
        up, first, after = product_counts(n, level)
        assert (kinds.count("matrix"), kinds.count("vector")) == (up, first + after)


def test_elements_need_not_be_square():
    widths = [3, 4, 2, 5, 3, 6]
    rng = np.random.default_rng(0)
    gradient = rng.normal(size=(widths[0], 1))
    jacobians = [rng.normal(size=(after, before)) for before, after in pairwise(widths)]
    one_by_one = exclusive_scan([gradient, *jacobians], 0, np.matmul)
    for level in (1, 2):
        for a, b in zip(exclusive_scan([gradient, *jacobians], level, np.matmul), one_by_one, strict=True):
            np.testing.assert_allclose(a, b)


@pytest.mark.parametrize("n", [1, 2, 3, 5, 8, 21, 100])
def test_both_sides_of_a_levels_pairs_are_contiguous(n):
    pairs, even = n // 2, (n + 1) // 2
    places = order(n)
    assert sorted(places) == list(range(n))
    assert places[:pairs] == tuple(2 * place for place in order(pairs))
    assert places[even:] == tuple(2 * place + 1 for place in order(pairs))
    assert set(places[pairs:even]) == ({n - 1} if n % 2 else set())
    assert prefix_order(n, leftmost=False) == (*places, n)
    assert prefix_order(n, leftmost=True) == (*places[1:], n)


def test_workers_have_equal_shares():
    assert elements_per_worker(10, 4) == [2, 3, 2, 3]
    assert elements_per_worker(3, 8) == [1, 1, 1]
