"""Changing a replay's tasks so that what depended on them still holds.

In a lane tasks follow one another, so of several tasks of one lane that something must wait for, the last stands for all. A set of
things to wait for is therefore a dictionary from lane to name.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from simulator.plan.task import Resource, Segment, Task
from simulator.replay.replay import Replay, Step

Lane = tuple[str, int]


def is_host(task: Task) -> bool:
    """Whether it is time on a host thread."""
    return task.body.resource is Resource.HOST


def device_work(replay: Replay) -> list[Task]:
    """Everything that ran on a device, in issue order."""
    return [task for task in replay.plan.tasks if not is_host(task)]


def launches(tasks: Iterable[Task]) -> dict[str, str]:
    """The host task that launched each of the device's tasks, where one is known: the last that it comes after."""
    hosts = {task.name for task in tasks if is_host(task)}
    found = {}
    for task in tasks:
        if not is_host(task):
            launch = next((name for name in reversed(task.after) if name in hosts), None)
            if launch is not None:
                found[task.name] = launch
    return found


def waits_for_device(tasks: Sequence[Task]) -> set[str]:
    """Names of the host tasks that wait for a device: synchronisations."""
    work = {task.name for task in tasks if not is_host(task)}
    return {task.name for task in tasks if is_host(task) and not work.isdisjoint(task.after)}


def milliseconds(seconds: float) -> str:
    """For the words of an assumption: `3.14 ms`, `2000 ms`."""
    return f"{seconds * 1e3:.0f} ms" if seconds >= 0.1 else f"{seconds * 1e3:.3g} ms"


def with_tasks(replay: Replay, tasks: Sequence[Task], steps: tuple[Step, ...] | None = None) -> Replay:
    """The replay with other tasks."""
    last = replay.plan.segments[-1]
    plan = replace(replay.plan, segments=(*replay.plan.segments[:-1], Segment(tuple(tasks), last.repeat)))
    return replace(replay, plan=plan, steps=replay.steps if steps is None else steps)


def lasting(task: Task, duration_s: float) -> Task:
    """The task with another duration."""
    return replace(task, body=replace(task.body, duration_s=duration_s))


def with_durations(replay: Replay, seconds: Mapping[str, float]) -> Replay:
    """The replay with other durations for some tasks."""
    return with_tasks(replay, [lasting(task, seconds[task.name]) if task.name in seconds else task for task in replay.plan.tasks])


def without(replay: Replay, names: Collection[str], instead: Mapping[str, Sequence[str]] | None = None) -> Replay:
    """The replay without the tasks called `names`.

    What came after one of them, by an edge or in its lane, now comes after what it came after. `instead` names, for some of them, earlier
    tasks that now do their work, and are waited for in their place.
    """
    instead = instead or {}
    lane_of = {task.name: task.lane for task in replay.plan.tasks}
    position = {task.name: index for index, task in enumerate(replay.plan.tasks)}

    def add(waits: dict[Lane, str], name: str) -> None:
        known = waits.get(lane_of[name])
        if known is None or position[known] < position[name]:
            waits[lane_of[name]] = name

    inherited: dict[str, dict[Lane, str]] = {}
    pending: dict[Lane, dict[Lane, str]] = {}  # of the removed tasks at the end of a lane
    before: dict[Lane, str] = {}  # the last kept task of a lane
    kept = []
    for task in replay.plan.tasks:
        waits: dict[Lane, str] = dict(pending.get(task.lane, ()))
        for name in task.after:
            for wait in inherited[name].values() if name in inherited else (name,):
                add(waits, wait)
        if task.name in names:
            for name in instead.get(task.name, ()):
                add(waits, name)
            pending[task.lane] = dict(waits)
            if not is_host(task) and task.lane in before:
                add(waits, before[task.lane])  # whoever waited for it waited for its whole stream
            inherited[task.name] = waits
            continue
        touched = task.lane in pending or any(name in inherited for name in task.after)
        pending.pop(task.lane, None)
        before[task.lane] = task.name
        waits.pop(task.lane, None)
        kept.append(replace(task, after=tuple(sorted(waits.values(), key=position.__getitem__))) if touched else task)
    return with_tasks(replay, kept, _kept_steps(replay, names))


def _kept_steps(replay: Replay, names: Collection[str]) -> tuple[Step, ...]:
    """The steps, each from the first to the last device task that is left of it. One of which nothing is left goes."""
    tasks = replay.plan.tasks
    position = {task.name: index for index, task in enumerate(tasks)}
    steps = []
    for step in replay.steps:
        span = tasks[position[step.first_task] : position[step.last_task] + 1]
        left = [task for task in span if task.name not in names and not is_host(task)]
        if left:
            steps.append(replace(step, first_task=left[0].name, last_task=left[-1].name))
    return tuple(steps)
