"""Another form of the optimizer: its kernels merged into few."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from simulator.bodies.update import FORMS, STATE, Update, forms
from simulator.costs.efficiencies import update_tensors
from simulator.plan.task import Task
from simulator.replay.replay import Replay
from simulator.whatif.edit import is_host, lasting, launches, waits_for_device, with_tasks, without
from simulator.whatif.parsing import MalformedError
from simulator.whatif.phases import optimizer_of, recorded_form, update_runs
from traces.errors import StepcastError

NAME = "optimizer"
FORM = "optimizer=foreach|fused"
ABOUT = "the kernels of the update are merged as PyTorch's foreach or fused form does"

#: What a kernel takes that moves next to nothing (V100 to H100: 1.5 to 2.5 us), as long as no shorter one was recorded.
LEAST_KERNEL_S = 2e-6
#: Kernels of optimizers that are not known by name.
_LAUNCHES = {"foreach": 12, "fused": 1}


def parse(rest: str) -> str:
    """The form."""
    if rest.removeprefix("=") not in FORMS[1:] or not rest.startswith("="):
        raise MalformedError("it names no form")
    return rest[1:]


def apply(replay: Replay, request: str) -> tuple[Replay, list[str]]:
    """Merge runs of update kernels. Kernel time beyond a kernel's least time is moving bytes, and follows the form's traffic."""
    runs = update_runs(replay)
    members = [task for run in runs for task in run]
    recorded, optimizer = recorded_form(members), optimizer_of(members)
    if FORMS.index(recorded) >= FORMS.index(request):
        raise StepcastError(f"optimizer={request} changes nothing: the recorded update is in the {recorded} form already")
    if optimizer is not None and request not in forms(optimizer):
        raise StepcastError(f"optimizer={request}: PyTorch has no {request} form of {optimizer}")
    kernels = Update(optimizer, request, ("p",)).launches if optimizer else _LAUNCHES[request]
    traffic = traffic_ratio(optimizer) if request == "fused" else 1.0
    merged: dict[str, str] = {}  # kernel -> the last of those it is merged with
    seconds: dict[str, float] = {}
    for run in runs:
        least_s = least_kernel_s(run)
        for part in _parts(run, kernels):
            merged |= {task.name: part[-1].name for task in part}
            seconds[part[-1].name] = least_s + traffic * sum(task.body.duration_s - least_s for task in part)
    bytes_said = f"{traffic:.2f} of the bytes" if optimizer and traffic != 1 else "the same bytes"
    who = optimizer or "an optimizer that is not known by name"
    return _merge(replay, merged, seconds), [
        f"the update is that of {who}{' (SGD, taken with momentum)' if optimizer == 'momentum' else ''}, recorded in its {recorded} form:"
        f" {len(members)} kernels in {len(runs)} runs become {len(seconds)}, at most {kernels} per run",
        f"each kernel costs at least {LEAST_KERNEL_S * 1e6:g} us (or the shortest one recorded), the rest of its time is moving bytes;"
        f" the {request} form moves {bytes_said} at the same bandwidth",
        "of launches that are merged the last stays, with its recorded duration; the Python time between them goes",
    ]


def traffic_ratio(optimizer: str | None) -> float:
    """Bytes of the fused form over those of the others; 1 where the optimizer is not known."""
    if optimizer is None:
        return 1.0
    state = sum(name != "step" for name in STATE[optimizer])
    return (1 + 2 * (1 + state)) / update_tensors()[optimizer]  # read the gradient; read and write the parameter and its state


def least_kernel_s(run: Sequence[Task]) -> float:
    """Time of a kernel that moves nothing."""
    return min(LEAST_KERNEL_S, *(task.body.duration_s for task in run))


def _parts(run: Sequence[Task], count: int) -> list[Sequence[Task]]:
    """The run cut into at most `count` parts of nearly equal length."""
    count = min(count, len(run))
    borders = [round(number * len(run) / count) for number in range(count + 1)]
    return [run[left:right] for left, right in pairwise(borders)]


def _merge(replay: Replay, merged: dict[str, str], seconds: dict[str, float]) -> Replay:
    tasks = replay.plan.tasks
    launch_of = launches(tasks)
    changed = []
    for task in tasks:
        others = tuple(dict.fromkeys(merged.get(name, name) for name in task.after))
        if task.name in merged:
            others = tuple(name for name in task.after if name not in merged)  # of its own stream: they are in order
        task = replace(task, after=others)
        changed.append(lasting(task, seconds[task.name]) if task.name in seconds else task)
    dropped = {name for name, target in merged.items() if name != target}
    steps = tuple(
        replace(step, first_task=merged.get(step.first_task, step.first_task), last_task=merged.get(step.last_task, step.last_task))
        for step in replay.steps
    )
    spared = _host_time_between(tasks, merged, launch_of)
    return without(with_tasks(replay, changed, steps), dropped | spared)


def _host_time_between(tasks: Sequence[Task], merged: dict[str, str], launch_of: dict[str, str]) -> set[str]:
    """Host tasks from the first to the last launch of each part, save the last, synchronisations, and launches of other kernels."""
    by_launch: dict[str, set[str]] = {}
    for kernel, launch in launch_of.items():
        by_launch.setdefault(launch, set()).add(merged.get(kernel, ""))
    kept = waits_for_device(tasks) | {launch for launch, parts in by_launch.items() if len(parts) > 1 or "" in parts}
    kept |= {launch_of[target] for target in merged.values() if target in launch_of}
    waited = {name for task in tasks if is_host(task) for name in task.after}
    lanes: dict[tuple[str, int], list[Task]] = {}
    for task in tasks:
        if is_host(task):
            lanes.setdefault(task.lane, []).append(task)
    found: set[str] = set()
    for lane in lanes.values():
        part_of = [next(iter(by_launch.get(task.name, {""}))) for task in lane]
        first = {part: index for index, part in reversed(list(enumerate(part_of))) if part}
        last = {part: index for index, part in enumerate(part_of) if part}
        for part, index in first.items():
            found |= {task.name for task in lane[index : last[part] + 1]}
    return found - kept - waited
