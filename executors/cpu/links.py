"""Links at a stated rate between groups of cores, emulated by the clock.

A worker copies the bytes at once. The transfer then occupies its direction of the link for latency + bytes / rate seconds. Each direction
carries one transfer at a time, the most urgent first. The worker continues with other tasks, and tasks that depend on the transfer start
when it has arrived.
"""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf

from simulator.machine.machine import Machine
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
