"""Which worker runs which task when a device has several lanes: ready stream heads by device, guarded by one condition.

A stream whose head is a collective is served by a thread of its own, which waits for other processes while the device's workers go on.
"""

import heapq
import threading
import time
from collections import deque
from collections.abc import Callable
from math import inf

from executors.cpu.links import Direction, Entry, Wires
from simulator.plan.dependencies import Dependencies
from simulator.plan.task import Resource, Task


def _servers_of(tasks: tuple[Task, ...]) -> list[str]:
    """Who runs each task: its device's workers, or, of a collective, its stream's thread."""
    return [f"{t.device} network {t.stream}" if t.body.resource is Resource.COLLECTIVE else t.device for t in tasks]


class Schedule:
    """The entries of one run. A worker takes a `first` entry, runs it, and asks `advance` for its next one.

    A lane stays on its worker as long as nothing more urgent is ready: its data are in that core's cache, and nobody must be woken.
    """

    def __init__(self, tasks: tuple[Task, ...], dependencies: Dependencies, entries: list[Entry], iterations: int | None):
        """`iterations` is known when draining."""
        self._tasks = tasks
        #: By task, who runs it.
        self.servers = _servers_of(tasks)
        self._changed = threading.Condition()
        self._left = len(entries)
        self._stopped = False
        self._lanes: dict[tuple[str, int], deque[Entry]] = {}
        self._running: set[tuple[str, int]] = set()
        self._ready: dict[str, list[tuple[int, int, Entry]]] = {server: [] for server in self.servers}
        self._wires = Wires()
        self._on_wire: dict[Entry, Callable[[float | None], None]] = {}
        self._order = {entry: i for i, entry in enumerate(entries)}
        self._missing: dict[Entry, int] = {}
        self._followers: dict[Entry, list[Entry]] = {}
        for entry in entries:
            period, index = entry
            before = [(period - e.delta, e.index) for e in dependencies.edges(period, iterations)[index]]
            before = [b for b in before if b in self._order]
            self._missing[entry] = len(before)
            for b in before:
                self._followers.setdefault(b, []).append(entry)
            self._lanes.setdefault(tasks[index].lane, deque()).append(entry)
        for lane in self._lanes:
            self._offer(lane)

    def first(self, device: str) -> Entry | None:
        """The most urgent ready entry of a device; waits for one; None when all is done."""
        with self._changed:
            return self._wait(device)

    def advance(
        self, entry: Entry, device: str, ended: Callable[[float | None], None], wire: tuple[Direction, float] | None = None
    ) -> Entry | None:
        """`entry` has been run: release what waited for it, and take the device's next; None when all is done.

        With `wire`, it is done when its bytes have passed that direction. Then `ended` is called, with the time of that.
        """
        with self._changed:
            task = self._tasks[entry[1]]
            if wire is None or self._stopped:
                self._done(entry, ended, None)
            else:
                self._on_wire[entry] = ended
                self._wires.send(entry, *wire, task.priority, time.perf_counter())
            self._settle()
            if self._stopped:
                return None
            found = self._take(device, task.lane)
            if not self._left or any(self._ready.values()):
                self._changed.notify_all()
            return found if found is not None else self._wait(device)

    def _settle(self) -> bool:
        """Release what waits for bytes that have arrived; whether any have."""
        arrived = list(self._wires.arrived(time.perf_counter())) if self._on_wire else []
        for end_s, entry in arrived:
            self._done(entry, self._on_wire.pop(entry), end_s)
        return bool(arrived)

    def _done(self, entry: Entry, ended: Callable[[float | None], None], end_s: float | None) -> None:
        ended(end_s)
        if self._stopped:
            return
        self._left -= 1
        lane = self._tasks[entry[1]].lane
        self._running.discard(lane)
        self._offer(lane)
        for follower in self._followers.get(entry, ()):
            self._missing[follower] -= 1
            if not self._missing[follower]:
                self._offer(self._tasks[follower[1]].lane)

    def stop(self) -> None:
        """Let every worker end: one that waits at once, one that is running after its entry."""
        with self._changed:
            self._stopped = True
            self._left = 0
            for queue in self._ready.values():
                queue.clear()
            self._changed.notify_all()

    def _offer(self, lane: tuple[str, int]) -> None:
        """Put the lane's head among the ready ones, if nothing holds it back."""
        queue = self._lanes[lane]
        if queue and lane not in self._running and not self._missing[queue[0]]:
            self._running.add(lane)
            entry = queue.popleft()
            heapq.heappush(self._ready[self.servers[entry[1]]], (self._tasks[entry[1]].priority, self._order[entry], entry))

    def _take(self, device: str, lane: tuple[str, int]) -> Entry | None:
        """The most urgent ready entry; of equally urgent ones that of `lane`, the one just run."""
        ready = self._ready[device]
        if not ready:
            return None
        own = next((item for item in ready if self._tasks[item[2][1]].lane == lane and item[0] == ready[0][0]), ready[0])
        ready.remove(own)
        heapq.heapify(ready)
        return own[2]

    def _wait(self, device: str) -> Entry | None:
        while self._left and not self._ready[device]:
            next_s = self._wires.next_s
            self._changed.wait(None if next_s == inf else max(0.0, next_s - time.perf_counter()))
            if self._settle():
                self._changed.notify_all()
        return heapq.heappop(self._ready[device])[2] if self._ready[device] else None
