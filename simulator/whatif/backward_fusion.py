"""Updates moved to their gradients."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil

from simulator.bodies.host import Host
from simulator.bodies.recorded import Recorded
from simulator.plan.task import Task
from simulator.replay.nodes import ARRIVAL
from simulator.replay.replay import Replay
from simulator.whatif.edit import is_host, launches, waits_for_device, with_tasks, without
from simulator.whatif.optimizer import least_kernel_s
from simulator.whatif.parsing import MalformedError
from simulator.whatif.phases import backward_names, recorded_form, update_runs
from traces.errors import StepcastError

NAME = "backward-fusion"
FORM = "backward-fusion[=LAYERS]"
ABOUT = "parameters are updated in backward, as soon as their gradients are known"

#: Pieces that an update of all parameters at once is cut into, unless the rule says.
LAYERS = 16
_REDUCES_GRADIENTS = re.compile("all_?reduce|reduce_?scatter", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class _Piece:
    """The update of some parameters: kernels with the host time that launches each."""

    kernels: list[tuple[Task, list[Task]]]


def parse(rest: str) -> int:
    """Into how many pieces an update of all parameters at once is cut."""
    if not rest:
        return LAYERS
    if not (rest.startswith("=") and rest[1:].isdecimal() and 1 <= int(rest[1:]) <= 10_000):
        raise MalformedError(f"{rest[:40]!r} is no number of layers from 1 to 10000")
    return int(rest[1:])


def apply(replay: Replay, request: int) -> tuple[Replay, list[str]]:
    """Cut each update into pieces and put each behind the backward kernel, or the collective, that completes its gradients."""
    tasks = replay.plan.tasks
    runs = update_runs(replay)
    position = {task.name: index for index, task in enumerate(tasks)}
    launch_of = launches(tasks)
    gradients = backward_names(tasks, [task.name for run in runs for task in run])
    behind: dict[str, list[Task]] = {}  # what is put behind each task
    instead: dict[str, list[str]] = {}
    pieces_made, moved, reduced = 0, 0, False
    begin: dict[str, int] = {}  # by device, where its last update ended
    for run in runs:
        window = tasks[begin.get(run[0].device, 0) : position[run[0].name]]
        backward, reductions = _gradients(window, run[0].device, gradients)
        if not backward:
            continue
        begin[run[0].device] = position[run[-1].name]
        reduced = reduced or bool(reductions)
        pieces = _pieces(run, tasks, launch_of, request)
        last: dict[tuple[str, int], str] = {}
        for number in reversed(range(len(pieces))):  # the last parameters have their gradients first
            gradient = backward[ceil(len(backward) * (len(pieces) - number) / len(pieces)) - 1]
            later = [task for task in reductions if position[task.name] > position[gradient.name]]
            anchor = (later or reductions[-1:] or [gradient])[0]
            for kernel, hosts in pieces[number].kernels:
                _put(behind, anchor, launch_of.get(anchor.name), tasks, position, kernel, hosts)
                last[anchor.lane] = kernel.name
        for task in run:
            instead[task.name] = list(last.values())
        pieces_made, moved = pieces_made + len(pieces), moved + len(run)
    if not moved:
        raise StepcastError("backward-fusion: the recording shows no backward kernels in front of the update; record with annotations")
    dropped = set(instead) | _own_host_time([run for run in runs if run[0].name in instead], tasks, launch_of)
    woven = [each for task in tasks for each in (task, *behind.get(task.name, ()))]
    where = "the collective that reduces them, on its stream" if reduced else "the kernel that completes their gradients, on its stream"
    form = recorded_form([task for run in runs for task in run])
    said = [
        f"{moved} update kernels move behind {where}, in {pieces_made} pieces: parameters are taken to be updated in the order of the"
        " forward pass, with gradients that come in the opposite order and evenly over the backward kernels",
        "updates keep their recorded durations: that gradients and weights may still lie in the L2 cache is not counted",
    ]
    if form != "for":
        said.append(f"the recorded {form} form updates all parameters at once; it is cut into {request} pieces (backward-fusion=LAYERS)")
    return without(with_tasks(replay, woven), dropped, instead), said


def _gradients(window: Sequence[Task], device: str, gradients: set[str]) -> tuple[list[Task], list[Task]]:
    """Backward kernels of a step, and the collectives behind the first of them that reduce gradients."""
    work = [task for task in window if not is_host(task) and task.device == device]
    backward = [task for task in work if task.name in gradients]
    behind = work[work.index(backward[0]) :] if backward else []
    return backward, [task for task in behind if _reduces(task)]


def _reduces(task: Task) -> bool:
    return task.body.category == "collective" and ARRIVAL not in task.name and bool(_REDUCES_GRADIENTS.search(task.body.name))


def _pieces(run: Sequence[Task], tasks: Sequence[Task], launch_of: dict[str, str], layers: int) -> list[_Piece]:
    if recorded_form(run) == "for":
        hosts = _launch_times(run, tasks, launch_of)
        size = _repeats(run)
        renamed = [(replace(task, name=f"{task.name} fused", after=()), hosts[task.name]) for task in run]
        return [_Piece(renamed[start : start + size]) for start in range(0, len(run), size)]
    least_s = least_kernel_s(run)
    hosts = _launch_times(run, tasks, launch_of)
    known = [sum(task.body.duration_s for task in each) for each in hosts.values() if each]
    launch_s = sum(known) / len(known) if known else 0.0
    like = next((each[-1] for each in hosts.values() if each), None)
    moving_s: dict[str, float] = {}
    for task in run:
        moving_s[task.body.name] = moving_s.get(task.body.name, 0.0) + task.body.duration_s - least_s
    pieces = []
    for layer in range(layers):
        kernels = []
        for number, (name, seconds) in enumerate(moving_s.items()):
            label = f"{run[0].name} fused {layer}.{number}"
            body = Recorded(name, "kernel", least_s + seconds / layers)
            launch = [replace(like, name=f"launch of {label}", body=Host(launch_s, like.body.label), after=())] if like else []
            kernels.append((replace(run[0], name=label, body=body, after=()), launch))
        pieces.append(_Piece(kernels))
    return pieces


def _repeats(run: Sequence[Task]) -> int:
    """Kernels per parameter: the shortest length at which the run's names repeat, else 1."""
    names = [task.body.name for task in run]
    for size in range(1, len(names) // 2 + 1):
        if len(names) % size == 0 and all(names[i] == names[i + size] for i in range(len(names) - size)):
            return size
    return 1


def _launch_times(run: Sequence[Task], tasks: Sequence[Task], launch_of: dict[str, str]) -> dict[str, list[Task]]:
    """For each kernel of the run, host tasks that go with it: what lies between the launch before it in the run and its own, and that.

    None for kernels that share their launch (with other nodes of a CUDA graph).
    """
    users = Counter(launch_of.values())
    wanted = {launch_of[task.name]: task.name for task in run if users[launch_of.get(task.name, "")] == 1}
    kept = waits_for_device(tasks) | (set(launch_of.values()) - set(wanted))
    found: dict[str, list[Task]] = {task.name: [] for task in run}
    gathering: dict[tuple[str, int], list[Task]] = {}
    for task in tasks:
        if not is_host(task):
            continue
        kernel = wanted.get(task.name)
        if kernel is not None:
            mine = [*gathering.get(task.lane, ()), task]
            found[kernel] = [replace(each, name=f"{each.name} fused", after=()) for each in mine]
            gathering[task.lane] = []
        elif task.lane in gathering and task.name not in kept:
            gathering[task.lane].append(task)
    return found


def _own_host_time(runs: Sequence[Sequence[Task]], tasks: Sequence[Task], launch_of: dict[str, str]) -> set[str]:
    """Host tasks that move with the updates."""
    found = set()
    for run in runs:
        for hosts in _launch_times(run, tasks, launch_of).values():
            found |= {task.name.removesuffix(" fused") for task in hosts}
    return found


def _put(behind, anchor: Task, launch: str | None, tasks, position, kernel: Task, hosts: list[Task]) -> None:
    """Put a kernel behind its anchor, and its launch behind the anchor's (where that is not known: right in front of the kernel)."""
    stream = tasks[position[launch]].stream if launch else hosts[0].stream if hosts else 0
    hosts = [replace(task, stream=stream) for task in hosts]
    behind.setdefault(launch or anchor.name, []).extend(hosts)
    kernel = replace(kernel, device=anchor.device, stream=anchor.stream, after=(hosts[-1].name,) if hosts else ())
    behind.setdefault(anchor.name, []).append(kernel)
