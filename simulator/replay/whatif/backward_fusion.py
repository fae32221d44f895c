"""The rule backward-fusion: move each update to the moment at which its gradients are complete."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import dropwhile
from math import ceil
from statistics import median

from simulator.plan.bodies.host import Host, Recorded
from simulator.plan.task import Task
from simulator.replay.nodes import ARRIVAL, GAP
from simulator.replay.replay import Replay
from simulator.replay.whatif.edit import (
    Lane,
    backward_names,
    recorded_form,
    update_runs,
    with_tasks,
    without,
)
from simulator.replay.whatif.matching import MalformedError
from simulator.replay.whatif.optimizer import least_kernel_s
from traces.errors import SchedcastError
from traces.units import read_integer

NAME = "backward-fusion"
FORM = "backward-fusion[=LAYERS]"
ABOUT = "parameters are updated in backward, as soon as their gradients are known"
BUILT = {"backward-fusion": "updates as soon as gradients are known"}
TRIED = {"backward-fusion": "each parameter updated as soon as its gradient is known"}

#: Default number of pieces into which an update of all parameters at once is cut.
LAYERS = 16
_REDUCES_GRADIENTS = re.compile("all_?reduce|reduce_?scatter", re.IGNORECASE)


#: The update of some parameters: its kernels, each with the host tasks that launch it.
_Piece = list[tuple[Task, list[Task]]]


def parse(rest: str) -> int:
    """Return the number of pieces into which an update of all parameters at once is cut."""
    if not rest:
        return LAYERS
    layers = read_integer(rest.removeprefix("="), 1, 10_000) if rest.startswith("=") else None
    if layers is None:
        raise MalformedError(f"{rest[:40]!r} is not a number of layers from 1 to 10000")
    return layers


def apply(replay: Replay, request: int) -> tuple[Replay, list[str]]:
    """Cut each update into pieces, and put each piece directly after the backward kernel or collective that completes its gradients."""
    tasks, position, launch_of = replay.tasks, replay.position, replay.rows.launch_of
    runs = update_runs(replay)
    gradients = backward_names(replay, [task.name for run in runs for task in run])
    inserted: dict[str, list[Task]] = {}  # by task, the tasks to insert after it
    instead: dict[str, list[str]] = {}
    own_hosts: set[str] = set()  # the host tasks that move with the updates
    launch_s = median(tasks[position[name]].body.duration_s for name in launch_of.values()) if launch_of else 0.0
    users = Counter(launch_of.values())
    pieces_made, moved, reduced = 0, 0, False
    begin: dict[str, int] = {}  # by device, the position at which its last update ended
    for run in runs:
        window = slice(begin.get(run[0].device, 0), position[run[0].name])
        work = [task for task, on_host in zip(tasks[window], replay.rows.on_host[window], strict=True) if not on_host]
        backward, reductions = _gradients([task for task in work if task.device == run[0].device], gradients)
        if not backward:
            continue
        begin[run[0].device] = position[run[-1].name]
        reduced = reduced or bool(reductions)
        hosts_of = _launch_times(run, replay, users)
        own_hosts |= {host.name for hosts in hosts_of.values() for host in hosts}
        pieces = _pieces(run, hosts_of, request, launch_s)
        last: dict[tuple[str, int], str] = {}
        for number in reversed(range(len(pieces))):  # the last parameters have their gradients first
            gradient = backward[ceil(len(backward) * (len(pieces) - number) / len(pieces)) - 1]
            later = [task for task in reductions if position[task.name] > position[gradient.name]]
            anchor = (later or reductions[-1:] or [gradient])[0]
            for kernel, hosts in pieces[number]:
                _insert(inserted, anchor, launch_of.get(anchor.name), tasks=tasks, position=position, kernel=kernel, hosts=hosts)
                last[anchor.lane] = kernel.name
        for task in run:
            instead[task.name] = list(last.values())
        pieces_made, moved = pieces_made + len(pieces), moved + len(run)
    if not moved:
        raise SchedcastError("backward-fusion: the recording shows no backward kernels before the update; record with annotations")
    dropped = set(instead) | own_hosts
    reordered = [each for task in tasks for each in (task, *inserted.get(task.name, ()))]
    target = "the collective that reduces them, on its stream" if reduced else "the kernel that completes their gradients, on its stream"
    form = recorded_form([task for run in runs for task in run])
    assumptions = [
        f"{moved} update kernels move behind {target}, in {pieces_made} pieces: assumes that parameters are updated in the order of the"
        " forward pass, and that their gradients are completed in the opposite order, evenly over the backward kernels",
        "updates keep their recorded durations, although gradients and weights may still be in the L2 cache",
    ]
    if form != "for":
        assumptions += [
            f"the recorded {form} form updates all parameters at once; it is cut into {request} pieces (backward-fusion=LAYERS)",
            f"the pieces share the recorded Python time of the update; each of their launches takes {launch_s * 1e6:.3g} us, as usual here",
        ]
    return without(with_tasks(replay, reordered), dropped, instead), assumptions


def _gradients(work: Sequence[Task], gradients: set[str]) -> tuple[list[Task], list[Task]]:
    """Return the backward kernels of a step, and the collectives that reduce gradients after the first of them."""
    backward = [task for task in work if task.name in gradients]
    later = dropwhile(lambda task: task.name not in gradients, work)
    return backward, [task for task in later if _reduces(task)]


def _reduces(task: Task) -> bool:
    return task.body.category == "collective" and ARRIVAL not in task.name and bool(_REDUCES_GRADIENTS.search(task.body.name))


def _pieces(run: Sequence[Task], hosts: dict[str, list[Task]], layers: int, launch_s: float) -> list[_Piece]:
    """Return the pieces of an update. `launch_s`: the time of a launch that was not recorded."""
    if recorded_form(run) == "for":
        size = _repeats(run)

        def moved(task: Task) -> Task:
            return replace(task, name=f"{task.name} fused", after=())

        renamed = [(moved(task), [moved(host) for host in hosts[task.name]]) for task in run]
        return [renamed[start : start + size] for start in range(0, len(run), size)]
    least_s = least_kernel_s(run)
    python_s = sum(task.body.duration_s for each in hosts.values() for task in each[:-1])
    like = next((each[-1] for each in hosts.values() if each), None)
    moving_s: dict[str, float] = {}
    for task in run:
        moving_s[task.body.name] = moving_s.get(task.body.name, 0.0) + task.body.duration_s - least_s
    pieces = []
    for layer in range(layers):
        kernels: _Piece = []
        for number, (name, seconds) in enumerate(moving_s.items()):
            label = f"{run[0].name} fused {layer}.{number}"
            body = Recorded(name, "kernel", least_s + seconds / layers)
            launch = [replace(like, name=f"launch of {label}", body=Host(launch_s, like.body.label), after=())] if like else []
            if launch and python_s and not kernels:
                launch.insert(0, replace(launch[0], name=f"Python of {label}", body=Host(python_s / layers, GAP)))
            kernels.append((replace(run[0], name=label, body=body, after=()), launch))
        pieces.append(kernels)
    return pieces


def _repeats(run: Sequence[Task]) -> int:
    """Return the number of kernels per parameter: the shortest period of the kernel names in the run, or 1 if they do not repeat."""
    names = [task.body.name for task in run]
    for size in range(1, len(names) // 2 + 1):
        if len(names) % size == 0 and all(names[i] == names[i + size] for i in range(len(names) - size)):
            return size
    return 1


def _launch_times(run: Sequence[Task], replay: Replay, users: Mapping[str, int]) -> dict[str, list[Task]]:
    """Return by kernel of the run the host tasks that move with it: its launch, and the tasks since the previous launch of the run.

    Kernels that share their launch (nodes of a CUDA graph) have no such tasks. `users`: the number of kernels by launch.
    """
    tasks, rows, position = replay.tasks, replay.rows, replay.position
    launches = {task.name: rows.launch_of.get(task.name, "") for task in run}
    kernel_of = {position[launch]: kernel for kernel, launch in launches.items() if users.get(launch) == 1}
    hosts: dict[str, list[Task]] = {task.name: [] for task in run}
    previous: dict[Lane, int] = {}
    for launch in sorted(kernel_of):
        lane = rows.lanes[launch]
        between = (tasks[index] for index in range(previous.get(lane, launch) + 1, launch) if rows.lanes[index] == lane)
        moved = [task for task in between if task.name not in users and task.name not in rows.waiting]
        hosts[kernel_of[launch]] = [*moved, tasks[launch]]
        previous[lane] = launch
    return hosts


def _insert(inserted, anchor: Task, launch: str | None, tasks, position, kernel: Task, hosts: list[Task]) -> None:
    """Insert a kernel after `anchor`, and its host tasks after the launch of `anchor`; directly before the kernel if that is unknown."""
    stream = tasks[position[launch]].stream if launch else hosts[0].stream if hosts else 0
    hosts = [replace(task, stream=stream) for task in hosts]
    inserted.setdefault(launch or anchor.name, []).extend(hosts)
    kernel = replace(kernel, device=anchor.device, stream=anchor.stream, after=(hosts[-1].name,) if hosts else ())
    inserted.setdefault(anchor.name, []).append(kernel)
