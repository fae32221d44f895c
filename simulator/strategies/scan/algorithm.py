"""Back-propagation as an exclusive scan over transposed Jacobians.

"BPPSA: Scaling Back-propagation by Parallel Scan Algorithm" (Wang et al., 2020), algorithm 1, after Blelloch (1990). The elements are
a = [dl/dx_n, J_n^T, ..., J_2^T]; the result is dl/dx_n, ..., dl/dx_1. Level 0 is the linear scan and level `full_level(n)` Blelloch's. The
levels between them are hybrids: up-sweeps of levels 0 to level - 1, a linear scan over the blocks of 2^level elements, and down-sweeps.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

Element = TypeVar("Element")


def full_level(elements: int) -> int:
    """The level at which one block is left: floor(log2(elements)), the paper's ceil(log2(n + 1)) - 1."""
    return max(elements, 1).bit_length() - 1


def exclusive_scan(elements: Sequence[Element], level: int, product: Callable[[Element, Element], Element]) -> list[Element]:
    """Products of the first 1, 2, ..., n elements, where the first element is the gradient. `product(later, earlier)` multiplies two.

    The identity before the first element is never multiplied.

    The gradient g of the last layer and the Jacobians D, C, B, A of those before it. One after another, as back-propagation does:

    >>> steps = []
    >>> def product(later, earlier):
    ...     steps.append(f"{later}*{earlier}")
    ...     return later + earlier
    >>> exclusive_scan("gDCBA", 0, product)
    ['g', 'Dg', 'CDg', 'BCDg', 'ABCDg']
    >>> steps
    ['D*g', 'C*Dg', 'B*CDg', 'A*BCDg']

    The same by one up-sweep and one down-sweep, each of whose products are independent. Here two devices save a step:

    >>> steps.clear()
    >>> exclusive_scan("gDCBA", 2, product)
    ['g', 'Dg', 'CDg', 'BCDg', 'ABCDg']
    >>> steps
    ['D*g', 'B*C', 'BC*Dg', 'C*Dg', 'A*BCDg']
    """
    if level == 0 or len(elements) == 1:
        prefixes = [elements[0]]
        for element in elements[1:]:
            prefixes.append(product(element, prefixes[-1]))
        return prefixes
    pairs = [product(later, earlier) for earlier, later in zip(elements[::2], elements[1::2], strict=False)]  # up-sweep
    halved = exclusive_scan(pairs, level - 1, product)
    return [  # down-sweep
        halved[place // 2] if place % 2 else product(elements[place], halved[place // 2 - 1]) if place else elements[0]
        for place in range(len(elements))
    ]
