"""Build a replay from recordings: the plan, the machine and the iterations.

Device work costs its recorded duration, and host calls and gaps cost their recorded time. No other recorded time is used: the start of a
kernel follows from the launches, streams and waits that `traces.formats.synchronization` recovers.

The collectives of several ranks of one job are joined (`ranks.joined`).
"""

import sys
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from simulator.machine.machine import Device, Machine, Memory
from simulator.plan.bodies.host import Recorded
from simulator.plan.task import COLLECTIVE, FORWARD, TRANSFER, UPDATE, Task
from simulator.replay.compare import boundaries, times_of
from simulator.replay.nodes import ARRIVAL, GRAPH_PAUSE, HOST, LOST_LAUNCH, Graph, Node, add_threads, rank_prefix, short_name
from simulator.replay.ranks import joined, transfer_s
from simulator.replay.replay import RecordedStep, Replay, Rows, spans_of
from traces import units
from traces.documents.timeline import Timeline
from traces.errors import SchedcastError
from traces.formats import iterations as iterations_of
from traces.formats.iterations import Iterations
from traces.formats.recording import COLLECTIVE as COLLECTIVE_WORK
from traces.formats.recording import MEMCPY, Recording
from traces.formats.synchronization import UNEXPLAINED_S, Order, recover

#: The waits of ranks are uncertain if less than this share of their collectives has a partner.
LEAST_JOINED = 0.5
#: torch.cuda offers streams of priorities 0 to -3.
PRIORITY_LEVELS = 4


def build_replay(recordings: Sequence[Recording]) -> Replay:
    """Build the replay of the ranks of one job, recorded on one clock. Raises SchedcastError if their times do not overlap."""
    if not recordings:
        raise SchedcastError("no trace given; expected one file per rank")
    ranks = sorted(recordings, key=lambda recording: recording.rank)
    _check_clock(ranks)
    return _Builder(ranks).replay()


def _check_clock(ranks: Sequence[Recording]) -> None:
    begins = [rank.origin_ns / 1e9 + rank.begin_s for rank in ranks]
    ends = [rank.origin_ns / 1e9 + max(work.end_s for work in rank.works) for rank in ranks]
    if max(begins) >= min(ends) and len(ranks) > 1:
        raise SchedcastError(
            "the traces do not overlap in time, and no collectives show how far their clocks are apart; expected ranks of one job,"
            " recorded together"
        )


class _Builder:
    """Adds the ranks to one graph, one after another."""

    def __init__(self, ranks: Sequence[Recording]):
        self.ranks = ranks
        self.graph = Graph()
        self.notes: list[str] = []
        base = min(rank.origin_ns for rank in ranks)
        self.shifts_s = [(rank.origin_ns - base) / 1e9 for rank in ranks]
        self.begin_s = min(rank.begin_s + shift for rank, shift in zip(ranks, self.shifts_s, strict=True))
        self.orders = [recover(rank) for rank in ranks]
        self.iterations = _common([iterations_of.find(rank) for rank in ranks])
        self.devices = self._devices()
        self.lanes: dict[str, int] = {}
        self.gaps: dict[str, float] = {}
        #: By rank and work: the position of its node; for a joined collective, of the node of the transfer.
        self.work_nodes: list[dict[int, int]] = []

    def _devices(self) -> list[dict[int, str]]:
        """Return the plan's device by rank and device number. Ranks on different machines may use one number for two devices."""
        used: set[int] = set()
        result = []
        for rank in self.ranks:
            names = {}
            for number in sorted({work.device for work in rank.works}):
                free = number if number not in used and number >= 0 else next(n for n in range(len(used) + 1) if n not in used)
                used.add(free)
                names[number] = f"cuda:{free}"
            result.append(names)
        return result

    def replay(self) -> Replay:
        """Add all ranks and return their replay."""
        groups, alone = joined([rank.works for rank in self.ranks], self.shifts_s) if len(self.ranks) > 1 else ([], 0)
        transfers = {(rank, index): transfer_s(group, [r.works for r in self.ranks]) for group in groups for rank, index in group.items()}
        arrivals: dict[tuple[int, int], int] = {}
        next_stream = 0
        for number, rank in enumerate(self.ranks):
            threads = {call.thread for call in rank.calls}
            streams = {thread: next_stream + thread for thread in sorted(threads)}
            next_stream += len(threads)
            next_stream = self._add_rank(number, streams, next_stream, transfers, arrivals)
        for group in groups:
            all_arrivals = [arrivals[member] for member in group.items()]
            for number, index in group.items():
                self.graph.nodes[self.work_nodes[number][index]].after += all_arrivals
        tasks, order = self.graph.tasks()
        self._note(groups, alone)
        rows = Rows(tasks)
        spans = spans_of(rows, [self.graph.nodes[position].recorded_s for position in order])
        end_s = max(span.end_s for span in spans if span.device != HOST)
        recorded = Timeline("measured", spans, 0.0, (0.0, end_s))
        doubt = self._doubt(sum(map(len, groups)), alone)
        replay = Replay(rows, self._machine(next_stream), self._steps(tasks, order), tuple(self.notes), recorded, doubt)
        lengths = pairwise(boundaries(replay, times_of(recorded)))
        steps = (replace(step, measured_s=end - begin) for step, (begin, end) in zip(replay.steps, lengths, strict=True))
        return replace(replay, steps=tuple(steps))

    def _add_rank(self, number: int, streams: dict[int, int], next_stream: int, transfers: dict, arrivals: dict) -> int:
        """Add the threads and the device work of one rank. Returns the next free host stream."""
        rank, order, iterations, graph = self.ranks[number], self.orders[number], self.iterations[number], self.graph
        prefix = rank_prefix(rank.rank) if len(self.ranks) > 1 else ""
        shift = self.shifts_s[number]
        host = add_threads(
            graph, rank, order, iterations=iterations, streams=streams, prefix=prefix, begin_s=self.begin_s - shift, shift_s=shift
        )
        updates = [(a.start_s, a.end_s, a.name) for a in rank.annotations if a.name.startswith("Optimizer.step#")]
        callers = _callers(rank, iterations)
        nodes: dict[int, int] = {}
        links: list[tuple[int, list[int]]] = []
        for (device, stream), members in order.lanes.items():
            name = self.devices[number][device]
            self.lanes[name] = self.lanes.get(name, 0) + 1
            self.gaps[name] = order.launch_gap_s
            previous, ready_s = -1, self.begin_s
            for index in members:
                work, works = rank.works[index], rank.works
                ready_s = max(ready_s, order.released_s[index] + shift)
                key = (iterations.of_work[index], ready_s)
                lost = -1
                launch = [node for node in (host.launch_of_call.get(work.call, -1),) if node >= 0]
                if work.call < 0:
                    lost, key = self._lost_launch(
                        rank, order, index, previous=previous, stream=next_stream, links=links, shift=shift, key=key, prefix=prefix
                    )
                    ready_s = key[1]
                elif index in order.paused:
                    lost = graph.host(next_stream, GRAPH_PAUSE, order.paused[index] - order.launch_gap_s, key, prefix)
                    graph.nodes[lost].after += launch
                    links.append((lost, _before(order, index, previous)))
                next_stream += lost >= 0
                early_s = max(0.0, works[previous].end_s - work.start_s) if previous >= 0 else 0.0  # it only waited: see `lanes_of`
                seconds, op = max(0.0, work.duration_s - early_s), rank.operators.launching(work.call)
                around, call = callers.get(work.call, ("", 0))
                body = Recorded(work.name, work.category, seconds, bytes=work.bytes, grid=work.grid, op=op, callers=around, call=call)
                label = prefix + short_name(work.name)
                after = [lost, *launch] if lost >= 0 else launch  # the launch last: `edit.launches`
                phase, layer = _annotated(rank, index, updates)
                if (number, index) in transfers:
                    arrival = Recorded(work.name, work.category, 0.0)
                    arrivals[number, index] = first = graph.add(
                        Node(label=label + ARRIVAL, body=arrival, device=name, stream=stream, key=key, after=after, phase=phase)
                    )
                    links.append((first, order.work_after.get(index, [])))
                    body, after = replace(body, duration_s=transfers[number, index]), []
                times = (work.start_s + shift - self.begin_s, work.end_s + shift - self.begin_s)
                nodes[index] = graph.add(
                    Node(label, body, device=name, stream=stream, key=key, after=after, phase=phase, recorded_s=times, layer=layer)
                )
                if (number, index) not in transfers:
                    links.append((nodes[index], order.work_after.get(index, [])))
                previous = index
        for node, others in (*links, *host.waiting):
            graph.nodes[node].after += [nodes[other] for other in others]
        self.work_nodes.append(nodes)
        return next_stream

    def _lost_launch(
        self, rank: Recording, order: Order, index: int, previous: int, stream: int, links: list, shift: float, key, prefix: str
    ):
        """Add a host node for the unrecorded launch of a work if its stream was idle before it. Returns (node or -1, key of the work).

        The node lasts from the end of everything that the work waits for to the recorded start of the work, so that the work cannot start
        earlier than recorded.
        """
        works = rank.works
        before = _before(order, index, previous)
        start_s = works[index].start_s + shift
        ended_s = max((works[other].end_s + shift for other in before), default=self.begin_s)
        if not before or start_s - ended_s > UNEXPLAINED_S:
            key = (key[0], max(key[1], ended_s if before else start_s))
            late_s = start_s - ended_s - (order.launch_gap_s if before else 0.0)
            node = self.graph.host(stream, LOST_LAUNCH, late_s, key, prefix)
            links.append((node, before))
            return node, key
        return -1, key

    def _machine(self, threads: int) -> Machine:
        """Return a machine in which each stream has a separate SM, because recorded durations already include contention.

        The usual gap follows each work. There is no host lane: host threads are tasks.
        """
        devices = [Device(HOST, "cpu", max(1, threads), {}, "ram")]
        memories = [Memory("ram", 0, 1.0, 0)]
        for name, lanes in self.lanes.items():
            gap = self.gaps[name]
            devices.append(Device(name, "gpu", lanes, {}, f"memory of {name}", priority_levels=PRIORITY_LEVELS, task_overhead_s=gap))
            memories.append(Memory(f"memory of {name}", 0, 1.0, 0))
        return Machine("recorded", tuple(devices), tuple(memories))

    def _steps(self, tasks: Sequence[Task], order: list[int]) -> tuple[RecordedStep, ...]:
        """The recorded steps, without their lengths."""
        nodes, names = self.graph.nodes, self.iterations[0].names
        members: dict[int, list[str]] = {}
        for task, position in zip(tasks, order, strict=True):
            if nodes[position].recorded_s is not None and task.device != HOST:
                members.setdefault(nodes[position].key[0], []).append(task.name)
        return tuple(RecordedStep(name, members[i][0], members[i][-1], 0.0) for i, name in enumerate(names) if i in members)

    def _doubt(self, together: int, alone: int) -> str:
        """Return why the waits of ranks are uncertain. `together`, `alone`: collectives with and without a partner on another rank."""
        total = together + alone
        if len(self.ranks) < 2 or together >= max(1, LEAST_JOINED * total):
            return ""
        lacking = f"{alone} of {total} collectives have no partner on another rank" if total else "the recordings have no collectives"
        return f"What ranks wait for is not certain: {lacking}, so their clocks may be apart."

    def _note(self, groups: list, alone: int) -> None:
        for rank, order in zip(self.ranks, self.orders, strict=True):
            prefix = rank_prefix(rank.rank) if len(self.ranks) > 1 else ""
            self.notes += [prefix + note for note in rank.notes]
            branches = len(order.lanes) - rank.streams
            if branches:
                self.notes.append(
                    f"{prefix}work of one stream overlaps (branches of a CUDA graph): {branches} more lanes, numbered above it"
                )
            pauses_s = [*order.paused.values(), *order.held.values()]
            if pauses_s:
                total_s = sum(pauses_s)
                paused = f"{len(pauses_s)} pauses of CUDA graphs have no recorded work, {units.duration(total_s)} in all"
                self.notes.append(f"{prefix}{paused}: they stay as they are, whatever the host does")
            if order.delayed:
                total = sum(order.delayed.values())
                late = f"{len(order.delayed)}, {units.duration(total)} in all"
                self.notes.append(f"{prefix}kernels and copies that started late for no recorded reason: {late}")
        self.notes.append(f"iterations by {self.iterations[0].source}")
        world = max(rank.world_size for rank in self.ranks)
        if world > len(self.ranks):
            self.notes.append(f"{len(self.ranks)} of {world} ranks replayed: collectives keep the time they waited for the others")
        if len(self.ranks) > 1:
            self.notes.append(f"{len(groups)} collectives joined between ranks, {alone} without a partner")
        if self.graph.dropped:
            self.notes.append(f"{self.graph.dropped} recorded dependencies contradicted others and were dropped")


def _callers(rank: Recording, iterations: Iterations) -> dict[int, tuple[str, int]]:
    """Return by launch the ops around it, as `Recorded.callers` has them, and the number of this call in its iteration."""
    numbers: dict[tuple[int, str], dict[int, int]] = defaultdict(dict)  # of operators, in order of their start
    named = ((call, index, rank.operators.callers(call)) for call, index in rank.operators.of_call.items())
    names = {call: (index, callers) for call, index, callers in named if callers}
    for call, (index, callers) in sorted(names.items(), key=lambda item: item[1][0]):
        own = numbers[iterations.of_call[call], callers]
        own.setdefault(index, len(own) + 1)
    return {call: (sys.intern(callers), numbers[iterations.of_call[call], callers][index]) for call, (index, callers) in names.items()}


def _before(order: Order, index: int, previous: int) -> list[int]:
    """Return the works that a work waits for. `previous`: the previous work in its lane, -1 if there is none."""
    return [other for other in (previous, *order.work_after.get(index, ())) if other >= 0]


def _common(by_rank: list[Iterations]) -> list[Iterations]:
    """Number the iterations of all ranks like those of the first rank: by name if the first has all of a rank's names, else by position."""
    names = {name: number for number, name in enumerate(by_rank[0].names)}
    renumbered = []
    for own in by_rank:
        same_names = all(name in names for name in own.names)
        number = {i: names[name] if same_names else min(i, len(names)) for i, name in enumerate(own.names)}
        number |= {iterations_of.BEFORE: iterations_of.BEFORE, len(own.names): len(names)}
        works, calls = (tuple(number[i] for i in indices) for indices in (own.of_work, own.of_call))
        renumbered.append(own._replace(names=by_rank[0].names, of_work=works, of_call=calls))
    return renumbered


def _annotated(rank: Recording, index: int, updates: list[tuple[float, float, str]]) -> tuple[str, str]:
    """Return phase and layer of a work. The layer of an update is the optimizer's annotation."""
    work = rank.works[index]
    if work.category == COLLECTIVE_WORK:
        return COLLECTIVE, ""
    if work.category == MEMCPY:
        return TRANSFER, ""
    if work.call >= 0 and updates:
        start = rank.calls[work.call].start_s
        at = bisect_right(updates, (start, float("inf"), "")) - 1
        if at >= 0 and start < updates[at][1]:
            return UPDATE, updates[at][2]
    return FORWARD, ""
