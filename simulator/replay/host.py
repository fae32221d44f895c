"""Host threads of a recording as tasks: launches, waits, and the gaps between them.

A launch lasts from its call's start to the moment its work was released (the call's end plus the usual latency of a launch). A wait lasts
from the end of what it waits for to its return. What lies between is a gap: Python, data loading, calls that order nothing.
"""

from dataclasses import dataclass, field

from simulator.replay.nodes import Graph, Key
from traces.recording.iterations import Iterations
from traces.recording.recording import CallKind, Recording
from traces.recording.synchronisation import Order
from traces.recording.threads import hand_overs

GAP = "gap"
_SILENT = (CallKind.STREAM_WAIT, CallKind.EVENT_RECORD)


@dataclass(slots=True)
class HostNodes:
    """`release`: by call, the node at whose end its work is released. `waiting`: (node, works it waits for)."""

    release: dict[int, int] = field(default_factory=dict)
    waiting: list[tuple[int, list[int]]] = field(default_factory=list)


@dataclass(slots=True)
class _Place:
    """Where a thread stood after a call: its last node (-1: none yet) and the time reached."""

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
    """Add the threads of one rank. `streams`: by thread. `begin_s`: when the replay begins, on the recording's own clock.

    `shift_s` moves that clock to the one that all ranks share, for the issue order.
    """
    result = HostNodes()
    released = _released(recording, order)
    waits_for = hand_overs(recording.calls)
    places: dict[int, _Place] = {}
    handed: list[tuple[int, int, float]] = []
    cursor = dict.fromkeys(streams, begin_s)
    last = dict.fromkeys(streams, -1)
    works = recording.works

    def emit(thread: int, label: str, duration_s: float, until_s: float, step: int) -> int:
        key: Key = (step, until_s + shift_s)
        cursor[thread] = max(cursor[thread], until_s)
        last[thread] = graph.host(streams[thread], f"{prefix}{label}", duration_s, key)
        return last[thread]

    for number, call in enumerate(recording.calls):
        thread, step = call.thread, iterations.of_call[number]
        if number in waits_for:
            node = emit(thread, GAP, 0.0, call.start_s, step)
            handed.append((node, waits_for[number], call.start_s))
        if call.kind not in _SILENT:
            if call.start_s > cursor[thread]:
                emit(thread, GAP, call.start_s - cursor[thread], call.start_s, step)
            awaited = order.call_after.get(number)
            own = awaited is not None and any(works[index].call == number for index in awaited)
            end_s = max(call.end_s, cursor[thread])
            if number in released and (own or not awaited):
                until = max(released[number], cursor[thread])
                result.release[number] = emit(thread, call.name, until - cursor[thread], until, step)
                end_s = max(end_s, until)
            elif number in released:
                end_s = max(end_s, released[number])  # it waits for room in the queue, then launches
            if awaited:
                ready = max(works[index].end_s for index in awaited) + order.launch_gap_s
                node = emit(thread, call.name, end_s - max(cursor[thread], ready), end_s, step)
                result.waiting.append((node, awaited))
                result.release.setdefault(number, node)
            elif number not in released:
                emit(thread, call.name, end_s - cursor[thread], end_s, step)
        places[number] = _Place(last[thread], cursor[thread])
    for node, awaited_call, start_s in handed:
        place = places[awaited_call]
        if place.node >= 0:
            graph.nodes[node].after.append(place.node)
            graph.lasts(node, start_s - place.time_s)
        else:
            graph.lasts(node, start_s - begin_s)
    return result


def _released(recording: Recording, order: Order) -> dict[int, float]:
    """By call, when its work was released: that of the first of its works, for a CUDA graph."""
    released: dict[int, float] = {}
    for index, work in enumerate(recording.works):
        if work.call >= 0:
            time_s = order.released_s[index]
            released[work.call] = min(released.get(work.call, time_s), time_s)
    return released
