"""A run to compare: its work as nodes in lanes, in an order in which a walk gives the times back."""

from dataclasses import dataclass

from traces.documents.timeline import Timeline

#: Terms of a difference besides those of `simulator.predict.parts`; a node's own time belongs to one of them.
KERNELS, COPIES, PYTHON = "kernels", "copies", "Python between launches"
#: What belongs to no node's own time: host calls that wait for a device, the order of streams and threads, pauses after device work.
SYNCHRONIZATION, ORDER, PAUSES = "synchronization", "order of work", "pauses between kernels"
#: All that a recording has before its first step.
EARLIER = "what ran before the first step"

Lane = tuple[str, int | str]


@dataclass(slots=True)
class Node:
    """Work of a device, or time on a host thread.

    `names`: what it is called, from the exact name to a class; nodes of two runs are aligned by these. `label`: for people. `after`: nodes
    that it waits for, besides the node before it in its lane; `launch`: the one of them that launched it, -1 if none. `pause_s` follows it.
    `step`: the compared step in which a device's work counts, -1 before the first.
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


@dataclass(frozen=True)
class Run:
    """Nodes in issue order: each stands after those that it waits for.

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
