"""The graph between a recording and a plan: nodes in lanes, and one issue order for all nodes.

The host threads of a recording become launches, waits, and the gaps between them. A launch lasts from the start of its call to the moment
at which its work may start (the end of the call plus the usual launch latency). A wait lasts from the end of the work that it waits for to
its return. The time between calls is a gap: Python, and calls that order nothing. It is named after the op or annotation that covers it, if
there is one. A data loader's time is a separate gap.
"""

import re
from dataclasses import dataclass, field, replace
from functools import lru_cache
from heapq import heapify, heappop, heappush

from simulator.plan.bodies.host import Host, Recorded
from simulator.plan.task import FORWARD, Resource, Task
from traces.formats.iterations import Iterations
from traces.formats.recording import CallKind, Recording
from traces.formats.streams import hand_overs
from traces.formats.synchronization import Order

HOST = "host"
#: The label of the time between two recorded calls of a host thread.
GAP = "gap"
#: The label of a launch that was not recorded.
LOST_LAUNCH = "lost launch"
#: The label of a pause inside a CUDA graph or after one, for which nothing was recorded. The host has no part in it.
GRAPH_PAUSE = f"{LOST_LAUNCH} inside a graph"
#: Ends the label of the task that marks a rank's arrival at a collective; the transfer is the next task in its lane.
ARRIVAL = " arrival"
#: Characters of an op's name in the name of a gap.
LONGEST_OP = 100
#: Issue order: iteration, then time.
Key = tuple[int, float]


def is_host(task: Task) -> bool:
    """Whether the task is time on a host thread; all others of a replay are recorded work of a device."""
    return task.body.resource is Resource.HOST


@dataclass(slots=True)
class Node:
    """A future task. `after`: positions of the nodes that it waits for, in addition to the previous node in its lane."""

    label: str
    body: Host | Recorded
    device: str
    stream: int
    key: Key
    after: list[int] = field(default_factory=list)
    phase: str = FORWARD
    recorded_s: tuple[float, float] | None = None
    layer: str = ""


class Graph:
    """Nodes by position. The nodes of one lane are added in the lane's order."""

    def __init__(self):
        self.nodes: list[Node] = []
        self.dropped = 0
        self._names: dict[str, int] = {}

    def add(self, node: Node) -> int:
        """Add a node and return its position."""
        self.nodes.append(node)
        return len(self.nodes) - 1

    def host(self, stream: int, label: str, duration_s: float, key: Key, prefix: str = "", op: str = "") -> int:
        """Add a node of a host thread and return its position. `prefix`: that of its rank (`rank_prefix`). `op`: what covers a gap."""
        return self.add(Node(f"{prefix}{short_op(op) or label}", Host(max(0.0, duration_s), label, op), HOST, stream, key))

    def set_duration(self, position: int, duration_s: float) -> None:
        """Set a host node's duration. Its recorded end stays."""
        node = self.nodes[position]
        node.body = replace(node.body, duration_s=max(0.0, duration_s))
        if node.recorded_s is not None:
            end_s = node.recorded_s[1]
            node.recorded_s = (end_s - node.body.duration_s, end_s)

    def tasks(self) -> tuple[list[Task], list[int]]:
        """Return the tasks in issue order, and the position of each task's node.

        Every edge points back to an earlier task. If edges contradict one another (in a damaged recording, or between ranks whose
        collectives cross), the first waiting node at the head of a lane is issued without the edges that it still waits for; `dropped`
        counts these edges.
        """
        order = self._order()
        names = {position: self._name(self.nodes[position].label) for position in order}
        issued: set[int] = set()
        tasks = []
        for position in order:
            node = self.nodes[position]
            after = tuple(names[other] for other in dict.fromkeys(node.after) if other in issued)
            tasks.append(Task(names[position], node.body, node.device, node.stream, after=after, phase=node.phase, layer=node.layer))
            issued.add(position)
        return tasks, order

    def _name(self, label: str) -> str:
        number = self._names[label] = self._names.get(label, 0) + 1
        return f"{label} #{number}"

    def _order(self) -> list[int]:
        nodes = self.nodes
        waits = [set(node.after) - {position} for position, node in enumerate(nodes)]
        previous: dict[tuple[str, int], int] = {}
        before = [-1] * len(nodes)
        for position, node in enumerate(nodes):
            lane = (node.device, node.stream)
            before[position] = previous.get(lane, -1)
            previous[lane] = position
            if before[position] >= 0:
                waits[position].add(before[position])
        successors: list[list[int]] = [[] for _ in nodes]
        for position, others in enumerate(waits):
            for other in others:
                successors[other].append(position)
        left = [len(others) for others in waits]
        ready = [(node.key, position) for position, node in enumerate(nodes) if not left[position]]
        heapify(ready)
        order: list[int] = []
        done = [False] * len(nodes)
        next_in_lane = {other: position for position, other in enumerate(before) if other >= 0}
        heads = [(node.key, position) for position, node in enumerate(nodes) if before[position] < 0]
        heapify(heads)
        while len(order) < len(nodes):
            while not ready:
                _, head = heappop(heads)
                if not done[head]:
                    self.dropped += left[head]
                    left[head] = 0
                    ready.append((nodes[head].key, head))
            _, position = heappop(ready)
            if done[position]:
                continue
            done[position] = True
            order.append(position)
            if position in next_in_lane:
                heappush(heads, (nodes[next_in_lane[position]].key, next_in_lane[position]))
            for successor in successors[position]:
                left[successor] -= 1
                if not left[successor]:
                    heappush(ready, (nodes[successor].key, successor))
        return order


_RANK = re.compile(r"rank (\d+): ")


def rank_prefix(rank: int) -> str:
    """Return the prefix of the names of a rank's tasks if there are several ranks."""
    return f"rank {rank}: "


def rank_of(task: str) -> int | None:
    """Return the rank of a task by its name; None if there is only one rank."""
    match = _RANK.match(task)
    return int(match[1]) if match else None


def short_op(op: str) -> str:
    """Return the name of an op or annotation, cut if it is a long one."""
    return op if len(op) <= LONGEST_OP else op[: LONGEST_OP - 1] + "…"


_ANONYMOUS = re.compile(r"\(anonymous namespace\)::|^void |^std::|^\s+")


@lru_cache(maxsize=4096)
def short_name(kernel: str) -> str:
    """Return a kernel's name in short form: without return type, namespaces, template arguments and call arguments."""
    text = _ANONYMOUS.sub("", kernel)
    head = re.split(r"[<(]", text, maxsplit=1)[0].strip()
    name = (text if kernel.startswith("Mem") else head.rsplit("::", 1)[-1]) or text
    return " ".join(name.split())[:60] or "kernel"


_SILENT = (CallKind.STREAM_WAIT, CallKind.EVENT_RECORD)


@dataclass(slots=True)
class HostNodes:
    """`launch_of_call`: by call, the node at whose end its work may start. `waiting`: pairs of a node and the works that it waits for."""

    launch_of_call: dict[int, int] = field(default_factory=dict)
    waiting: list[tuple[int, list[int]]] = field(default_factory=list)


@dataclass(slots=True)
class _ThreadState:
    """The state of a thread after a call: its last node (-1: none yet) and the time that it has reached."""

    node: int
    time_s: float


def add_threads(
    graph: Graph,
    recording: Recording,
    order: Order,
    iterations: Iterations,
    streams: dict[int, int],
    prefix: str,
    begin_s: float,
    shift_s: float,
) -> HostNodes:
    """Add the threads of one rank to the graph.

    `streams`: the stream of each thread. `begin_s`: the start of the replay on the recording's own clock. `shift_s` is added to times on
    this clock to get the clock of all ranks, which the issue order uses.
    """
    result = HostNodes()
    ready_s = _ready_s(recording, order)
    waits_for = hand_overs(recording.calls)
    states: dict[int, _ThreadState] = {}
    handed: list[tuple[int, int, float]] = []
    cursor = dict.fromkeys(streams, begin_s)
    last = dict.fromkeys(streams, -1)
    works = recording.works

    def emit(thread: int, label: str, duration_s: float, until_s: float, step: int, op: str = "") -> int:
        key: Key = (step, until_s + shift_s)
        cursor[thread] = max(cursor[thread], until_s)
        node = last[thread] = graph.host(streams[thread], label, duration_s, key, prefix, op)
        end_s = until_s - begin_s
        graph.nodes[node].recorded_s = (end_s - max(0.0, duration_s), end_s)
        return node

    for number, call in enumerate(recording.calls):
        thread, step = call.thread, iterations.of_call[number]
        if number in waits_for:
            node = emit(thread, GAP, 0.0, call.start_s, step)
            handed.append((node, waits_for[number], call.start_s))
        if call.kind not in _SILENT:
            if call.start_s > cursor[thread]:
                for until_s, op in recording.operators.stretches(thread, cursor[thread], call.start_s):
                    emit(thread, GAP, until_s - cursor[thread], until_s, step, op)
            label = GRAPH_PAUSE if number in order.held else call.name
            awaited = order.call_after.get(number)
            own = awaited is not None and any(works[index].call == number for index in awaited)
            end_s = max(call.end_s, cursor[thread])
            if number in ready_s and (own or not awaited):
                until_s = max(ready_s[number], cursor[thread])
                result.launch_of_call[number] = emit(thread, call.name, until_s - cursor[thread], until_s, step)
                end_s = max(end_s, until_s)
            elif number in ready_s:
                end_s = max(end_s, ready_s[number])  # it waits for room in the queue, then launches
            if awaited:
                ready = max(works[index].end_s for index in awaited) + order.launch_gap_s
                node = emit(thread, label, end_s - max(cursor[thread], ready), end_s, step)
                result.waiting.append((node, awaited))
                result.launch_of_call.setdefault(number, node)
            elif number not in ready_s:
                emit(thread, label, end_s - cursor[thread], end_s, step)
        states[number] = _ThreadState(last[thread], cursor[thread])
    for node, awaited_call, start_s in handed:
        state = states[awaited_call]
        if state.node >= 0:
            graph.nodes[node].after.append(state.node)
            graph.set_duration(node, start_s - state.time_s)
        else:
            graph.set_duration(node, start_s - begin_s)
    return result


def _ready_s(recording: Recording, order: Order) -> dict[int, float]:
    """Return by call the time from which its work may start; for a CUDA graph, the time of its first work."""
    ready_s: dict[int, float] = {}
    for index, work in enumerate(recording.works):
        if work.call >= 0:
            time_s = order.released_s[index]
            ready_s[work.call] = min(ready_s.get(work.call, time_s), time_s)
    return ready_s
