"""How a batch of equal scan elements lies in memory, and which elements each worker has."""

from functools import cache


@cache
def order(elements: int) -> tuple[int, ...]:
    """Which element lies where in a batch, so that both sides of all of a level's products are contiguous.

    First those of even place, in the order of the level above; then, of an odd number, the last; then those of odd place, likewise.
    """
    if elements <= 1:
        return tuple(range(elements))
    above = order(elements // 2)
    last = (elements - 1,) if elements % 2 else ()
    return (*(2 * place for place in above), *last, *(2 * place + 1 for place in above))


def prefix_order(elements: int, leftmost: bool) -> tuple[int, ...]:
    """Which prefix lies where among the results of a batch: those before each element, in `order`, then the one behind the last.

    The leftmost batch has none before its first element, which would be the identity.
    """
    return (*order(elements)[1 if leftmost else 0 :], elements)


def blocks(elements: int, workers: int) -> list[int]:
    """How many successive elements each worker has: as equal as possible, none without."""
    workers = max(1, min(workers, elements))
    return [elements * (w + 1) // workers - elements * w // workers for w in range(workers)]
