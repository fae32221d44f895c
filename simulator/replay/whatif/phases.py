"""Find the tasks of a recorded step that update parameters, and those that compute gradients."""

import re
from collections.abc import Collection, Sequence

from simulator.plan.bodies.update import FORMS, STATE
from simulator.plan.task import BACKWARD, UPDATE, Task
from simulator.replay.replay import Replay
from simulator.replay.whatif.edit import is_host, launches
from traces.errors import SchedcastError

#: Kernels that only optimizers launch.
_OPTIMIZER_KERNEL = re.compile(r"multi_tensor_apply|adam|sgd_|lamb_|rmsprop|adagrad", re.IGNORECASE)
#: Kernels that PyTorch's for-loop form of an optimizer launches.
_ELEMENTWISE = re.compile(r"elementwise_kernel", re.IGNORECASE)
_BACKWARD_KERNEL = re.compile(r"backward|bwd|_bw_|wgrad|dgrad", re.IGNORECASE)
_FUSED = re.compile(r"fused|(adam|adamw|sgd|adagrad)_?(kernel|functor)", re.IGNORECASE)
_OPTIMIZER_CLASS = re.compile(r"#(\w+)\.step")


def backward_names(tasks: Sequence[Task], updates: Collection[str] = ()) -> set[str]:
    """Return the names of the tasks that compute gradients. `updates` are the names of tasks that do not.

    These are the kernels of phase backward. If there are none, they are the kernels launched by another thread than the one that launches
    the updates (or the first kernel), because autograd has a thread of its own. If there are none of these either, they are the kernels
    with a name that says backward.
    """
    kernels = [task for task in tasks if not is_host(task) and task.body.category == "kernel" and task.name not in updates]
    names = {task.name for task in kernels if task.phase == BACKWARD}
    if not names:
        launch_of = launches(tasks)
        lane_of = {task.name: task.lane for task in tasks if is_host(task)}
        device_of = {task.name: task.device for task in tasks}
        main: dict[str, tuple[str, int]] = {}
        for name in (*updates, *(task.name for task in kernels)):
            if name in launch_of:
                main.setdefault(device_of[name], lane_of[launch_of[name]])
        names = {task.name for task in kernels if task.name in launch_of and lane_of[launch_of[task.name]] != main[task.device]}
    return names or {task.name for task in kernels if _BACKWARD_KERNEL.search(task.body.name)}


def update_names(tasks: Sequence[Task]) -> list[str]:
    """Return the names of the tasks that update parameters, in issue order.

    These are the tasks of phase update. If there are none, they are the kernels that only optimizers launch. If there are none of these
    either, they are the elementwise kernels that follow the last backward kernel of a step, up to the next kernel of another kind.
    """
    work = [task for task in tasks if not is_host(task)]
    names = [task.name for task in work if task.phase == UPDATE]
    names = names or [task.name for task in work if _OPTIMIZER_KERNEL.search(task.body.name)]
    if names:
        return names
    backward = backward_names(tasks)
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
    tasks = replay.plan.tasks
    updates = frozenset(update_names(tasks))
    if not updates:
        raise SchedcastError("the recording shows no optimizer: no optimizer annotation, no kernels that only optimizers launch")
    borders = {step.first_task for step in replay.steps}
    open_runs: dict[tuple[str, int], list[Task]] = {}
    run_of: dict[str, list[Task]] = {}
    runs = []
    for task in tasks:
        if not is_host(task) and (task.name not in updates or task.name in borders):
            open_runs.pop(task.lane, None)
        if task.name in updates:
            if task.lane not in open_runs:
                open_runs[task.lane] = []
                runs.append(open_runs[task.lane])
            open_runs[task.lane].append(task)
            run_of[task.name] = open_runs[task.lane]
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
    if any(_FUSED.search(task.body.name) for task in tasks):
        return FORMS[2]
    return FORMS[1] if any("multi_tensor_apply" in task.body.name for task in tasks) else FORMS[0]
