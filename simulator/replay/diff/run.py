"""A run to compare, such as a replayed recording: its work as nodes in lanes, in an order in which a walk gives the times back."""

from bisect import bisect_left
from dataclasses import dataclass, replace

from simulator.plan.task import BACKWARD, UPDATE
from simulator.predict.waterfall import COMMUNICATION, LAUNCHES
from simulator.replay.compare import boundaries, counted_steps, times_of
from simulator.replay.nodes import GAP, short_name
from simulator.replay.replay import Replay
from simulator.replay.whatif.matching import class_of
from traces.documents.timeline import Timeline
from traces.errors import SchedcastError
from traces.formats.iterations import WHOLE

#: Terms of a difference in addition to those of `simulator.predict.waterfall`; a node's own time belongs to one of them.
KERNELS, COPIES, PYTHON = "kernels", "copies", "Python between launches"
#: What belongs to no node's own time: host calls that wait for a device, the order of streams and threads, pauses after device work.
SYNCHRONIZATION, ORDER, PAUSES = "synchronization", "order of work", "pauses between kernels"
#: Everything in a recording before its first step.
EARLIER = "what ran before the first step"

Lane = tuple[str, int | str]


@dataclass(slots=True)
class Node:
    """Work of a device, or time on a host thread.

    `names`: its names, from the exact name to a class; nodes of two runs are aligned by these. `label`: for people. `after`: nodes that it
    waits for, in addition to the previous node in its lane; `launch`: the one of them that launched it, -1 if none. `pause_s` follows it.
    `step`: the compared step in which a device's work counts, -1 before the first. `callers`, `call`: as those of `Recorded`.
    """

    names: tuple[str, ...]
    label: str
    term: str
    lane: Lane
    seconds: float
    after: tuple[int, ...] = ()
    launch: int = -1
    pause_s: float = 0.0
    on_device: bool = True
    step: int = 0
    callers: str = ""
    call: int = 0


@dataclass(frozen=True)
class Run:
    """Nodes in issue order: each comes after those that it waits for.

    `steps`: how many are compared. `step_s`: the recorded (or stated) step time, its mean over those that count. `whole`: whether the
    period begins at time 0 and lasts until all has ended; else it is that of `simulator.replay.compare`. `timeline`: what to draw.
    """

    name: str
    nodes: tuple[Node, ...]
    steps: int
    step_s: float
    timeline: Timeline
    whole: bool = False
    notes: tuple[str, ...] = ()


#: The most tasks of a run: later steps of a long recording are skipped, so that a comparison takes seconds.
MOST_TASKS = 60_000
_TERMS = {"kernel": KERNELS, "memcpy": COPIES, "memset": COPIES, "collective": COMMUNICATION}


def check_steps(replay: Replay, name: str) -> None:
    """Raise SchedcastError if the recording has no steps that could be compared."""
    if [step.name for step in replay.steps] == [WHOLE]:
        raise SchedcastError(
            f"trace {name} has no steps: nothing in it repeats, and no step is annotated; record three steps or more, and call"
            " profiler.step() after each"
        )


def comparable_steps(replay: Replay) -> int:
    """Return how many of the first steps can be compared in time."""
    ends = [replay.position[step.last_task] for step in replay.steps]
    return max(1, sum(end < MOST_TASKS for end in ends))


def run_of_replay(replay: Replay, name: str, steps: int) -> Run:
    """Return the first `steps` steps of a recording, and what ran before them."""
    replay = replace(replay, steps=replay.steps[:steps])
    position, on_host = replay.position, replay.rows.on_host
    lasts = [position[step.last_task] for step in replay.steps]
    tasks = replay.tasks[: max(lasts) + 1]
    first = position[replay.steps[0].first_task]
    launch_of, waiting = replay.rows.launch_of, replay.rows.waiting
    gaps = {device.name: device.task_overhead_s for device in replay.machine.devices}
    followed = _followed_by(replay, len(tasks))
    earlier = max((index for index in range(first) if not on_host[index]), default=-1)
    nodes = []
    for index, task in enumerate(tasks):
        after = replay.rows.after[index]
        if on_host[index]:
            names = (task.body.label,)
            label = (task.body.op or f"before {followed[task.name]}") if task.body.label == GAP else task.body.label
            term = SYNCHRONIZATION if task.name in waiting else PYTHON if task.body.label == GAP else LAUNCHES
            term = EARLIER if index <= earlier else term
            nodes.append(Node(names, label, term, task.lane, task.body.duration_s, after, on_device=False))
            continue
        short = short_name(task.body.name)
        nodes.append(
            Node(
                names=(task.body.name, short, class_of(task.body)),
                label=f"{short}, {task.phase}" if task.phase in (BACKWARD, UPDATE) else short,
                term=EARLIER if index <= earlier else _TERMS[task.body.category],
                lane=task.lane,
                seconds=task.body.duration_s,
                after=after,
                launch=position.get(launch_of.get(task.name, ""), -1),
                pause_s=gaps[task.device],
                step=-1 if index < first else bisect_left(lasts, index),
                callers=task.body.callers,
                call=task.body.call,
            )
        )
    begin_s, end_s, number = counted_steps(boundaries(replay, times_of(replay.recording)))
    step_s = (end_s - begin_s) / number
    return Run(name, tuple(nodes), steps, step_s, Timeline(replay.recording.kind, replay.recording.spans, step_s, (begin_s, end_s)))


def _followed_by(replay: Replay, count: int) -> dict[str, str]:
    """Return by host task, of the first `count` tasks, the label of what its thread does next: the kernel that it launches, or the call."""
    tasks, launch_of = replay.tasks[:count], replay.rows.launch_of
    launched: dict[str, str] = {}
    for task in tasks:
        if task.name in launch_of:
            launched.setdefault(launch_of[task.name], short_name(task.body.name))
    following: dict[tuple[str, int], str] = {}
    result = {}
    for task, on_host in zip(reversed(tasks), reversed(replay.rows.on_host[:count]), strict=True):
        if on_host:
            result[task.name] = following.get(task.lane, "the end")
            following[task.lane] = launched.get(task.name, task.body.label)
    return result
