"""How copies of a task are issued so that the cache holds none of their operands."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from calibrate.cuda.bench import Issue
from executors.cuda.driver import Driver


@dataclass(frozen=True)
class Cold:
    """`copies` on `sets` sets of operands, one after another. `always`: a single set is beyond the cache, so that warm is cold."""

    sets: int
    copies: int
    always: bool

    @staticmethod
    def of(set_bytes: int, cache_bytes: int, budget_bytes: int, copies: int, most_sets: int) -> "Cold":
        """For a task with so many bytes of operands; `copies` is what one would like to have, all sets together within the budget.

        Sets that together exceed twice the cache are used round and round. Of smaller ones every copy has its own.
        """
        size = max(1, set_bytes)
        wanted = max(2, 2 * cache_bytes // size + 1)
        sets = max(1, min(wanted, most_sets, budget_bytes // size))
        if sets < wanted:
            copies = max(1, min(copies, sets // 2))
        return Cold(min(sets, 2 * copies), copies, size > 2 * cache_bytes)


def in_turn(works: Sequence[Issue], flush: Issue) -> Callable[[int], None]:
    """A function that flushes the cache and then issues so many copies, in turn those of `works`.

    The flush makes all graphs begin alike, whatever ran before them: else the first copy of one graph would be cold and of the next warm,
    and their difference would not cancel.
    """

    def copies(count: int) -> None:
        flush()
        for i in range(count):
            works[i % len(works)]()

    return copies


def flusher(driver: Driver) -> Issue:
    """A function that reads twice the cache's size, after which the cache holds nothing else.

    It reads and does not write: dirty lines would be written back at the expense of what comes next.
    """
    buffer = torch.ones(max(1, 2 * driver.facts.cache_bytes // 4), device=driver.device)

    def flush() -> None:
        buffer.sum()

    return flush
