"""Back-propagation as an exclusive scan over transposed Jacobians.

"BPPSA: Scaling Back-propagation by Parallel Scan Algorithm" (Wang et al., 2020), algorithm 1, after Blelloch (1990). Elements are
a = [dl/dx_n, J_n^T, ..., J_2^T]; the result is dl/dx_n, ..., dl/dx_1. Level 0 is the linear scan, `full_level(n)` Blelloch's, and what
lies between the hybrid: up-sweeps of levels 0 to level - 1, a linear scan over the blocks of 2^level elements, and down-sweeps back.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

Element = TypeVar("Element")


def full_level(elements: int) -> int:
    """The level at which one block is left: floor(log2(elements)), the paper's ceil(log2(n + 1)) - 1."""
    return max(elements, 1).bit_length() - 1


def exclusive_scan(elements: Sequence[Element], level: int, product: Callable[[Element, Element], Element]) -> list[Element]:
    """The products of the first 1, 2, ..., n elements. `product(later, earlier)`; the first element is the gradient.

    The identity before the first element stays a symbol: nothing is multiplied by it.
    """
    if level == 0 or len(elements) == 1:
        found = [elements[0]]
        for element in elements[1:]:
            found.append(product(element, found[-1]))
        return found
    pairs = [product(later, earlier) for earlier, later in zip(elements[::2], elements[1::2], strict=False)]  # up-sweep
    halved = [None, *exclusive_scan(pairs, level - 1, product)]
    return [  # down-sweep
        halved[place // 2] if place % 2 == 0 else elements[0] if place == 1 else product(elements[place - 1], halved[place // 2])
        for place in range(1, len(elements) + 1)
    ]


def level_sizes(elements: int, level: int) -> list[int]:
    """How many elements each level has, from 0 to `level`."""
    return [elements >> d for d in range(level + 1)]


def products(elements: int, level: int) -> tuple[int, int, int]:
    """(matrix-matrix products up, matrix-vector products up, matrix-vector products after) of a whole scan."""
    sizes = level_sizes(elements, level)
    up = [size // 2 for size in sizes[:-1]]
    down = sum((size - 1) // 2 for size in sizes[:-1])
    return sum(count - 1 for count in up), len(up), sizes[-1] - 1 + down
