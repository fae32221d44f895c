"""Seconds that the copies between devices take if nothing else runs: a closed form of what the engine's links do.

Copies that start together finish when the busiest part of the machine has moved their bytes:

  seconds = max over channels   of  (bytes on the channel) / (its bandwidth)                       copies that share a bandwidth
            max over directions of  sum of (latency + bytes / the route's bandwidth)               one at a time per direction of a link

The routes, channels and directions are those of `engine.links`. Between devices of one memory no link moves anything; there a kernel of the
target copies, one copy after another, and the target that has most to copy determines the time.
"""

from collections.abc import Callable, Sequence
from functools import cached_property
from math import inf

import numpy as np
from simpy import Environment

from simulator.bodies.collective import ALL_REDUCE, Collective
from simulator.collectives.rounds import DISTRIBUTED, RING, SERVER, rounds
from simulator.engine.links import Links
from simulator.machine.machine import HOST, Machine

#: By name of a server, the algorithm that sums gradients.
ALGORITHMS = {"all-reduce": RING, "distributed": DISTRIBUTED, "host": SERVER}
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
        self._pairs = [(i, j) for i in range(size) for j in range(size) if i != j]
        self._routes = {pair: self._links.route(*(self.devices[place] for place in pair)) for pair in self._pairs}
        self._by_kernel = not machine.library and len({device.memory for device in machine.devices}) == 1

    @property
    def slowest_bytes_per_s(self) -> float:
        """The least bandwidth between two devices; of devices that share a memory, that of the memory."""
        slowest = min((route.bandwidth_bytes_per_s for route in self._routes.values()), default=inf)
        return slowest if slowest < inf else self._machine.memories[0].bandwidth_bytes_per_s

    def seconds(self, moved_bytes: np.ndarray) -> np.ndarray:
        """[...] seconds of the copies [..., source, target] in bytes. What a device copies to itself takes no time here."""
        flat = np.asarray(moved_bytes, np.float32).reshape(-1, len(self.devices) ** 2)
        per_byte, per_copy = self._rows
        if per_byte.size:
            result = (flat @ per_byte + (flat > 0).astype(np.float32) @ per_copy).max(axis=-1).reshape(moved_bytes.shape[:-2])
        else:
            result = np.zeros(moved_bytes.shape[:-2])
        if self._by_kernel:
            first_s, byte_s = self._kernel_line
            away = moved_bytes * (1 - np.eye(len(self.devices)))
            result = result + (away.sum(axis=-2) * byte_s + (away > 0).sum(axis=-2) * first_s).max(axis=-1)
        return result.astype(float)

    def there_and_back(self, moved_bytes: np.ndarray) -> np.ndarray:
        """Seconds of the copies, and of the same bytes on their way back later."""
        there = self.seconds(moved_bytes)
        return 2 * there if self._symmetric else there + self.seconds(moved_bytes.swapaxes(-2, -1))

    @cached_property
    def _symmetric(self) -> bool:
        """Whether copies take as long if source and target change places."""
        size = len(self.devices)
        back = np.arange(size * size).reshape(size, size).T.ravel()
        rows = [{column.tobytes() for column in np.concatenate(both).T} for both in (self._rows, [own[back] for own in self._rows])]
        return rows[0] == rows[1] and not self._by_kernel

    @cached_property
    def _rows(self) -> tuple[np.ndarray, np.ndarray]:
        """By pair of devices and by channel or direction, the seconds of a byte and those of a copy."""
        size = len(self.devices)
        rows: dict[object, tuple[np.ndarray, np.ndarray]] = {}
        for (i, j), route in self._routes.items():
            for channel, load in zip(route.channels, route.loads, strict=True):
                per_byte, _ = rows.setdefault(("channel", channel), (np.zeros(size * size), np.zeros(size * size)))
                per_byte[i * size + j] += load / self._links.capacity(channel)
            for direction in route.directions:
                per_byte, per_copy = rows.setdefault(("direction", direction), (np.zeros(size * size), np.zeros(size * size)))
                per_byte[i * size + j] += 1.0 / route.bandwidth_bytes_per_s
                per_copy[i * size + j] += route.latency_s
        distinct = {(per_byte.tobytes(), per_copy.tobytes()): (per_byte, per_copy) for per_byte, per_copy in rows.values()}
        if not distinct:
            return np.zeros((size * size, 0), np.float32), np.zeros((size * size, 0), np.float32)
        per_byte, per_copy = (np.stack(columns, axis=1).astype(np.float32) for columns in zip(*distinct.values(), strict=True))
        return per_byte, per_copy

    @cached_property
    def _kernel_line(self) -> tuple[float, float]:
        """Seconds of a kernel that copies next to nothing, and of each byte."""
        small, large = 4096.0, 2.0**26
        first_s, last_s = self._kernel_s(small, False), self._kernel_s(large, False)
        return first_s, max(0.0, last_s - first_s) / (large - small)

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
                Collective(ALL_REDUCE, devices, ALGORITHMS[server], self._root(server, devices)), payload_bytes
            )
            alone = max(alone, self._links.alone_s(route, busiest))
            for channel, load in zip(route.channels, route.loads, strict=True):
                loads[channel] = loads.get(channel, 0.0) + load * busiest
        return max([alone, *(moved / self._links.capacity(channel) for channel, moved in loads.items())])

    def reduction_bytes(self, replicas: int, payload_bytes: float, server: str) -> float:
        """Bytes that all devices of one group send."""
        moves = [move for moves in rounds(ALL_REDUCE, ALGORITHMS[server], replicas, -1 if server == "host" else 0) for move in moves]
        return sum(payload_bytes if move.chunk is None else payload_bytes / replicas for move in moves)

    def _root(self, server: str, devices: tuple[str, ...]) -> str:
        """The device that serves, or the host; a process on a CPU is its own host."""
        if server != "host":
            return ""
        return devices[0] if self._machine.memory_name(HOST) == self._machine.memory_name(devices[0]) else HOST

    def _reduced_by_kernels(self, replicas: int, payload_bytes: float, server: str) -> float:
        """Seconds of the rounds, in each of which the target with most to copy determines the time."""
        total_s = 0.0
        for moves in rounds(ALL_REDUCE, ALGORITHMS[server], replicas, -1 if server == "host" else 0):
            busy: dict[int, float] = {}
            for move in moves:
                lane = move.source if move.target < 0 else move.target
                moved = payload_bytes if move.chunk is None else payload_bytes / replicas
                busy[lane] = busy.get(lane, 0.0) + self._kernel_s(moved, move.add)
            total_s += max(busy.values())
        return total_s
