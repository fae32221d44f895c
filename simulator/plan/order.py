"""Reorders the tasks of a period, as far as their dependencies allow."""

import heapq
from collections.abc import Callable, Sequence
from typing import Any

from simulator.plan.dependencies import Dependencies
from simulator.plan.task import Task


def by_rank(tasks: Sequence[Task], dependencies: Dependencies, rank: Callable[[Task], Any]) -> list[Task]:
    """The tasks in a new issue order: always the task of the lowest rank among those whose dependencies within the period have been issued.

    Tasks of equal rank keep their order. `dependencies`: those of a plan of these tasks in their present order.
    """
    successors: list[list[int]] = [[] for _ in tasks]
    missing = [0] * len(tasks)
    for index, edges in enumerate(dependencies.edges(0)):
        for edge in edges:
            successors[edge.index].append(index)
            missing[index] += 1
    ready = [(rank(tasks[index]), index) for index, count in enumerate(missing) if not count]
    heapq.heapify(ready)
    ordered = []
    while ready:
        _, index = heapq.heappop(ready)
        ordered.append(tasks[index])
        for successor in successors[index]:
            missing[successor] -= 1
            if not missing[successor]:
                heapq.heappush(ready, (rank(tasks[successor]), successor))
    return ordered
