"""Change the tasks of a replay so that indirect dependencies still hold.

Tasks of one lane run one after another. If a task must wait for several tasks of one lane, it is therefore enough to wait for the last of
them: a set of tasks to wait for is a dictionary from lane to task name.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from simulator.plan.task import Resource, Segment, Task
from simulator.replay.replay import Replay, Step

Lane = tuple[str, int]


def is_host(task: Task) -> bool:
    """Whether the task is time on a host thread."""
    return task.body.resource is Resource.HOST


def device_work(replay: Replay) -> list[Task]:
    """Return the tasks that ran on a device, in issue order."""
    return [task for task in replay.plan.tasks if not is_host(task)]


def launches(tasks: Iterable[Task]) -> dict[str, str]:
    """Return by device task the host task that launched it: the last host task that it waits for. Device tasks without one are left out."""
    hosts = {task.name for task in tasks if is_host(task)}
    launch_of = {}
    for task in tasks:
        if not is_host(task):
            launch = next((name for name in reversed(task.after) if name in hosts), None)
            if launch is not None:
                launch_of[task.name] = launch
    return launch_of


def waits_for_device(tasks: Sequence[Task]) -> set[str]:
    """Return the names of the host tasks that wait for a device: synchronizations."""
    work = {task.name for task in tasks if not is_host(task)}
    return {task.name for task in tasks if is_host(task) and not work.isdisjoint(task.after)}


def with_tasks(replay: Replay, tasks: Sequence[Task], steps: tuple[Step, ...] | None = None) -> Replay:
    """Return the replay with other tasks, and other steps if given."""
    last = replay.plan.segments[-1]
    plan = replace(replay.plan, segments=(*replay.plan.segments[:-1], Segment(tuple(tasks), last.repeat)))
    return replace(replay, plan=plan, steps=replay.steps if steps is None else steps)


def with_duration(task: Task, duration_s: float) -> Task:
    """Return the task with another duration."""
    return replace(task, body=replace(task.body, duration_s=duration_s))


def with_durations(replay: Replay, seconds: Mapping[str, float]) -> Replay:
    """Return the replay with other durations for some tasks, by name."""
    return with_tasks(replay, [with_duration(task, seconds[task.name]) if task.name in seconds else task for task in replay.plan.tasks])


def without(replay: Replay, names: Collection[str], instead: Mapping[str, Sequence[str]] | None = None) -> Replay:
    """Return the replay without the tasks called `names`.

    A task that waited for a removed task, by an edge or by its lane, now waits for everything that the removed task waited for. `instead`
    maps some of the removed tasks to earlier tasks that replace them: tasks that waited for the removed task also wait for these.
    """
    instead = instead or {}
    lane_of = {task.name: task.lane for task in replay.plan.tasks}
    position = {task.name: index for index, task in enumerate(replay.plan.tasks)}

    def add(waits: dict[Lane, str], name: str) -> None:
        other = waits.get(lane_of[name])
        if other is None or position[other] < position[name]:
            waits[lane_of[name]] = name

    inherited: dict[str, dict[Lane, str]] = {}  # by removed task, what those that wait for it wait for now
    pending: dict[Lane, dict[Lane, str]] = {}  # by lane, what its removed tasks since the last remaining one waited for
    before: dict[Lane, str] = {}  # by lane, its last remaining task
    remaining = []
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
                add(waits, before[task.lane])  # waiting for a task means waiting for everything before it on its stream
            inherited[task.name] = waits
            continue
        touched = task.lane in pending or any(name in inherited for name in task.after)
        pending.pop(task.lane, None)
        before[task.lane] = task.name
        waits.pop(task.lane, None)
        remaining.append(replace(task, after=tuple(sorted(waits.values(), key=position.__getitem__))) if touched else task)
    return with_tasks(replay, remaining, _remaining_steps(replay, names))


def _remaining_steps(replay: Replay, names: Collection[str]) -> tuple[Step, ...]:
    """Return the steps with the first and the last device task that remain of each; a step without any is left out."""
    tasks = replay.plan.tasks
    position = {task.name: index for index, task in enumerate(tasks)}
    steps = []
    for step in replay.steps:
        span = tasks[position[step.first_task] : position[step.last_task] + 1]
        left = [task for task in span if task.name not in names and not is_host(task)]
        if left:
            steps.append(replace(step, first_task=left[0].name, last_task=left[-1].name))
    return tuple(steps)
