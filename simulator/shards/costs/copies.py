"""Seconds that the copies between devices take if nothing else runs: a closed form of what the engine's links do.

Copies that start together finish when the busiest part of the machine has moved their bytes:

  seconds = max over channels   of  (bytes on the channel) / (its bandwidth)                       copies that share a bandwidth
            max over directions of  sum of (latency + bytes / the route's bandwidth)               one at a time per direction of a link

The routes, channels and directions are those of `engine.links`. Between devices of one memory no link moves anything; there a kernel of the
target copies, one copy after another, and the target that has most to copy determines the time.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from itertools import permutations
from math import inf

import numpy as np
from simpy import Environment

from simulator.bodies.collective import ALL_REDUCE, Collective
from simulator.collectives.rounds import ALGORITHM_OF, rounds
from simulator.engine.links import Links
from simulator.machine.machine import HOST, Machine
from simulator.shards.costs.busy import Busiest
from simulator.shards.costs.moved import Flows

#: Seconds of a kernel that copies, or adds, this many bytes.
KernelSeconds = Callable[[float, bool], float]


class Copies:
    """Simultaneous copies between the first `count` devices of a machine (default: all), and sums over some of them."""

    def __init__(self, machine: Machine, kernel_s: KernelSeconds = lambda moved_bytes, add: 0.0, count: int | None = None):
        """`kernel_s`: for devices that share a memory."""
        self._machine, self._kernel_s = machine, kernel_s
        self._links = Links(Environment(), machine)
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
        return sum(busiest.seconds(moved_bytes, back) for busiest in self._busiest)

    def flow_s(self, flows: Flows, back: bool) -> tuple[np.ndarray, np.ndarray]:
        """[configurations of source, of target] seconds and bytes of what moves over an edge. `back`: also of its way back."""
        seconds, total = np.empty(flows.shape), np.empty(flows.shape)
        for some, moved in flows.blocks():
            seconds[some], total[some] = self.seconds(moved, back), moved.sum(axis=(1, 3))
        return seconds, (1 + back) * total

    @cached_property
    def _busiest(self) -> list[Busiest]:
        """The links and, if kernels copy, the devices on which they run."""
        size, parts = len(self.devices), defaultdict(lambda: np.zeros((2, len(self.devices), len(self.devices))))
        for (i, j), route in self._routes.items():
            for channel, load in zip(route.channels, route.loads, strict=True):
                parts["channel", channel][0, i, j] += load / self._links.capacity(channel)
            for direction in route.directions:
                parts["direction", direction][:, i, j] += 1.0 / route.bandwidth_bytes_per_s, route.latency_s
        links = Busiest(np.array(list(parts.values())).reshape(-1, 2, size, size))
        if not self._by_kernel:
            return [links]
        kernels = np.zeros((size, 2, size, size))
        kernels[range(size), :, :, range(size)] = np.array(self._kernel_line)[:, None]
        return [links, Busiest(kernels)]

    @cached_property
    def _kernel_line(self) -> tuple[float, float]:
        """Seconds of each byte of a kernel that copies, and of one that copies next to nothing."""
        small, large = 4096.0, 2.0**26
        first_s, last_s = self._kernel_s(small, False), self._kernel_s(large, False)
        return max(0.0, last_s - first_s) / (large - small), first_s

    def reduction_s(self, groups: Sequence[tuple[int, ...]], payload_bytes: float, server: str) -> float:
        """Seconds in which all groups sum `payload_bytes` at the same time. A group is the numbers of its devices; no two share any.

        Channels that several groups use carry the bytes of all. `server`: as in image-parallel.
        """
        groups = [group for group in groups if len(group) > 1]
        if not groups or not payload_bytes:
            return 0.0
        if self._by_kernel:
            return max(self._reduced_by_kernels(len(group), payload_bytes, server) for group in groups)
        alone, loads = 0.0, {}
        for group in groups:
            devices = tuple(self.devices[place] for place in group)
            route, busiest = self._links.collective(
                Collective(ALL_REDUCE, devices, ALGORITHM_OF[server], self._root(server, devices)), payload_bytes
            )
            alone = max(alone, self._links.alone_s(route, busiest))
            for channel, load in zip(route.channels, route.loads, strict=True):
                loads[channel] = loads.get(channel, 0.0) + load * busiest
        return max([alone, *(moved / self._links.capacity(channel) for channel, moved in loads.items())])

    def reduction_bytes(self, replicas: int, payload_bytes: float, server: str) -> float:
        """Bytes that all devices of one group send."""
        return _sent_share(replicas, ALGORITHM_OF[server], server == "host") * payload_bytes

    def _root(self, server: str, devices: tuple[str, ...]) -> str:
        """The device that serves, or the host; a process on a CPU is its own host."""
        if server != "host":
            return ""
        return devices[0] if self._machine.memory_name(HOST) == self._machine.memory_name(devices[0]) else HOST

    def _reduced_by_kernels(self, replicas: int, payload_bytes: float, server: str) -> float:
        """Seconds of the rounds, in each of which the target with most to copy determines the time."""
        total_s = 0.0
        for moves in rounds(ALL_REDUCE, ALGORITHM_OF[server], replicas, -1 if server == "host" else 0):
            busy: dict[int, float] = {}
            for move in moves:
                lane = move.source if move.target < 0 else move.target
                moved = payload_bytes if move.chunk is None else payload_bytes / replicas
                busy[lane] = busy.get(lane, 0.0) + self._kernel_s(moved, move.add)
            total_s += max(busy.values())
        return total_s


@lru_cache
def _sent_share(replicas: int, algorithm: str, at_host: bool) -> float:
    """What all devices of a group send in an all-reduce, as a multiple of the data of one."""
    moves = [move for moves in rounds(ALL_REDUCE, algorithm, replicas, -1 if at_host else 0) for move in moves]
    return sum(1.0 if move.chunk is None else 1.0 / replicas for move in moves)
