"""Launches of a step collapsed into one."""

from bisect import bisect_right
from dataclasses import replace

from simulator.bodies.host import Host
from simulator.machine.machine import HostLane
from simulator.plan.task import Task
from simulator.replay.replay import Replay
from simulator.whatif.edit import is_host, launches, waits_for_device, with_tasks, without
from simulator.whatif.parsing import nothing
from traces.errors import StepcastError

NAME = "cuda-graph"
FORM = "cuda-graph"
ABOUT = "each step is one CUDA graph: one launch, and no Python between its kernels"

#: What launching a graph takes on the host.
LAUNCH_S = HostLane.graph_launch_s


def parse(rest: str) -> None:
    """Nothing but the name."""
    nothing(rest)


def apply(replay: Replay, request: None) -> tuple[Replay, list[str]]:
    """Replace the launches of each step, and the host time between them, by one launch."""
    tasks = replay.plan.tasks
    launch_of = launches(tasks)
    groups = _groups(replay, launch_of)
    position = {task.name: index for index, task in enumerate(tasks)}
    waiting = waits_for_device(tasks)
    in_front: dict[str, Task] = {}
    instead: dict[str, list[str]] = {}  # for each host task that goes, the launch of its graph
    collapsed = 0
    for number, group in enumerate(groups):
        if len(group) < 2:
            continue
        collapsed += len(group)
        first = tasks[min(position[name] for name in group)]
        graph = replace(first, name=f"graph launch {number}", body=Host(LAUNCH_S, "cudaGraphLaunch"))
        in_front[first.name] = graph
        ends: dict[tuple[str, int], list[int]] = {}
        for name in group:
            ends.setdefault(tasks[position[name]].lane, []).append(position[name])
        for lane, places in ends.items():
            for task in tasks[min(places) : max(places) + 1]:
                if is_host(task) and task.lane == lane and (task.name in group or task.name not in waiting):
                    instead[task.name] = [graph.name]
    if not collapsed:
        raise StepcastError("cuda-graph changes nothing: no step of the recording has two launches")
    kept = sum(name in waiting and name not in instead for name in waiting)
    woven = [each for task in tasks for each in ((in_front[task.name], task) if task.name in in_front else (task,))]
    changed = without(with_tasks(replay, woven), instead.keys(), instead)
    return changed, [
        f"{collapsed} launches become {len(in_front)} of {LAUNCH_S * 1e6:g} us each, one per step and device; host time from the first"
        " to the last launch of a step goes on every thread, host time between steps stays",
        f"{kept} synchronisations stay, behind the launch of their step; a real capture refuses them inside the graph, and needs static"
        " shapes and addresses",
        "kernels keep their durations, their streams' order and the usual recorded gap to the next",
    ]


def _groups(replay: Replay, launch_of: dict[str, str]) -> list[set[str]]:
    """The launches of each step, device by device; without steps all of a device are one group."""
    position = {task.name: index for index, task in enumerate(replay.plan.tasks)}
    borders = sorted(position[launch_of.get(step.first_task, step.first_task)] for step in replay.steps)
    groups: dict[tuple[int, str], set[str]] = {}
    taken: set[str] = set()
    for kernel, launch in launch_of.items():
        if launch not in taken:
            taken.add(launch)
            step = bisect_right(borders, position[launch])
            groups.setdefault((step, replay.plan.tasks[position[kernel]].device), set()).add(launch)
    return list(groups.values())
