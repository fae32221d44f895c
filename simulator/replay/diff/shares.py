"""Fair shares of a difference (Shapley): what each term adds, as the mean over all orders in which the terms can be exchanged."""

from collections.abc import Callable, Sequence
from itertools import combinations
from math import factorial, fsum


def fair_shares(terms: Sequence[str], value: Callable[[frozenset[str]], float]) -> dict[str, float]:
    """Return the share of each term in `value` of all terms less `value` of none; the shares add up to it.

    `value` is called once for each of the 2^n sets of terms.
    """
    values = {frozenset(some): value(frozenset(some)) for size in range(len(terms) + 1) for some in combinations(terms, size)}
    orders = factorial(len(terms))
    shares = {}
    for term in terms:
        gains = [
            factorial(len(some)) * factorial(len(terms) - len(some) - 1) * (values[some | {term}] - before)
            for some, before in values.items()
            if term not in some
        ]
        shares[term] = fsum(gains) / orders
    return shares
