"""Another issue order for the tasks of a period, as far as their dependencies allow."""

import heapq
from collections.abc import Callable, Sequence
from typing import Any

from simulator.plan.dependencies import Dependencies
from simulator.plan.task import Task


def by_rank(tasks: Sequence[Task], dependencies: Dependencies, rank: Callable[[Task], Any]) -> list[Task]:
    """The tasks, of those whose dependencies within the period are done always the one of the lowest rank; equals keep their order.

    `dependencies`: of a plan of these tasks in this order.
    """
    followers: list[list[int]] = [[] for _ in tasks]
    missing = [0] * len(tasks)
    for index, edges in enumerate(dependencies.edges(0)):
        for edge in edges:
            followers[edge.index].append(index)
            missing[index] += 1
    ready = [(rank(tasks[index]), index) for index, count in enumerate(missing) if not count]
    heapq.heapify(ready)
    ordered = []
    while ready:
        _, index = heapq.heappop(ready)
        ordered.append(tasks[index])
        for follower in followers[index]:
            missing[follower] -= 1
            if not missing[follower]:
                heapq.heappush(ready, (rank(tasks[follower]), follower))
    return ordered
