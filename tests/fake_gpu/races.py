"""Finds accesses that nothing orders: vector clocks per stream. The order in which the host issues things orders nothing."""

from collections.abc import Iterable
from dataclasses import dataclass

from tests.fake_gpu.memory import Memory, Region

Ticks = dict[int, int]  # by stream, how many of its ops are known to have ended
HOST = -1  # the host, where a stream is named


@dataclass(frozen=True)
class Race:
    """Two accesses to one memory of which neither waits for the other. A `reuse` is a release of memory that `first_op` may still use."""

    kind: str  # "read after write", "write after read", "write after write", "reuse"
    first_op: str
    first_stream: int
    second_op: str
    second_stream: int

    def __str__(self) -> str:
        """One line."""
        where = "by the host" if self.second_stream == HOST else f"on stream {self.second_stream}"
        return f"{self.kind}: {self.first_op} on stream {self.first_stream}, {self.second_op} {where}"


@dataclass(frozen=True)
class Access:
    """A past access: the `tick`-th op of its stream."""

    op: str
    stream: int
    tick: int
    write: bool
    region: Region


class Order:
    """The order among streams, eager or within one capture, and the accesses that later ones may conflict with."""

    def __init__(self, races: list[Race]):
        self.races = races
        self.accesses: dict[Memory, list[Access]] = {}
        self._ticks: dict[int, Ticks] = {}
        self._host: Ticks = {}  # what the host waited for, and hence all that is issued later
        self._waits = 0  # of the host, and how many of them each stream's ticks hold
        self._held: dict[int, int] = {}
        self._waited_for_all = 0  # which of them was the last for all streams

    def stream(self, stream: int) -> Ticks:
        """What is ordered before the stream's next op."""
        ticks, held = self._ticks.setdefault(stream, {}), self._held.get(stream, 0)
        if held != self._waits:
            self._held[stream] = self._waits
            if held < self._waited_for_all:  # the host knows all that the stream did
                ticks.update(self._host)
            else:
                _raise(ticks, self._host)
        return ticks

    def mark(self, stream: int) -> Ticks:
        """What has ended where the stream ends now."""
        return dict(self.stream(stream))

    def join(self, stream: int, mark: Ticks) -> None:
        """The stream's next op comes after the mark."""
        _raise(self.stream(stream), mark)

    def host_waits(self, streams: Iterable[int]) -> None:
        """The host waited for streams: all that follows on any stream comes after them."""
        waited = set(streams)
        if waited >= self._ticks.keys():  # no stream knows more of another than that one does
            self._host.update((stream, ticks.get(stream, 0)) for stream, ticks in self._ticks.items())
            self._waits += 1
            self._waited_for_all = self._waits
            return
        for stream in waited:
            self.host_reached(self.stream(stream))

    def host_reached(self, mark: Ticks) -> None:
        """The host waited for the mark: all that follows on any stream comes after it."""
        _raise(self._host, mark)
        self._waits += 1

    def tick(self, stream: int) -> int:
        """The stream does one thing more; returns its number."""
        ticks = self.stream(stream)
        ticks[stream] = ticks.get(stream, 0) + 1
        return ticks[stream]

    def op(self, name: str, stream: int, touched: Iterable[tuple[Memory, Region, bool]]) -> None:
        """An op on `stream` touches (memory, region, whether it writes)."""
        before = dict(self.stream(stream))
        tick = self.tick(stream)
        for memory, region, write in touched:
            new = Access(name, stream, tick, write, region)
            kept = [old for old in self.accesses.get(memory, ()) if not self._settled(old, new, before)]
            self.accesses[memory] = [*kept, new]

    def by_host(self, name: str, touched: Iterable[tuple[Memory, Region, bool]]) -> None:
        """The host itself does something now: all that was issued before and conflicts must have been waited for.

        What is issued later comes after it.
        """
        for memory, region, write in touched:
            for old in self.accesses.get(memory, ()):
                if self._host.get(old.stream, 0) < old.tick and (old.write or write) and old.region.overlaps(region):
                    self._found(Race(_kind(old.write, write), old.op, old.stream, name, HOST))

    def release(self, memory: Memory) -> None:
        """The memory goes back to its stream's pool: later tensors of that stream may lie there."""
        before = self.stream(memory.owner)
        for old in self.accesses.get(memory, ()):
            if before.get(old.stream, 0) < old.tick:
                self._found(Race("reuse", old.op, old.stream, "released", memory.owner))

    def _settled(self, old: Access, new: Access, before: Ticks) -> bool:
        """Report a race with an old access; True if whatever conflicts with it later conflicts with the new one as well."""
        if before.get(old.stream, 0) >= old.tick or (old.tick == new.tick and old.stream == new.stream):
            return (new.write or not old.write) and new.region.covers(old.region)
        if (old.write or new.write) and old.region.overlaps(new.region):
            self._found(Race(_kind(old.write, new.write), old.op, old.stream, new.op, new.stream))
        return False

    def _found(self, race: Race) -> None:
        if race not in self.races:
            self.races.append(race)


def _kind(old_writes: bool, new_writes: bool) -> str:
    return f"{'write' if new_writes else 'read'} after {'write' if old_writes else 'read'}"


def _raise(ticks: Ticks, other: Ticks) -> None:
    for stream, tick in other.items():
        if ticks.get(stream, 0) < tick:
            ticks[stream] = tick
