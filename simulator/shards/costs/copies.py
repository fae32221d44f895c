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
from typing import NamedTuple

import numpy as np
from simpy import Environment

from simulator.bodies.collective import ALL_REDUCE, Collective
from simulator.collectives.rounds import ALGORITHM_OF, rounds
from simulator.engine.links import Links
from simulator.machine.machine import HOST, Machine
from simulator.shards.costs.moved import Flows

#: Seconds of a kernel that copies, or adds, this many bytes.
KernelSeconds = Callable[[float, bool], float]


class _Ends(NamedTuple):
    """By device that sends, that receives, and for all together: seconds of a byte and of a copy."""

    out: tuple[np.ndarray, np.ndarray]
    into: tuple[np.ndarray, np.ndarray]
    every: tuple[float, float]


def _of_devices(rows: list[tuple[int, float, float]], size: int) -> tuple | None:
    """Rows of (device, seconds of a byte, seconds of a copy) as arrays by device; None if a device has two of which neither is larger."""
    weights = np.zeros((2, size), np.float32)
    for device, per_byte, per_copy in rows:
        place = device if size > 1 else 0
        smaller, larger = sorted([(weights[0, place], weights[1, place]), (per_byte, per_copy)])
        if larger[1] < smaller[1]:
            return None
        weights[:, place] = larger
    return tuple(weights) if size > 1 else tuple(float(weight[0]) for weight in weights)


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

    def flow_s(self, flows: Flows, back: bool) -> np.ndarray:
        """[configurations of source, of target] seconds of what moves over an edge; `back`: also of its way back, at another time."""
        if self._ends is None:
            moved = flows.matrix
            return self.seconds(moved) + self.seconds(moved.swapaxes(-2, -1)) if back else self.seconds(moved)
        sent, received = flows.sent, flows.received
        there = self._by_ends(sent, received)
        return there + self._by_ends(received, sent) if back else there

    def _by_ends(self, sent: tuple[np.ndarray, np.ndarray], received: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
        """Seconds by what each device sends and receives, in bytes and copies."""
        (out_bytes, out_copies), (in_bytes, in_copies) = sent, received
        ends = self._ends
        busiest = [
            out_bytes * ends.out[0] + out_copies * ends.out[1],
            in_bytes * ends.into[0] + in_copies * ends.into[1],
        ]
        total = out_bytes.sum(axis=-1) * ends.every[0] + out_copies.sum(axis=-1) * ends.every[1]
        return np.maximum(total, np.maximum(*(seconds.max(axis=-1) for seconds in busiest))).astype(float)

    @cached_property
    def _ends(self) -> "_Ends | None":
        """The seconds of bytes and copies, if they depend on what each device sends and receives alone, whatever the other ends are."""
        if self._by_kernel:
            return None
        size = len(self.devices)
        away = ~np.eye(size, dtype=bool)
        sums = {"out": [], "into": [], "every": []}
        for per_byte, per_copy in zip(*(rows.T.reshape(-1, size, size) for rows in self._rows), strict=True):
            used = (per_byte > 0) & away
            pattern = {
                "out": used.sum() == size - 1 and used.any(axis=1).sum() == 1,
                "into": used.sum() == size - 1 and used.any(axis=0).sum() == 1,
                "every": used.sum() == size * (size - 1),
            }
            uniform = all(len(np.unique(weights[used])) == 1 for weights in (per_byte, per_copy))
            name = next((name for name, fits in pattern.items() if fits), "")
            if not name or not uniform:
                return None
            sums[name].append((int(used.any(axis=1 if name == "out" else 0).argmax()), float(per_byte[used][0]), float(per_copy[used][0])))
        columns = {name: _of_devices(rows, size if name != "every" else 1) for name, rows in sums.items()}
        return None if None in columns.values() else _Ends(**columns)

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
                Collective(ALL_REDUCE, devices, ALGORITHM_OF[server], self._root(server, devices)), payload_bytes
            )
            alone = max(alone, self._links.alone_s(route, busiest))
            for channel, load in zip(route.channels, route.loads, strict=True):
                loads[channel] = loads.get(channel, 0.0) + load * busiest
        return max([alone, *(moved / self._links.capacity(channel) for channel, moved in loads.items())])

    def reduction_bytes(self, replicas: int, payload_bytes: float, server: str) -> float:
        """Bytes that all devices of one group send."""
        moves = [move for moves in rounds(ALL_REDUCE, ALGORITHM_OF[server], replicas, -1 if server == "host" else 0) for move in moves]
        return sum(payload_bytes if move.chunk is None else payload_bytes / replicas for move in moves)

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
