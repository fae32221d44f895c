"""The rule optimizer: another form of the optimizer, which merges the kernels of the update."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from simulator.engine.costs.efficiencies import update_tensors
from simulator.plan.bodies.update import FORMS, STATE, Update, forms
from simulator.plan.task import Task
from simulator.replay.replay import Replay
from simulator.replay.whatif.edit import (
    host_work,
    optimizer_of,
    recorded_form,
    update_runs,
    with_durations,
    with_tasks,
    without,
)
from simulator.replay.whatif.matching import MalformedError
from traces.errors import SchedcastError

NAME = "optimizer"
FORM = "optimizer=foreach|fused|free"
ABOUT = "the kernels of the update are merged as PyTorch's foreach or fused form does; free: they take no time, a bound"
BUILT = {"optimizer=fused": "the optimizer's fused form", "optimizer=foreach": "the optimizer's foreach form"}
TRIED = BUILT
BOUNDS = {"optimizer=free": "a free optimizer"}

FREE = "free"

#: Duration of a kernel that moves almost nothing (V100 to H100: 1.5 to 2.5 us), unless a shorter kernel was recorded.
LEAST_KERNEL_S = 2e-6
#: Number of kernels by form, for optimizers that Schedcast does not know by name.
_LAUNCHES = {"foreach": 12, "fused": 1}


def parse(rest: str) -> str:
    """Return the form, or free."""
    if rest.removeprefix("=") not in (*FORMS[1:], FREE) or not rest.startswith("="):
        raise MalformedError("it does not name a form")
    return rest[1:]


def apply(replay: Replay, request: str) -> tuple[Replay, list[str]]:
    """Merge runs of update kernels. A kernel's time beyond its least time is spent moving bytes, and scales with the form's traffic."""
    runs = update_runs(replay)
    members = [task for run in runs for task in run]
    if request == FREE:
        return _free(replay, runs)
    recorded, optimizer = recorded_form(members), optimizer_of(members)
    if FORMS.index(recorded) >= FORMS.index(request):
        raise SchedcastError(f"optimizer={request} changes nothing: the optimizer is already in its {recorded} form")
    if optimizer is not None and request not in forms(optimizer):
        raise SchedcastError(f"optimizer={request}: PyTorch has no {request} form of {optimizer}")
    kernels = Update(optimizer, request, ("p",)).launches if optimizer else _LAUNCHES[request]
    traffic = traffic_ratio(optimizer) if request == "fused" else 1.0
    merged: dict[str, str] = {}  # kernel -> the last of those it is merged with
    seconds: dict[str, float] = {}
    for run in runs:
        least_s = least_kernel_s(run)
        for group in _groups(run, kernels):
            merged |= {task.name: group[-1].name for task in group}
            seconds[group[-1].name] = least_s + traffic * sum(task.body.duration_s - least_s for task in group)
    share_of_bytes = f"{traffic:.2f} of the bytes" if optimizer and traffic != 1 else "the same bytes"
    name = optimizer or "an optimizer that is not known by name"
    return _merge(replay, merged, seconds), [
        f"the update is that of {name}{' (SGD, assumed with momentum)' if optimizer == 'momentum' else ''}, recorded in its {recorded}"
        f" form: {len(members)} kernels in {len(runs)} runs become {len(seconds)}, at most {kernels} per run",
        f"each kernel costs at least {LEAST_KERNEL_S * 1e6:g} us (or the shortest one recorded), the rest of its time is moving bytes;"
        f" the {request} form moves {share_of_bytes} at the same bandwidth",
        "the last of the merged launches stays, with its recorded duration; the Python time between them is removed",
    ]


def _free(replay: Replay, runs: Sequence[Sequence[Task]]) -> tuple[Replay, list[str]]:
    """Merge each run of update kernels into one that takes no time."""
    merged = {task.name: run[-1].name for run in runs for task in run}
    return _merge(replay, merged, dict.fromkeys(merged.values(), 0.0)), [
        f"{len(merged)} update kernels take no time, and neither does the host from the first to the last launch of a run of them: a bound,"
        " which no optimizer reaches"
    ]


def traffic_ratio(optimizer: str | None) -> float:
    """Return the bytes that the fused form moves, divided by those of the other forms; 1 for an unknown optimizer."""
    if optimizer is None:
        return 1.0
    state = sum(name != "step" for name in STATE[optimizer])
    return (1 + 2 * (1 + state)) / update_tensors()[optimizer]  # read the gradient; read and write the parameter and its state


def least_kernel_s(run: Sequence[Task]) -> float:
    """Return the duration of a kernel that moves nothing."""
    return min(LEAST_KERNEL_S, *(task.body.duration_s for task in run))


def _groups(run: Sequence[Task], count: int) -> list[Sequence[Task]]:
    """Cut the run into at most `count` groups of nearly equal length."""
    count = min(count, len(run))
    borders = [round(number * len(run) / count) for number in range(count + 1)]
    return [run[left:right] for left, right in pairwise(borders)]


def _merge(replay: Replay, merged: dict[str, str], seconds: dict[str, float]) -> Replay:
    changed = []
    for task in replay.tasks:
        if not merged.keys().isdisjoint(task.after):
            others = dict.fromkeys(merged.get(name, name) for name in task.after)
            if task.name in merged:
                others = dict.fromkeys(name for name in task.after if name not in merged)  # those are on its own stream, which is in order
            task = replace(task, after=tuple(others))
        changed.append(task)
    dropped = {name for name, target in merged.items() if name != target}
    steps = tuple(
        replace(step, first_task=merged.get(step.first_task, step.first_task), last_task=merged.get(step.last_task, step.last_task))
        for step in replay.steps
    )
    between, rows = _host_time_between(replay, merged), replay.rows
    edited = with_tasks(replay, changed, steps, position=rows.position, on_host=rows.on_host, lanes=rows.lanes)
    return with_durations(without(edited, dropped | between), seconds)


def _host_time_between(replay: Replay, merged: dict[str, str]) -> set[str]:
    """Return the host tasks from the first to the last launch of each group, without the last one.

    Synchronizations and launches of other kernels are excluded too.
    """
    launch_of, hosts = replay.rows.launch_of, host_work(replay)
    by_launch: dict[str, set[str]] = {}
    for kernel, launch in launch_of.items():
        by_launch.setdefault(launch, set()).add(merged.get(kernel, ""))
    needed = replay.rows.waiting | {launch for launch, groups in by_launch.items() if len(groups) > 1 or "" in groups}
    needed |= {launch_of[target] for target in merged.values() if target in launch_of}
    waited = {name for task in hosts for name in task.after}
    lanes: dict[tuple[str, int], list[Task]] = {}
    for task in hosts:
        lanes.setdefault(task.lane, []).append(task)
    between: set[str] = set()
    for lane in lanes.values():
        group_of = [next(iter(by_launch.get(task.name, {""}))) for task in lane]
        first = {group: index for index, group in reversed(list(enumerate(group_of))) if group}
        last = {group: index for index, group in enumerate(group_of) if group}
        for group, index in first.items():
            between |= {task.name for task in lane[index : last[group] + 1]}
    return between - needed - waited
