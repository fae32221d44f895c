"""Turn the host threads of a recording into tasks: launches, waits, and the gaps between them.

A launch lasts from the start of its call to the moment at which its work may start (the end of the call plus the usual launch latency). A
wait lasts from the end of the work that it waits for to its return. The time between calls is a gap: Python, data loading, and calls that
order nothing. It is called after the op or annotation that covers it, if one does.
"""

from dataclasses import dataclass, field

from simulator.replay.nodes import GAP, Graph, Key
from traces.formats.iterations import Iterations
from traces.formats.recording import CallKind, Recording
from traces.formats.synchronisation import Order
from traces.formats.threads import hand_overs

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

    `streams`: the stream of each thread. `begin_s`: the begin of the replay on the recording's own clock. `shift_s` is added to times on
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
                op = recording.operators.covering(thread, cursor[thread], call.start_s)
                emit(thread, GAP, call.start_s - cursor[thread], call.start_s, step, op)
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
                node = emit(thread, call.name, end_s - max(cursor[thread], ready), end_s, step)
                result.waiting.append((node, awaited))
                result.launch_of_call.setdefault(number, node)
            elif number not in ready_s:
                emit(thread, call.name, end_s - cursor[thread], end_s, step)
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
