"""What each task of a replay waited for last: the edges and the lanes of the plan, with the times of a timeline."""

from collections.abc import Mapping, Sequence

from simulator.plan.task import Resource, Task

#: Ends that differ by less are simultaneous.
DIGITS = 9


def predecessors(tasks: Sequence[Task], ends_s: Mapping[str, float]) -> dict[str, str]:
    """Return by task the one that ended last of all that it waited for: its edges, and the task before it in its lane.

    `tasks` are in issue order. Of several that ended at the same time, work of a device comes before the host. Tasks that are not in
    `ends_s` count as absent; a task that waited for nothing has no entry.
    """
    hosts = {task.name for task in tasks if task.body.resource is Resource.HOST}
    last: dict[tuple[str, int], str] = {}
    waited_for: dict[str, str] = {}
    for task in tasks:
        before = last.get(task.lane)
        others = [name for name in (*task.after, before) if name in ends_s]
        if len(others) == 1:
            waited_for[task.name] = others[0]
        elif others:
            waited_for[task.name] = max(others, key=lambda name: (round(ends_s[name], DIGITS), name not in hosts))
        last[task.lane] = task.name
    return waited_for
