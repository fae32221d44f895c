"""Assigns tasks to workers when a device has several lanes: the ready stream heads by device, guarded by one condition, and emulated links.

A stream whose head waits for other processes (a collective, a message) is served by a separate thread while the device's workers continue.

A link at a stated rate is emulated by the clock. A worker copies the bytes at once. The transfer then occupies its direction of the link
for latency + bytes / rate seconds. Each direction carries one transfer at a time, the most urgent first. The worker continues with other
tasks, and tasks that depend on the transfer start when it has arrived.
"""

import heapq
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import inf

from simulator.machine.machine import Machine
from simulator.plan.dependencies import Dependencies
from simulator.plan.task import Resource, Task

Direction = tuple[str, str]
Entry = tuple[int, int]  # (period, index of the task)


def transfer_of(task: Task, machine: Machine) -> tuple[Direction, float] | None:
    """The direction that a task's bytes travel in, and the seconds they take; None if no link states a rate or a latency."""
    body = task.body
    if body.ends is None or body.resource is not Resource.COMPUTE:
        return None
    link = machine.link_between(*body.ends)
    seconds = link.latency_s + body.moved_bytes(task) / link.bandwidth_bytes_per_s if link is not None else 0.0
    return (body.ends, seconds) if seconds else None


@dataclass
class _Lane:
    """One direction of a link. `waiting`: (priority, send number, sent at s, seconds, entry)."""

    current: tuple[float, Entry] | None = None  # (arrival in s, entry) of the transfer under way
    waiting: list[tuple[int, int, float, float, Entry]] = field(default_factory=list)

    def start(self, free_s: float) -> None:
        """Start the most urgent waiting transfer. The lane has been idle since `free_s`."""
        if self.waiting:
            _, _, sent_s, seconds, entry = heapq.heappop(self.waiting)
            self.current = (max(free_s, sent_s) + seconds, entry)


class EmulatedLinks:
    """The transfers under way, by direction. Not thread-safe: the caller holds a lock."""

    def __init__(self):
        self._lanes: dict[Direction, _Lane] = {}
        self._sent = 0

    def send(self, entry: Entry, direction: Direction, seconds: float, priority: int, now_s: float) -> None:
        """Queue the transfer of `entry`, and start it if its direction is idle."""
        lane = self._lanes.setdefault(direction, _Lane())
        self._sent += 1
        heapq.heappush(lane.waiting, (priority, self._sent, now_s, seconds, entry))
        if lane.current is None:
            lane.start(-inf)

    def arrived(self, now_s: float) -> Iterator[tuple[float, Entry]]:
        """(arrival in s, entry) of the transfers that have arrived by `now_s`. Each transfer is returned once."""
        for lane in self._lanes.values():
            while lane.current is not None and lane.current[0] <= now_s:
                end_s, entry = lane.current
                lane.current = None
                lane.start(end_s)
                yield end_s, entry

    @property
    def next_s(self) -> float:
        """When the next transfer arrives; infinity if none is under way."""
        return min((lane.current[0] for lane in self._lanes.values() if lane.current is not None), default=inf)


class Schedule:
    """The entries (period, task) of one run. A worker takes its `first` entry, runs it, and asks `advance` for the next one.

    A lane stays on its worker as long as nothing more urgent is ready, because its data are in that core's cache and no thread needs to be
    woken.
    """

    def __init__(self, tasks: tuple[Task, ...], dependencies: Dependencies, entries: list[Entry], iterations: int | None):
        """`iterations`: how many there are in all when a drain runs the last ones, otherwise None."""
        self._tasks = tasks
        #: By task, who runs it: its device's workers, or, if it waits for other processes, its stream's thread.
        self.servers = [f"{t.device} network {t.stream}" if t.body.waits_for_peers else t.device for t in tasks]
        self._changed = threading.Condition()
        self._left = len(entries)
        self._stopped = False
        self._lanes: dict[tuple[str, int], deque[Entry]] = {}
        self._running: set[tuple[str, int]] = set()
        self._ready: dict[str, list[tuple[int, int, Entry]]] = {server: [] for server in self.servers}
        self._links = EmulatedLinks()
        self._on_link: dict[Entry, Callable[[float | None], None]] = {}
        self._order = {entry: i for i, entry in enumerate(entries)}
        self._pending: dict[Entry, int] = {}  # how many predecessors have not ended
        self._successors: dict[Entry, list[Entry]] = {}
        for entry in entries:
            period, index = entry
            predecessors = [(period - e.delta, e.index) for e in dependencies.edges(period, iterations)[index]]
            predecessors = [p for p in predecessors if p in self._order]
            self._pending[entry] = len(predecessors)
            for predecessor in predecessors:
                self._successors.setdefault(predecessor, []).append(entry)
            self._lanes.setdefault(tasks[index].lane, deque()).append(entry)
        for lane in self._lanes:
            self._offer(lane)

    def first(self, server: str) -> Entry | None:
        """Wait for a ready entry. Returns the server's most urgent one, or None when the run is over."""
        with self._changed:
            return self._wait(server)

    def advance(
        self, entry: Entry, server: str, on_end: Callable[[float | None], None], transfer: tuple[Direction, float] | None = None
    ) -> Entry | None:
        """Record that `entry` has run. Returns the server's next entry, or None when the run is over.

        Without `transfer` the entry ends now. With a transfer (direction, seconds) it ends when its bytes have arrived. At the end
        `on_end` is called with the arrival time in s, or None without a transfer, and the entries that depend on it become ready.
        """
        with self._changed:
            task = self._tasks[entry[1]]
            if transfer is None or self._stopped:
                self._end(entry, on_end, None)
            else:
                self._on_link[entry] = on_end
                self._links.send(entry, *transfer, task.priority, time.perf_counter())
            self._end_transfers()
            if self._stopped:
                return None
            next_entry = self._take(server, task.lane)
            if not self._left or any(self._ready.values()):
                self._changed.notify_all()
            return next_entry if next_entry is not None else self._wait(server)

    def _end_transfers(self) -> bool:
        """End the entries whose bytes have arrived. Returns whether there were any."""
        arrived = list(self._links.arrived(time.perf_counter())) if self._on_link else []
        for end_s, entry in arrived:
            self._end(entry, self._on_link.pop(entry), end_s)
        return bool(arrived)

    def _end(self, entry: Entry, on_end: Callable[[float | None], None], end_s: float | None) -> None:
        """End an entry: its lane and the entries that depend on it may become ready."""
        on_end(end_s)
        if self._stopped:
            return
        self._left -= 1
        lane = self._tasks[entry[1]].lane
        self._running.discard(lane)
        self._offer(lane)
        for successor in self._successors.get(entry, ()):
            self._pending[successor] -= 1
            if not self._pending[successor]:
                self._offer(self._tasks[successor[1]].lane)

    def stop(self) -> None:
        """End the run after a failure: a waiting worker returns at once, a running one after its entry."""
        with self._changed:
            self._stopped = True
            self._left = 0
            for queue in self._ready.values():
                queue.clear()
            self._changed.notify_all()

    def _offer(self, lane: tuple[str, int]) -> None:
        """Make the lane's head ready if the lane is idle and the head's predecessors have ended."""
        queue = self._lanes[lane]
        if queue and lane not in self._running and not self._pending[queue[0]]:
            self._running.add(lane)
            entry = queue.popleft()
            heapq.heappush(self._ready[self.servers[entry[1]]], (self._tasks[entry[1]].priority, self._order[entry], entry))

    def _take(self, server: str, lane: tuple[str, int]) -> Entry | None:
        """Take the server's most urgent ready entry. Among equally urgent ones, prefer that of `lane`, the lane just run."""
        ready = self._ready[server]
        if not ready:
            return None
        item = next((item for item in ready if self._tasks[item[2][1]].lane == lane and item[0] == ready[0][0]), ready[0])
        ready.remove(item)
        heapq.heapify(ready)
        return item[2]

    def _wait(self, server: str) -> Entry | None:
        while self._left and not self._ready[server]:
            next_s = self._links.next_s
            self._changed.wait(None if next_s == inf else max(0.0, next_s - time.perf_counter()))
            if self._end_transfers():
                self._changed.notify_all()
        return heapq.heappop(self._ready[server])[2] if self._ready[server] else None
