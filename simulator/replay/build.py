"""From recordings to a replay: the plan, the machine and the iterations.

The work of a device costs its recorded duration, host calls and gaps their recorded time, and nothing else of the recorded times enters:
when a kernel starts follows from the launches, streams and waits that `traces.recording.synchronisation` recovers.
"""

from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path

from simulator.bodies.recorded import Recorded
from simulator.machine.machine import Device, Machine, Memory
from simulator.plan.plan import Plan
from simulator.plan.task import COLLECTIVE, FORWARD, TRANSFER, UPDATE, Segment
from simulator.replay.compare import boundaries
from simulator.replay.host import add_threads
from simulator.replay.nodes import ARRIVAL, HOST, Graph, Node, short_name
from simulator.replay.ranks import joined, transfer_s
from simulator.replay.replay import Replay, Step
from traces import units
from traces.errors import StepcastError
from traces.recording import iterations as iterations_of
from traces.recording.iterations import Iterations
from traces.recording.kineto import load_trace
from traces.recording.recording import COLLECTIVE as COLLECTIVE_WORK
from traces.recording.recording import MEMCPY, Recording
from traces.recording.synchronisation import UNEXPLAINED_S, Order, recover
from traces.timeline import Span, Timeline

#: torch.cuda offers streams of priorities 0 to -3.
PRIORITY_LEVELS = 4


def load_replay(*paths: Path | str) -> Replay:
    """Replay of one trace per rank. Raises StepcastError for files that cannot be replayed."""
    return build_replay([load_trace(path) for path in paths])


def build_replay(recordings: Sequence[Recording]) -> Replay:
    """Replay of the ranks of one job, whose clocks must be one. Raises StepcastError where their times do not overlap."""
    if not recordings:
        raise StepcastError("no trace given; expected one file per rank")
    ranks = sorted(recordings, key=lambda recording: recording.rank)
    _check_clock(ranks)
    return _Builder(ranks).replay()


def _check_clock(ranks: Sequence[Recording]) -> None:
    begins = [rank.origin_ns / 1e9 + rank.begin_s for rank in ranks]
    ends = [rank.origin_ns / 1e9 + max(work.end_s for work in rank.works) for rank in ranks]
    if max(begins) >= min(ends) and len(ranks) > 1:
        raise StepcastError("the traces do not overlap in time; expected ranks of one job, recorded together on one clock")


class _Builder:
    """Adds rank after rank to one graph."""

    def __init__(self, ranks: Sequence[Recording]):
        self.ranks = ranks
        self.graph = Graph()
        self.notes: list[str] = []
        base = min(rank.origin_ns for rank in ranks)
        self.shifts_s = [(rank.origin_ns - base) / 1e9 for rank in ranks]
        self.begin_s = min(rank.begin_s + shift for rank, shift in zip(ranks, self.shifts_s, strict=True))
        self.orders = [recover(rank) for rank in ranks]
        self.found = _common([iterations_of.find(rank) for rank in ranks])
        self.devices = self._devices()
        self.lanes: dict[str, int] = {}
        self.gaps: dict[str, float] = {}
        #: By rank and work: its node; for a joined collective that of the transfer.
        self.work_nodes: list[dict[int, int]] = []

    def _devices(self) -> list[dict[int, str]]:
        """By rank and device number, the plan's device: ranks on different machines may give one number to two devices."""
        taken: set[int] = set()
        result = []
        for rank in self.ranks:
            names = {}
            for number in sorted({work.device for work in rank.works}):
                free = number if number not in taken and number >= 0 else next(n for n in range(len(taken) + 1) if n not in taken)
                taken.add(free)
                names[number] = f"cuda:{free}"
            result.append(names)
        return result

    def replay(self) -> Replay:
        """Everything together."""
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
            everyone = [arrivals[member] for member in group.items()]
            for rank, index in group.items():
                self.graph.nodes[self.work_nodes[rank][index]].after += everyone
        tasks, order = self.graph.tasks()
        self._note(groups, alone)
        plan = Plan("replay", (Segment(tuple(tasks)),), {}, {})
        spans = tuple(
            Span(task.name, task.device, f"stream {task.stream}", *self.graph.nodes[position].recorded_s, task.phase)
            for task, position in zip(tasks, order, strict=True)
            if self.graph.nodes[position].recorded_s is not None
        )
        recorded = Timeline("measured", tuple(sorted(spans, key=lambda span: span.start_s)), 0.0, (0.0, max(span.end_s for span in spans)))
        steps = self._steps(plan, recorded, order)
        return Replay(plan, self._machine(next_stream), steps, tuple(self.notes), recorded)

    def _add_rank(self, number: int, streams: dict[int, int], next_stream: int, transfers: dict, arrivals: dict) -> int:
        """Add one rank's threads and works. Returns the next free host stream."""
        rank, order, found, graph = self.ranks[number], self.orders[number], self.found[number], self.graph
        prefix = f"rank {rank.rank}: " if len(self.ranks) > 1 else ""
        shift = self.shifts_s[number]
        host = add_threads(graph, rank, order, found, streams, prefix, self.begin_s - shift, shift)
        updates = [(a.start_s, a.end_s, a.name) for a in rank.annotations if a.name.startswith("Optimizer.step#")]
        nodes: dict[int, int] = {}
        links: list[tuple[int, list[int]]] = []
        for (device, stream), members in order.lanes.items():
            name = self.devices[number][device]
            self.lanes[name] = self.lanes.get(name, 0) + 1
            self.gaps[name] = order.launch_gap_s
            previous, released = -1, self.begin_s
            for index in members:
                work = rank.works[index]
                released = max(released, order.released_s[index] + shift)
                key = (found.of_work[index], released)
                lost = -1
                if work.call < 0:
                    lost, key = self._lost_launch(rank, order, index, previous, next_stream, links, shift, key, prefix)
                    next_stream += lost >= 0
                    released = key[1]
                body = Recorded(work.name, work.category, work.duration_s, work.bytes, work.grid)
                label = prefix + short_name(work.name)
                after = [node for node in (host.release.get(work.call, -1), lost) if node >= 0]
                phase, layer = _annotated(rank, index, updates)
                if (number, index) in transfers:
                    arrival = Recorded(work.name, work.category, 0.0)
                    arrivals[number, index] = first = graph.add(Node(label + ARRIVAL, arrival, name, stream, key, after, phase))
                    links.append((first, order.work_after.get(index, [])))
                    body, after = Recorded(work.name, work.category, transfers[number, index], work.bytes, work.grid), []
                times = (work.start_s + shift - self.begin_s, work.end_s + shift - self.begin_s)
                nodes[index] = graph.add(Node(label, body, name, stream, key, after, phase, times, layer))
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
        """A host node that stands for a launch that was not recorded, where work was idle before it: (node or -1, key of the work).

        It lasts as long as the work started after all that it waits for, so that the work cannot start any earlier after that.
        """
        works = rank.works
        before = [other for other in (previous, *order.work_after.get(index, ())) if other >= 0]
        start = works[index].start_s + shift
        reached = max((works[other].end_s + shift for other in before), default=self.begin_s)
        if not before or start - reached > UNEXPLAINED_S:
            key = (key[0], max(key[1], reached if before else start))
            node = self.graph.host(stream, f"{prefix}lost launch", start - reached - (order.launch_gap_s if before else 0.0), key)
            links.append((node, before))
            return node, key
        return -1, key

    def _machine(self, threads: int) -> Machine:
        """Each stream an SM of its own, since durations already hold the contention; the usual gap after each work; no host lane."""
        devices = [Device(HOST, "cpu", max(1, threads), {}, "ram")]
        memories = [Memory("ram", 0, 1.0, 0)]
        for name, lanes in self.lanes.items():
            gap = self.gaps[name]
            devices.append(Device(name, "gpu", lanes, {}, f"memory of {name}", priority_levels=PRIORITY_LEVELS, task_overhead_s=gap))
            memories.append(Memory(f"memory of {name}", 0, 1.0, 0))
        return Machine("recorded", tuple(devices), tuple(memories))

    def _steps(self, plan: Plan, recorded: Timeline, order: list[int]) -> tuple[Step, ...]:
        nodes, names = self.graph.nodes, self.found[0].names
        members: dict[int, list[str]] = {}
        for task, position in zip(plan.tasks, order, strict=True):
            if nodes[position].recorded_s is not None:
                members.setdefault(nodes[position].key[0], []).append(task.name)
        steps = tuple(Step(name, members[i][0], members[i][-1], 0.0) for i, name in enumerate(names) if i in members)
        borders = boundaries(plan, steps, recorded)
        return tuple(
            Step(step.name, step.first_task, step.last_task, end - begin)
            for step, begin, end in zip(steps, borders, borders[1:], strict=False)
        )

    def _note(self, groups: list, alone: int) -> None:
        for rank, order in zip(self.ranks, self.orders, strict=True):
            who = f"rank {rank.rank}: " if len(self.ranks) > 1 else ""
            self.notes += [who + note for note in rank.notes]
            branches = len(order.lanes) - rank.streams
            if branches:
                self.notes.append(f"{who}work of one stream overlaps (branches of a CUDA graph): {branches} more lanes, numbered above it")
            if order.delayed:
                total = sum(order.delayed.values())
                self.notes.append(f"{who}{len(order.delayed)} works started late for no recorded reason, {units.duration(total)} in all")
        self.notes.append(f"iterations by {self.found[0].source}")
        world = max(rank.world_size for rank in self.ranks)
        if world > len(self.ranks):
            self.notes.append(f"{len(self.ranks)} of {world} ranks given: collectives keep the time they waited for the others")
        if len(self.ranks) > 1:
            self.notes.append(f"{len(groups)} collectives joined between ranks, {alone} without a partner")
        if self.graph.dropped:
            self.notes.append(f"{self.graph.dropped} edges contradicted others and were dropped")


def _common(found: list[Iterations]) -> list[Iterations]:
    """The iterations of all ranks numbered as those of the first: by name where it has them all, else by position."""
    names = {name: number for number, name in enumerate(found[0].names)}
    result = []
    for one in found:
        shared = all(name in names for name in one.names)
        number = {i: names[name] if shared else min(i, len(names)) for i, name in enumerate(one.names)}
        number |= {iterations_of.BEFORE: iterations_of.BEFORE, len(one.names): len(names)}
        works, calls = (tuple(number[i] for i in indices) for indices in (one.of_work, one.of_call))
        result.append(one._replace(names=found[0].names, of_work=works, of_call=calls))
    return result


def _annotated(rank: Recording, index: int, updates: list[tuple[float, float, str]]) -> tuple[str, str]:
    """Phase and layer of a work: the optimizer's annotation is the layer of its updates."""
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
