"""Issues copies of a task so that the cache holds none of their operands."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from calibrate.cuda.bench import Issue
from executors.cuda.driver import Driver


@dataclass(frozen=True)
class Cold:
    """How to time a task cold: `copies` copies that use `sets` sets of operands in turn.

    `always` is whether one set alone exceeds the cache, so that the task is cold even on the same operands.
    """

    sets: int
    copies: int
    always: bool

    @staticmethod
    def of(set_bytes: int, cache_bytes: int, budget_bytes: int, copies: int, most_sets: int) -> "Cold":
        """The way to time a task whose operands take `set_bytes`.

        `copies` is the desired number of copies, and `budget_bytes` limits all sets together. If the sets together exceed twice the cache,
        the copies cycle through them. If they do not, every copy gets its own set.
        """
        size = max(1, set_bytes)
        wanted = max(2, 2 * cache_bytes // size + 1)
        sets = max(1, min(wanted, most_sets, budget_bytes // size))
        if sets < wanted:
            copies = max(1, min(copies, sets // 2))
        return Cold(min(sets, 2 * copies), copies, size > 2 * cache_bytes)


def in_turn(works: Sequence[Issue], flush: Issue) -> Callable[[int], None]:
    """A function that flushes the cache and then issues a given number of copies, cycling through `works`.

    The flush makes all graphs start from the same state. Otherwise the first copy would be cold in one graph and warm in the next, and
    their difference would not cancel.
    """

    def copies(count: int) -> None:
        flush()
        for i in range(count):
            works[i % len(works)]()

    return copies


def flusher(driver: Driver) -> Issue:
    """A function that evicts everything from the cache by reading twice its size.

    It reads and does not write, since the write-back of dirty lines would slow down the work that follows. It has run once already, so that
    no capture has to load its kernel.
    """
    buffer = torch.ones(max(1, 2 * driver.facts.cache_bytes // 4), device=driver.device)

    def flush() -> None:
        buffer.sum()

    flush()
    return flush
