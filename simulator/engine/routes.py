"""Routes of transfers over links, moves on several routes at the same time, and how moves share the channels of their routes."""

from collections import defaultdict
from collections.abc import Iterable, Set
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple


class Route(NamedTuple):
    """`directions`: the queues that a transfer joins; `channels`: the bandwidths that it shares. An alias has none.

    `loads`: bytes on each channel per byte of the transfer; for a collective, per byte on its busiest channel. `latency_error`,
    `bandwidth_error`: as in `Link`. `blocks`, `draws_bytes_per_s`: SMs that a collective's kernel takes on each of its GPUs while it runs,
    and bandwidth of their memories.
    """

    directions: tuple[tuple[str, str], ...]
    channels: tuple[tuple[str, str], ...]
    latency_s: float
    bandwidth_bytes_per_s: float
    alias: bool
    loads: tuple[float, ...]
    latency_error: float = 0.0
    bandwidth_error: float = 0.0
    blocks: int = 0
    draws_bytes_per_s: float = 0.0

    def within(self, directions: Set[tuple[str, str]], channels: Set[tuple[str, str]]) -> "Route":
        """The route with those of its directions and channels alone."""
        kept = [(channel, load) for channel, load in zip(self.channels, self.loads, strict=True) if channel in channels]
        return self._replace(
            directions=tuple(direction for direction in self.directions if direction in directions),
            channels=tuple(channel for channel, _ in kept),
            loads=tuple(load for _, load in kept),
        )


ALIAS_ROUTE = Route((), (), 0.0, inf, True, ())


@dataclass
class Flow:
    """Moves of one byte per rank at the same time: their loads by channel, and the largest errors of their routes."""

    loads: dict[tuple[str, str], float] = field(default_factory=lambda: defaultdict(float))
    directions: dict[tuple[str, str], None] = field(default_factory=dict)
    slowest_s: float = 0.0
    latency_error: float = 0.0
    bandwidth_error: float = 0.0

    def add(self, routes: Iterable[Route], moved: float) -> None:
        """Add moves of `moved` bytes on each of the routes."""
        for route in routes:
            self.directions |= dict.fromkeys(route.directions)
            self.slowest_s = max(self.slowest_s, moved / route.bandwidth_bytes_per_s)
            self.latency_error, self.bandwidth_error = (
                max(self.latency_error, route.latency_error), max(self.bandwidth_error, route.bandwidth_error),
            )  # fmt: skip
            for channel, load in zip(route.channels, route.loads, strict=True):
                self.loads[channel] += moved * load

    def seconds(self, capacity: dict[tuple[str, str], float]) -> float:
        """Seconds that the moves take over channels with these bandwidths (bytes per second)."""
        return max([self.slowest_s, *(load / capacity[channel] for channel, load in self.loads.items())])


def max_min(routes: list[Route], capacity: dict[tuple[str, str], float]) -> list[float]:
    """Max-min fair rates (bytes/s) on `routes`: all rates grow equally until a channel is full or a route's bandwidth is reached."""
    if len(routes) == 1:  # a collective of many devices has thousands of channels
        (route,) = routes
        return [min([route.bandwidth_bytes_per_s, *(capacity[c] / load for c, load in zip(route.channels, route.loads, strict=True))])]
    rates = [0.0] * len(routes)
    growing = list(range(len(routes)))
    left = dict(capacity)
    while growing:
        users: dict[tuple[str, str], float] = {}
        for i in growing:
            for channel, load in zip(routes[i].channels, routes[i].loads, strict=True):
                users[channel] = users.get(channel, 0.0) + load
        level = min(min((left[c] / users[c] for c in routes[i].channels), default=inf) for i in growing)
        capped = [i for i in growing if routes[i].bandwidth_bytes_per_s <= level]
        fixed = capped or [i for i in growing if min(left[c] / users[c] for c in routes[i].channels) <= level]
        for i in fixed:
            rates[i] = min(level, routes[i].bandwidth_bytes_per_s)
            for channel, load in zip(routes[i].channels, routes[i].loads, strict=True):
                left[channel] = max(0.0, left[channel] - rates[i] * load)
        growing = [i for i in growing if i not in fixed]
    return rates
