"""The memory order of a batch of equal scan elements, and the elements of each worker."""

from functools import cache


@cache
def order(elements: int) -> tuple[int, ...]:
    """Element numbers in memory order, chosen so that both operands of all products of a level are contiguous.

    First come the elements at even places, in the order of the level above; then, if their number is odd, the last element; then the
    elements at odd places, in the order of the level above.
    """
    if elements <= 1:
        return tuple(range(elements))
    above = order(elements // 2)
    last = (elements - 1,) if elements % 2 else ()
    return (*(2 * place for place in above), *last, *(2 * place + 1 for place in above))


def prefix_order(elements: int, leftmost: bool) -> tuple[int, ...]:
    """Prefix numbers in memory order among the results of a batch: the prefix before each element, in `order`, then the last one.

    The leftmost batch has no prefix before its first element, since that would be the identity.
    """
    return (*order(elements)[1 if leftmost else 0 :], elements)


def elements_per_worker(elements: int, workers: int) -> list[int]:
    """Number of successive elements of each worker. The numbers differ by at most 1, and every worker has at least one element."""
    workers = max(1, min(workers, elements))
    return [elements * (w + 1) // workers - elements * w // workers for w in range(workers)]
