"""Links at a stated rate between groups of cores: an emulation by the clock.

A worker moves the bytes; then they are on the wire for latency + bytes / rate, one transfer after another in each direction, the most
urgent first. The worker goes on meanwhile, and what waits for the bytes starts when they have arrived.
"""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf

from simulator.machine.machine import Machine
from simulator.plan.task import Resource, Task

Direction = tuple[str, str]
Entry = tuple[int, int]  # (period, index of the task)


def wire_of(task: Task, machine: Machine) -> tuple[Direction, float] | None:
    """The direction that a task's bytes pass, and for how many seconds; None where no link states a rate or a latency."""
    body = task.body
    if body.ends is None or body.resource is not Resource.COMPUTE:
        return None
    link = machine.stated(*body.ends)
    seconds = link.latency_s + body.moved_bytes(task) / link.bandwidth_bytes_per_s if link is not None else 0.0
    return (body.ends, seconds) if seconds else None


@dataclass
class _Wire:
    """`waiting`: (priority, arrival number, arrival s, seconds, entry)."""

    busy: tuple[float, Entry] | None = None  # when it ends, and what is on it
    waiting: list[tuple[int, int, float, float, Entry]] = field(default_factory=list)

    def start(self, free_s: float) -> None:
        """Put the first that waits on the wire, which has been free since `free_s`."""
        if self.waiting:
            _, _, arrived_s, seconds, entry = heapq.heappop(self.waiting)
            self.busy = (max(free_s, arrived_s) + seconds, entry)


class Wires:
    """What is on its way, by direction. Not thread-safe: its user holds a lock."""

    def __init__(self):
        self._wires: dict[Direction, _Wire] = {}
        self._arrivals = 0

    def send(self, entry: Entry, direction: Direction, seconds: float, priority: int, now_s: float) -> None:
        """Put `entry` on the wire, or behind what is on it."""
        wire = self._wires.setdefault(direction, _Wire())
        self._arrivals += 1
        heapq.heappush(wire.waiting, (priority, self._arrivals, now_s, seconds, entry))
        if wire.busy is None:
            wire.start(-inf)

    def arrived(self, now_s: float) -> Iterator[tuple[float, Entry]]:
        """(when, what) has arrived until now, each once."""
        for wire in self._wires.values():
            while wire.busy is not None and wire.busy[0] <= now_s:
                end_s, entry = wire.busy
                wire.busy = None
                wire.start(end_s)
                yield end_s, entry

    @property
    def next_s(self) -> float:
        """When the next one arrives."""
        return min((wire.busy[0] for wire in self._wires.values() if wire.busy is not None), default=inf)
