"""Change the tasks of a replay so that indirect dependencies still hold.

Tasks of one lane run one after another. If a task must wait for several tasks of one lane, it is therefore enough to wait for the last of
them: a set of tasks to wait for is a dictionary from lane to task name.

Also finds the tasks of a recorded step that update parameters, and those that compute gradients.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import compress
from operator import not_
from typing import Any

from simulator.plan.bodies.update import FORMS, STATE
from simulator.plan.task import BACKWARD, UPDATE, Task
from simulator.replay.replay import RecordedStep, Replay, Rows
from traces.errors import SchedcastError

Lane = tuple[str, int]


def device_work(replay: Replay) -> list[Task]:
    """Return the tasks that ran on a device, in issue order."""
    return list(compress(replay.tasks, map(not_, replay.rows.on_host)))


def host_work(replay: Replay) -> list[Task]:
    """Return the tasks that ran on host threads, in issue order."""
    return list(compress(replay.tasks, replay.rows.on_host))


def with_tasks(replay: Replay, tasks: Iterable[Task], steps: tuple[RecordedStep, ...] | None = None, **columns: Any) -> Replay:
    """Return the replay with other tasks, and other steps if given. `columns`: those of the new rows that are known already."""
    return replace(replay, rows=Rows(tasks, **columns), changed_s={}, steps=replay.steps if steps is None else steps)


def with_durations(replay: Replay, seconds: Mapping[str, float]) -> Replay:
    """Return the replay with other durations for some tasks, by name."""
    position = replay.position
    return replace(replay, changed_s={**replay.changed_s, **{position[name]: own for name, own in seconds.items()}})


def without(replay: Replay, names: Collection[str], instead: Mapping[str, Sequence[str]] | None = None) -> Replay:
    """Return the replay without the tasks called `names`.

    A task that waited for a removed task, by an edge or by its lane, now waits for everything that the removed task waited for. `instead`
    maps some of the removed tasks to earlier tasks that replace them: tasks that waited for the removed task also wait for these.
    """
    instead = instead or {}
    position, lanes = replay.position, replay.rows.lanes

    def add(waits: dict[Lane, str], name: str) -> None:
        lane = lanes[position[name]]
        other = waits.get(lane)
        if other is None or position[other] < position[name]:
            waits[lane] = name

    inherited: dict[str, dict[Lane, str]] = {}  # by removed task, what those that wait for it wait for now
    pending: dict[Lane, dict[Lane, str]] = {}  # by lane, what its removed tasks since the last remaining one waited for
    before: dict[Lane, str] = {}  # by lane, its last remaining task
    remaining, left = [], []
    for task, lane, on_host in zip(replay.tasks, lanes, replay.rows.on_host, strict=True):
        removed = task.name in names
        left.append(not removed)
        if not removed and lane not in pending and (not task.after or inherited.keys().isdisjoint(task.after)):
            before[lane] = task.name
            remaining.append(task)
            continue
        waits: dict[Lane, str] = dict(pending.pop(lane, ()))
        for name in task.after:
            for wait in inherited[name].values() if name in inherited else (name,):
                add(waits, wait)
        if removed:
            for name in instead.get(task.name, ()):
                add(waits, name)
            pending[lane] = dict(waits)
            if not on_host and lane in before:
                add(waits, before[lane])  # waiting for a task means waiting for everything before it on its stream
            inherited[task.name] = waits
            continue
        before[lane] = task.name
        waits.pop(lane, None)
        remaining.append(replace(task, after=tuple(sorted(waits.values(), key=position.__getitem__))))
    columns = {"lanes": list(compress(lanes, left)), "on_host": list(compress(replay.rows.on_host, left))}
    return with_tasks(replay, remaining, _remaining_steps(replay, names), **columns)


def _remaining_steps(replay: Replay, names: Collection[str]) -> tuple[RecordedStep, ...]:
    """Return the steps with the first and the last device task that remain of each; a step without any is dropped."""
    tasks, on_host, position = replay.rows.tasks, replay.rows.on_host, replay.position
    steps = []
    for step in replay.steps:
        span = range(position[step.first_task], position[step.last_task] + 1)
        left = [tasks[index] for index in span if not on_host[index] and tasks[index].name not in names]
        if left:
            steps.append(replace(step, first_task=left[0].name, last_task=left[-1].name))
    return tuple(steps)


#: Kernels that only optimizers launch.
_OPTIMIZER_KERNEL = re.compile(r"multi_tensor_apply|adam|sgd_|lamb_|rmsprop|adagrad", re.IGNORECASE)
#: Kernels that PyTorch's for-loop form of an optimizer launches.
_ELEMENTWISE = re.compile(r"elementwise_kernel", re.IGNORECASE)
_BACKWARD_KERNEL = re.compile(r"backward|bwd|_bw_|wgrad|dgrad", re.IGNORECASE)
_FUSED = re.compile(r"fused|(adam|adamw|sgd|adagrad)_?(kernel|functor)", re.IGNORECASE)
_OPTIMIZER_CLASS = re.compile(r"#(\w+)\.step")


def backward_names(replay: Replay, updates: Collection[str] = ()) -> set[str]:
    """Return the names of the tasks that compute gradients. `updates` are the names of tasks that do not.

    These are the kernels of phase backward. If there are none, they are the kernels launched by another thread than the one that launches
    the updates (or the first kernel), because autograd has a separate thread. If there are none of these either, they are the kernels
    with a name that says backward.
    """
    updates = dict.fromkeys(updates)
    kernels = [task for task in device_work(replay) if task.body.category == "kernel" and task.name not in updates]
    names = {task.name for task in kernels if task.phase == BACKWARD}
    if not names:
        launch_of, lanes, position = replay.rows.launch_of, replay.rows.lanes, replay.position
        lane_of = {name: lanes[position[launch_of[name]]] for name in (*updates, *(task.name for task in kernels)) if name in launch_of}
        main: dict[str, Lane] = {}
        for name, lane in lane_of.items():
            main.setdefault(lanes[position[name]][0], lane)
        names = {task.name for task in kernels if task.name in lane_of and lane_of[task.name] != main[task.device]}
    return names or {task.name for task in kernels if _BACKWARD_KERNEL.search(task.body.name)}


def update_names(replay: Replay) -> list[str]:
    """Return the names of the tasks that update parameters, in issue order.

    These are the tasks of phase update. If there are none, they are the kernels that only optimizers launch. If there are none of these
    either, they are the elementwise kernels that follow the last backward kernel of a step, up to the next kernel of another kind.
    """
    work = device_work(replay)
    names = [task.name for task in work if task.phase == UPDATE]
    names = names or [task.name for task in work if _OPTIMIZER_KERNEL.search(task.body.name)]
    if names:
        return names
    backward = backward_names(replay)
    only_elementwise: dict[tuple[str, int], bool] = {}  # by lane: whether all kernels since the last backward one are elementwise
    for task in work:
        if task.name in backward:
            only_elementwise[task.lane] = True
        elif only_elementwise.get(task.lane):
            only_elementwise[task.lane] = bool(_ELEMENTWISE.search(task.body.name))
            if only_elementwise[task.lane]:
                names.append(task.name)
    return names


def update_runs(replay: Replay) -> list[list[Task]]:
    """Return the runs of update kernels: kernels that directly follow one another on a stream, with no other task waiting in between.

    Raises SchedcastError if there are no update kernels.
    """
    updates = frozenset(update_names(replay))
    if not updates:
        raise SchedcastError("the recording shows no optimizer: no optimizer annotation, no kernels that only optimizers launch")
    borders = {step.first_task for step in replay.steps}
    open_runs: dict[tuple[str, int], list[Task]] = {}
    run_of: dict[str, list[Task]] = {}
    runs = []
    for task, lane, on_host in zip(replay.tasks, replay.rows.lanes, replay.rows.on_host, strict=True):
        if not on_host and (task.name not in updates or task.name in borders):
            open_runs.pop(lane, None)
        if task.name in updates:
            if lane not in open_runs:
                open_runs[lane] = []
                runs.append(open_runs[lane])
            open_runs[lane].append(task)
            run_of[task.name] = open_runs[lane]
        for name in task.after:
            run = run_of.get(name)
            if run is not None and open_runs.get(run[0].lane) is run and run is not run_of.get(task.name):
                del open_runs[run[0].lane]
    return runs


def optimizer_of(tasks: Sequence[Task]) -> str | None:
    """Return Schedcast's name of the optimizer in the annotations (SGD counts as momentum), or None if they name no known optimizer."""
    for task in tasks:
        match = _OPTIMIZER_CLASS.search(task.layer)
        if match:
            name = match[1].lower().removeprefix("fused")
            return "momentum" if name == "sgd" else name if name in STATE else None
    return None


def recorded_form(tasks: Sequence[Task]) -> str:
    """Return the form of the optimizer that launched these kernels: for, foreach or fused."""
    names = {task.body.name for task in tasks}
    if any(map(_FUSED.search, names)):
        return FORMS[2]
    return FORMS[1] if any("multi_tensor_apply" in name for name in names) else FORMS[0]
