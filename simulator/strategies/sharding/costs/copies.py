"""Seconds that the copies between devices take if nothing else runs: a closed form of what the engine's links do.

Copies that start together finish when the busiest part of the machine has moved their bytes:

  seconds = max over channels   of  (bytes on the channel) / (its bandwidth)                       copies that share a bandwidth
            max over directions of  sum of (latency + bytes / the route's bandwidth)               one at a time per direction of a link

The routes, channels and directions are those of `engine.links`. Between devices of one memory no link moves anything; there a kernel of the
target copies, one copy after another, and the target that has most to copy determines the time.

Such a part of the machine, of whose time each byte and each copy between two devices takes some, serves mostly all copies from some devices
to some others. So the bytes are summed over such groups of devices once, and each part reads the sum that it needs.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, lru_cache
from itertools import permutations
from math import inf
from typing import NamedTuple, Self

import numpy as np

from simulator.engine.clock import Clock
from simulator.engine.collectives.rounds import ALGORITHM_OF, rounds
from simulator.engine.links import Links
from simulator.machine.machine import HOST, Machine
from simulator.plan.bodies.copy import ALL_REDUCE, Collective
from simulator.strategies.sharding.costs.moved import Flows

#: Seconds of a kernel that copies, or adds, this many bytes.
KernelSeconds = Callable[[float, bool], float]
#: Devices, as numbers.
_Group = frozenset[int]


class _Term(NamedTuple):
    """All copies from a group of devices to another, and what each of their bytes and each copy takes of the time of `part`."""

    part: int
    sources: _Group
    targets: _Group
    byte_s: float
    copy_s: float

    def forms(self) -> list[Self]:
        """Terms with just these copies: a device alone may as well be in the other group, since nothing goes to itself."""
        both, forms = self.sources | self.targets, [self]
        if len(self.sources) == 1 < len(self.targets):
            forms.append(self._replace(targets=both))
        elif len(self.targets) == 1 < len(self.sources):
            forms.append(self._replace(sources=both))
        return forms


class _Entries:
    """Terms whose sides have the same form, single devices or groups, so that they read one array of sums."""

    def __init__(self, terms: Sequence[_Term], size: int):
        parts, sources, targets, *seconds = zip(*terms, strict=True)
        self.parts = np.array(parts)
        self.sides = _side(sources, size), _side(targets, size)
        self.seconds = np.array(seconds)[..., None, None]

    def add_to(self, busy_s: np.ndarray, moved: Sequence[np.ndarray], back: bool) -> None:
        """Add the time of each part to [part, ..., ...]. `moved`: bytes and copies [..., source, ..., target], coming `back` if so."""
        (sources, a), (targets, b) = reversed(self.sides) if back else self.sides
        there, taken_s = np.arange(0), 0.0
        for own, seconds in zip(moved, self.seconds, strict=True):
            if seconds.any():
                summed = _summed(own, sources, targets)
                there = np.flatnonzero((a < summed.shape[1]) & (b < summed.shape[3]))
                taken_s = taken_s + summed[:, a[there], :, b[there]] * seconds[there]
        if len(there):
            parts, first = np.unique(self.parts[there], return_index=True)
            busy_s[parts] += np.add.reduceat(taken_s, first, axis=0)


class Busiest:
    """The parts of a machine.

    `parts`: [part, 2, source, target], the seconds that a byte and a copy between two devices take of a part's time.
    """

    def __init__(self, parts: np.ndarray):
        parts, size = np.unique(parts, axis=0), parts.shape[-1]
        covered = [(part <= parts).all(axis=(1, 2, 3)).sum() > 1 for part in parts]  # never busy for longer than another part
        parts = parts[~np.array(covered, bool)]
        #: Whether copies take as long on their way back: all links are the same in both directions.
        self.both_ways = np.array_equal(np.unique(parts.swapaxes(2, 3), axis=0), parts)
        self._parts = len(parts)
        terms = [term for number, part in enumerate(parts) for term in _terms(number, part)]
        uses = Counter(group for term in terms for form in term.forms() for group in (form.sources, form.targets))
        alike: dict[tuple[bool, bool], list[_Term]] = defaultdict(list)
        for term in terms:
            form = max(term.forms(), key=lambda form: uses[form.sources] * uses[form.targets])
            alike[len(form.sources) > 1, len(form.targets) > 1].append(form)
        self._entries = [_Entries(own, size) for own in alike.values()]

    def seconds(self, moved: np.ndarray, back: bool = False) -> np.ndarray:
        """[..., ...], the time of the busiest part for bytes [..., source, ..., target], of which the last devices may be omitted.

        `back`: and of their way back, at another time. What a device copies to itself must be 0.
        """
        both = moved, (moved > 0).astype(np.float32)
        there_s = self._one_way(both, False)
        return there_s + (there_s if self.both_ways else self._one_way(both, True)) if back else there_s

    def _one_way(self, moved: Sequence[np.ndarray], back: bool) -> np.ndarray:
        busy_s = np.zeros((self._parts, moved[0].shape[0], moved[0].shape[2]))
        for entries in self._entries:
            entries.add_to(busy_s, moved, back)
        return busy_s.max(axis=0, initial=0.0)


def _terms(number: int, part: np.ndarray) -> Iterator[_Term]:
    """Yield what adds up to the time of a part: copies that take equal time, from groups of devices to others."""
    away = ~np.eye(part.shape[-1], dtype=bool)
    for seconds in dict.fromkeys(zip(*part[:, away].tolist(), strict=True)):
        if any(seconds):
            used = (part[0] == seconds[0]) & (part[1] == seconds[1]) & away
            sources, targets = used.any(axis=1), used.any(axis=0)
            if ((sources[:, None] & targets & away) == used).all():
                yield _Term(number, _devices(sources), _devices(targets), *seconds)
            else:
                for source in np.flatnonzero(sources):
                    yield _Term(number, frozenset({int(source)}), _devices(used[source]), *seconds)


def _side(groups: Sequence[_Group], size: int) -> tuple[np.ndarray | None, np.ndarray]:
    """[device, group], 1 for the devices of each different group, and the column of each of `groups`; of devices alone, their numbers."""
    distinct = list(dict.fromkeys(groups))
    if len(distinct[0]) == 1:
        return None, np.array([device for (device,) in groups])
    members = np.array([[device in group for group in distinct] for device in range(size)], float)
    return members, np.array([distinct.index(group) for group in groups])


def _summed(moved: np.ndarray, sources: np.ndarray | None, targets: np.ndarray | None) -> np.ndarray:
    """[..., sources, ..., targets], sums over the devices of groups (`_side`), or each device if None."""
    first, rows, second, columns = moved.shape
    if targets is not None:  # one large product: NumPy computes a stack of small ones one by one
        moved = (moved.reshape(-1, columns) @ targets[:columns].astype(moved.dtype)).reshape(first, rows, second, -1)
    if sources is not None:
        moved = (sources[:rows].T.astype(moved.dtype) @ moved.reshape(first, rows, -1)).reshape(first, sources.shape[1], second, -1)
    return moved


def _devices(mask: np.ndarray) -> _Group:
    return frozenset(map(int, np.flatnonzero(mask)))


class Copies:
    """Simultaneous copies between the first `count` devices of a machine (default: all), and sums over some of them."""

    def __init__(self, machine: Machine, kernel_s: KernelSeconds = lambda moved_bytes, add: 0.0, count: int | None = None):
        """`kernel_s`: for devices that share a memory."""
        self._machine, self._kernel_s = machine, kernel_s
        self._links = Links(Clock(), machine)
        self.devices = tuple(device.name for device in machine.devices)[:count]
        size = len(self.devices)
        self._routes = {pair: self._links.route(*(self.devices[place] for place in pair)) for pair in permutations(range(size), 2)}
        self._by_kernel = not machine.library and len({device.memory for device in machine.devices}) == 1

    @property
    def slowest_bytes_per_s(self) -> float:
        """The least bandwidth between two devices; of devices that share a memory, that of the memory."""
        slowest = min((route.bandwidth_bytes_per_s for route in self._routes.values()), default=inf)
        return slowest if slowest < inf else self._machine.memories[0].bandwidth_bytes_per_s

    def seconds(self, moved_bytes: np.ndarray, back: bool = False) -> np.ndarray:
        """[..., ...] seconds of the copies [..., source, ..., target] in bytes, those of a device to itself being 0.

        `back`: also of their way back, at another time.
        """
        return sum((busiest.seconds(moved_bytes, back) for busiest in self._busiest), np.zeros(()))

    def flow_s(self, flows: Flows, back: bool) -> tuple[np.ndarray, np.ndarray]:
        """[configurations of source, of target] seconds and bytes of what moves over an edge. `back`: also of its way back."""
        seconds, total = np.empty((2, len(flows.sources.workers), len(flows.targets.workers)))
        for some, moved in flows.blocks():
            seconds[some], total[some] = self.seconds(moved, back), moved.sum(axis=(1, 3))
        return seconds, (1 + back) * total

    @cached_property
    def _busiest(self) -> list[Busiest]:
        """The links and, if kernels copy, the devices on which they run."""
        size = len(self.devices)
        parts: dict[tuple[str, tuple[str, str]], np.ndarray] = defaultdict(lambda: np.zeros((2, size, size)))
        for (i, j), route in self._routes.items():
            for channel, load in zip(route.channels, route.loads, strict=True):
                parts["channel", channel][0, i, j] += load / self._links.capacity(channel)
            for direction in route.directions:
                parts["direction", direction][:, i, j] += 1.0 / route.bandwidth_bytes_per_s, route.latency_s
        links = Busiest(np.array(list(parts.values())).reshape(-1, 2, size, size))
        if not self._by_kernel:
            return [links]
        small, large = 4096.0, 2.0**26
        first_s, last_s = (self._kernel_s(moved, False) for moved in (small, large))
        line = max(0.0, last_s - first_s) / (large - small), first_s  # a kernel's seconds for each byte, and for next to nothing
        kernels = np.zeros((size, 2, size, size))
        kernels[range(size), :, :, range(size)] = np.array(line)[:, None]
        return [links, Busiest(kernels)]

    def reduction(self, groups: Sequence[tuple[int, ...]], payload_bytes: float, server: str) -> tuple[float, float]:
        """Seconds in which all groups sum `payload_bytes` at the same time, and the bytes that all their devices send.

        A group is the numbers of its devices; all have as many, and no two share any. Channels that several groups use carry the bytes of
        all. `server`: as in data-parallel.
        """
        algorithm, replicas, at_host = ALGORITHM_OF[server], len(groups[0]), server == "host"
        sent = len(groups) * (_sent_share(replicas, algorithm, at_host) * payload_bytes)
        if replicas == 1 or not payload_bytes:
            return 0.0, sent
        if self._by_kernel:
            return self._reduced_by_kernels(replicas, payload_bytes, server), sent
        alone_s = 0.0
        loads: dict[tuple[str, str], float] = defaultdict(float)
        for group in groups:
            devices = tuple(self.devices[place] for place in group)
            own_host = self._machine.memory_name(HOST) == self._machine.memory_name(devices[0])  # of a process on a CPU
            root = (devices[0] if own_host else HOST) if at_host else ""
            route, busiest = self._links.collective(Collective(ALL_REDUCE, devices, algorithm, root), payload_bytes)
            alone_s = max(alone_s, self._links.alone_s(route, busiest))
            for channel, load in zip(route.channels, route.loads, strict=True):
                loads[channel] += load * busiest
        return max([alone_s, *(moved / self._links.capacity(channel) for channel, moved in loads.items())]), sent

    def _reduced_by_kernels(self, replicas: int, payload_bytes: float, server: str) -> float:
        """Seconds of the rounds, in each of which the target with most to copy determines the time."""
        total_s = 0.0
        for moves in rounds(ALL_REDUCE, ALGORITHM_OF[server], replicas, -1 if server == "host" else 0):
            busy_s: dict[int, float] = defaultdict(float)
            for move in moves:
                moved = payload_bytes if move.chunk is None else payload_bytes / replicas
                busy_s[move.source if move.target < 0 else move.target] += self._kernel_s(moved, move.add)
            total_s += max(busy_s.values())
        return total_s


@lru_cache
def _sent_share(replicas: int, algorithm: str, at_host: bool) -> float:
    """What all devices of a group send in an all-reduce, as a multiple of the data of one."""
    moves = [move for moves in rounds(ALL_REDUCE, algorithm, replicas, -1 if at_host else 0) for move in moves]
    return sum(1.0 if move.chunk is None else 1.0 / replicas for move in moves)
