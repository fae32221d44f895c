"""Finds races, which are conflicting accesses without an order, with a vector clock per stream. The host's issue order is no order."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from tests.fake_gpu.memory import Memory, Region

Ticks = dict[int, int]  # by stream, how many of its ops are known to have ended
HOST = -1  # the host, in place of a stream's number


@dataclass(frozen=True)
class Race:
    """Two accesses to one memory, neither of which waits for the other. A "reuse" is a release of memory that `first_op` may still use."""

    kind: str  # "read after write", "write after read", "write after write", "reuse"
    first_op: str
    first_stream: int
    second_op: str
    second_stream: int

    def __str__(self) -> str:
        """The race in one line."""
        where = "by the host" if self.second_stream == HOST else f"on stream {self.second_stream}"
        return f"{self.kind}: {self.first_op} on stream {self.first_stream}, {self.second_op} {where}"


class Access(NamedTuple):
    """A past access by the `tick`-th op of its stream."""

    op: str
    stream: int
    tick: int
    write: bool
    region: Region


class Order:
    """The order of ops among streams, eagerly or within one capture, and the accesses that later ones may conflict with."""

    def __init__(self, races: list[Race]):
        self.races = races
        self.accesses: dict[Memory, list[Access]] = {}
        self._ticks: dict[int, Ticks] = {}
        self._host: Ticks = {}  # what the host has waited for; all work issued later comes after it
        self._waits = 0  # how often the host has waited
        self._applied: dict[int, int] = {}  # by stream, how many of these waits its ticks include
        self._last_full_wait = 0  # the number of the last wait for all streams

    def stream(self, stream: int) -> Ticks:
        """The ops that are ordered before the stream's next op."""
        ticks, applied = self._ticks.setdefault(stream, {}), self._applied.get(stream, 0)
        if applied != self._waits:
            self._applied[stream] = self._waits
            if applied < self._last_full_wait:  # the host's ticks include all of the stream's
                ticks.update(self._host)
            else:
                _merge(ticks, self._host)
        return ticks

    def mark(self, stream: int) -> Ticks:
        """The ops that are ordered before the current end of the stream."""
        return dict(self.stream(stream))

    def join(self, stream: int, mark: Ticks) -> None:
        """Order the stream's next op after the mark."""
        _merge(self.stream(stream), mark)

    def host_waits(self, streams: Iterable[int]) -> None:
        """The host waited for these streams: all later work on any stream comes after theirs."""
        waited = set(streams)
        if waited >= self._ticks.keys():  # each stream's own tick is the largest that any stream has of it
            self._host.update((stream, ticks.get(stream, 0)) for stream, ticks in self._ticks.items())
            self._waits += 1
            self._last_full_wait = self._waits
            return
        for stream in waited:
            self.host_reached(self.stream(stream))

    def host_reached(self, mark: Ticks) -> None:
        """The host waited for the mark: all later work on any stream comes after it."""
        _merge(self._host, mark)
        self._waits += 1

    def tick(self, stream: int) -> int:
        """Count one more op of the stream. Returns its number."""
        ticks = self.stream(stream)
        ticks[stream] = ticks.get(stream, 0) + 1
        return ticks[stream]

    def op(self, name: str, stream: int, touched: Iterable[tuple[Memory, Region, bool]]) -> None:
        """Record an op on `stream` and report its races. `touched`: (memory, region, whether it writes)."""
        before, accesses, replaces = dict(self.stream(stream)), self.accesses, self._replaces
        tick = self.tick(stream)
        for memory, region, write in touched:
            new = Access(name, stream, tick, write, region)
            remaining = [old for old in accesses.get(memory, ()) if not replaces(new, old, before)]
            remaining.append(new)
            accesses[memory] = remaining

    def by_host(self, name: str, touched: Iterable[tuple[Memory, Region, bool]]) -> None:
        """Record an access by the host now, and report a race with each conflicting earlier op that the host has not waited for.

        All work issued later comes after the access.
        """
        for memory, region, write in touched:
            for old in self.accesses.get(memory, ()):
                if self._host.get(old.stream, 0) < old.tick and (old.write or write) and old.region.overlaps(region):
                    self._report(Race(_kind(old.write, write), old.op, old.stream, name, HOST))

    def release(self, memory: Memory) -> None:
        """Record that the memory returns to its stream's pool, where later tensors of that stream may reuse it."""
        before = self.stream(memory.owner)
        for old in self.accesses.get(memory, ()):
            if before.get(old.stream, 0) < old.tick:
                self._report(Race("reuse", old.op, old.stream, "released", memory.owner))

    def _replaces(self, new: Access, old: Access, before: Ticks) -> bool:
        """Report a race between two accesses. Returns True if every later access that conflicts with `old` also conflicts with `new`."""
        if before.get(old.stream, 0) >= old.tick or (old.tick == new.tick and old.stream == new.stream):
            return (new.write or not old.write) and new.region.covers(old.region)
        if (old.write or new.write) and old.region.overlaps(new.region):
            self._report(Race(_kind(old.write, new.write), old.op, old.stream, new.op, new.stream))
        return False

    def _report(self, race: Race) -> None:
        if race not in self.races:
            self.races.append(race)


def _kind(old_writes: bool, new_writes: bool) -> str:
    return f"{'write' if new_writes else 'read'} after {'write' if old_writes else 'read'}"


def _merge(ticks: Ticks, other: Ticks) -> None:
    for stream, tick in other.items():
        if ticks.get(stream, 0) < tick:
            ticks[stream] = tick
