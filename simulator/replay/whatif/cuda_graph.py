"""The rule cuda-graph: replace the launches of each step by one.

It refuses a job that launches CUDA graphs already: what such a job launches outside of them is what it could not capture, or chose not to,
so that one graph of the whole step would promise too much.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import replace

from simulator.machine.machine import HostLane
from simulator.plan.bodies.host import Host
from simulator.plan.task import Task
from simulator.replay.nodes import is_host
from simulator.replay.replay import Replay
from simulator.replay.whatif.edit import launches, waits_for_device, with_tasks, without
from simulator.replay.whatif.matching import nothing
from traces.errors import SchedcastError

NAME = "cuda-graph"
FORM = "cuda-graph"
ABOUT = "each step is one CUDA graph: one launch, and no Python between its kernels"
BUILT = {"cuda-graph": "each step is one CUDA graph"}
TRIED = {"cuda-graph": "each step launched as one CUDA graph"}

#: What the names of calls that launch a graph contain, of CUDA and of HIP.
GRAPH_LAUNCH = "GraphLaunch"
#: Host time of launching a graph.
LAUNCH_S = HostLane.graph_launch_s


def parse(rest: str) -> None:
    """Check that nothing follows the name."""
    nothing(rest)


def apply(replay: Replay, request: None) -> tuple[Replay, list[str]]:
    """Replace the launches of each step, and the host time between them, by one launch."""
    tasks = replay.plan.tasks
    launch_of = launches(tasks)
    _refuse_graphs(tasks, launch_of)
    groups = _groups(replay, launch_of)
    position = {task.name: index for index, task in enumerate(tasks)}
    waiting = waits_for_device(tasks)
    graph_launches: dict[str, Task] = {}  # by the first launch of a step, the graph launch to insert before it
    instead: dict[str, list[str]] = {}  # by removed host task, the launch of its graph
    collapsed = 0
    for number, group in enumerate(groups):
        if len(group) < 2:
            continue
        collapsed += len(group)
        first = tasks[min(position[name] for name in group)]
        graph = replace(first, name=f"graph launch {number}", body=Host(LAUNCH_S, "cudaGraphLaunch"))
        graph_launches[first.name] = graph
        positions: dict[tuple[str, int], list[int]] = {}
        for name in group:
            positions.setdefault(tasks[position[name]].lane, []).append(position[name])
        for lane, in_lane in positions.items():
            for task in tasks[min(in_lane) : max(in_lane) + 1]:
                if is_host(task) and task.lane == lane and (task.name in group or task.name not in waiting):
                    instead[task.name] = [graph.name]
    if not collapsed:
        raise SchedcastError("cuda-graph changes nothing: no step of the recording has two launches")
    kept = sum(name in waiting and name not in instead for name in waiting)
    reordered = [each for task in tasks for each in ((graph_launches[task.name], task) if task.name in graph_launches else (task,))]
    changed = without(with_tasks(replay, reordered), instead.keys(), instead)
    return changed, [
        f"{collapsed} launches become {len(graph_launches)} of {LAUNCH_S * 1e6:g} us each, one per step and device; host time from the"
        " first to the last launch of a step is removed on every thread, host time between steps stays",
        f"{kept} synchronizations stay, after the launch of their step; a real capture refuses them inside the graph, and needs static"
        " shapes and addresses",
        "kernels keep their durations, the order of their streams and the usual recorded gap to the next kernel",
    ]


def _refuse_graphs(tasks: Sequence[Task], launch_of: Mapping[str, str]) -> None:
    graphs = {task.name for task in tasks if is_host(task) and GRAPH_LAUNCH in task.body.label}
    if graphs:
        launched = sum(launch in graphs for launch in launch_of.values())
        raise SchedcastError(
            f"cuda-graph changes nothing: {launched:,} of the {len(tasks) - sum(map(is_host, tasks)):,} kernels are launched by"
            f" {len(graphs):,} CUDA graph{'' if len(graphs) == 1 else 's'} already"
        )


def _groups(replay: Replay, launch_of: dict[str, str]) -> list[set[str]]:
    """Return the launches of each step on each device. Without steps, all launches of a device are one group."""
    position = {task.name: index for index, task in enumerate(replay.plan.tasks)}
    borders = sorted(position[launch_of.get(step.first_task, step.first_task)] for step in replay.steps)
    groups: dict[tuple[int, str], set[str]] = {}
    seen: set[str] = set()
    for kernel, launch in launch_of.items():
        if launch not in seen:
            seen.add(launch)
            step = bisect_right(borders, position[launch])
            groups.setdefault((step, replay.plan.tasks[position[kernel]].device), set()).add(launch)
    return list(groups.values())
