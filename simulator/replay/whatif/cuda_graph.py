"""The rule cuda-graph: replace the launches of each step by one, or by one for each stretch between synchronizations.

No capture allows a synchronization.

It refuses a job that launches CUDA graphs already: such a job could not capture, or chose not to capture, what it launches outside of them,
so one graph of the whole step would promise too much.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace

from simulator.machine.machine import HostLane
from simulator.plan.bodies.host import Host
from simulator.plan.task import Task
from simulator.replay.replay import Replay
from simulator.replay.whatif.edit import host_work, with_tasks, without
from simulator.replay.whatif.matching import nothing
from traces.errors import SchedcastError
from traces.formats.recording import GRAPH_LAUNCH, KERNEL

NAME = "cuda-graph"
FORM = "cuda-graph"
ABOUT = "each step, or what lies between its synchronizations, is one CUDA graph: one launch, and no Python between its kernels"
BUILT = {"cuda-graph": "each step is one CUDA graph"}
TRIED = {"cuda-graph": "each step launched as one CUDA graph"}

#: Host time of launching a graph.
LAUNCH_S = HostLane.graph_launch_s


def parse(rest: str) -> None:
    """Check that nothing follows the name."""
    nothing(rest)


def apply(replay: Replay, request: None) -> tuple[Replay, list[str]]:
    """Replace the launches of each step, and the host time between them, by one launch for each stretch between synchronizations."""
    tasks, rows, position = replay.tasks, replay.rows, replay.position
    _refuse_graphs(replay)
    launch_of, waiting = rows.launch_of, rows.waiting
    borders = sorted(position[name] for name in waiting - set(launch_of.values()))  # without launches that only wait for room in the queue
    groups = _groups(replay, borders)
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
            positions.setdefault(rows.lanes[position[name]], []).append(position[name])
        for lane, in_lane in positions.items():
            for index in range(min(in_lane), max(in_lane) + 1):
                name = tasks[index].name
                if rows.on_host[index] and rows.lanes[index] == lane and (name in group or name not in waiting):
                    instead[name] = [graph.name]
    if not collapsed:
        between = " without a synchronization between them, which no capture allows" if borders else ""
        raise SchedcastError(f"cuda-graph changes nothing: no step of the recording has two launches{between}")
    kept = sum(name in waiting and name not in instead for name in waiting)
    reordered = [each for task in tasks for each in ((graph_launches[task.name], task) if task.name in graph_launches else (task,))]
    changed = without(with_tasks(replay, reordered), instead.keys(), instead)
    return changed, [
        f"{collapsed} launches become {len(graph_launches)} of {LAUNCH_S * 1e6:g} us each, one per step and device, and per stretch between"
        " synchronizations; host time from the first to the last launch of each is removed on every thread, host time between them stays",
        f"{kept} synchronizations stay, outside of the graphs, since a capture refuses them; it needs static shapes and addresses",
        "kernels keep their durations, the order of their streams and the usual recorded gap to the next kernel",
    ]


def _refuse_graphs(replay: Replay) -> None:
    graphs = {task.name for task in host_work(replay) if GRAPH_LAUNCH in task.body.label}
    if graphs:
        launched, works = sum(launch in graphs for launch in replay.rows.launch_of.values()), replay.rows.on_host.count(False)
        of = f"{launched:,} of the {works:,} kernels are launched by {len(graphs):,} CUDA graph{'' if len(graphs) == 1 else 's'} already"
        raise SchedcastError(f"cuda-graph changes nothing: {of if launched else 'the job launches CUDA graphs, without recorded work'}")


def _groups(replay: Replay, synchronizations: Sequence[int]) -> list[set[str]]:
    """Return the launches of each step on each device, divided at synchronizations between launches of kernels.

    Without steps, all launches of a device are of one step. Copies to the device before the kernels may block: they stay in the group.
    """
    tasks, position, launch_of = replay.rows.tasks, replay.position, replay.rows.launch_of
    borders = sorted(position[launch_of.get(step.first_task, step.first_task)] for step in replay.steps)
    of_step: dict[tuple[int, str], dict[str, bool]] = {}  # by launch, whether it launches kernels
    seen: set[str] = set()
    for work, launch in launch_of.items():
        task = tasks[position[work]]
        if launch not in seen:
            seen.add(launch)
            own = of_step.setdefault((bisect_right(borders, position[launch]), task.device), {})
            own[launch] = task.body.category == KERNEL
    groups: list[set[str]] = []
    for own in of_step.values():
        at = [position[launch] for launch, is_kernel in own.items() if is_kernel] or [0]
        cuts = synchronizations[bisect_right(synchronizations, min(at)) : bisect_right(synchronizations, max(at))]
        apart: dict[int, set[str]] = {}
        for launch in own:
            apart.setdefault(bisect_right(cuts, position[launch]), set()).add(launch)
        groups += apart.values()
    return groups
