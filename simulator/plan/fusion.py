"""Where the updates of single layers are placed among the other tasks of a step (Jiang et al., "Optimizer Fusion").

Algorithm 3 updates as soon as nothing else needs the gradients and the old parameters; algorithm 2, just before the new ones are needed.
"""

from collections.abc import Iterable, Sequence

from simulator.plan.task import Task
from simulator.plan.tensors import PlanTensors


def fused(tasks: Sequence[Task], updates: Iterable[Task], tensors: PlanTensors) -> list[Task]:
    """Return `tasks` with each update just after the last task that uses its gradients or parameters: backward-fusion.

    This is the use count and the race rule of the paper.
    """
    last = {storage: index for index, task in enumerate(tasks) for storage in tensors.touched(task)}
    return insert(tasks, [(1 + max(last.get(storage, -1) for storage in tensors.touched(update)), update) for update in updates])


def delayed(tasks: Sequence[Task], updates: Sequence[Task], tensors: PlanTensors) -> list[Task]:
    """Return `tasks` with each update, of lag 1, just before the first task that uses its parameters: forward-fusion.

    The lag plays the role of the paper's flag: the first iteration has nothing to update, and pending updates run when the plan drains.
    """
    first = {storage: index for index, task in reversed(list(enumerate(tasks))) for storage in tensors.touched(task)}
    changed = [{tensors.values[operand.value].storage for operand in update.mutates} for update in updates]
    return insert(
        tasks, [(min(first.get(storage, len(tasks)) for storage in own), update) for own, update in zip(changed, updates, strict=True)]
    )


def insert(tasks: Sequence[Task], additions: Iterable[tuple[int, Task]]) -> list[Task]:
    """Return `tasks` with each addition inserted before the task at its position; additions at one position keep their order.

    >>> insert(["backward 2", "backward 1"], [(1, "update 2"), (2, "update 1")])
    ['backward 2', 'update 2', 'backward 1', 'update 1']
    """
    by_position: dict[int, list[Task]] = {}
    for position, task in additions:
        by_position.setdefault(position, []).append(task)
    result: list[Task] = []
    for index in range(len(tasks) + 1):
        result += by_position.get(index, ())
        result += tasks[index : index + 1]
    return result
