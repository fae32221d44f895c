"""Transfers: latency, then bytes over links, one at a time per direction.

A transfer takes the route with the fewest links, and among those the least latency. It goes through the host's memory only if there is no
other route. Every direction of a device's link has a queue in order of (priority, arrival, issue); the transfer starts when it is first in
all queues of its route. Then it takes the sum of the latencies and moves its bytes. A collective is one transfer, in the queues of all
links that it uses. Transfers that move on one channel at the same time share its bandwidth max-min fairly. So do all that pass a link
between switches, which has no queue. A link that is not duplex shares one bandwidth between both directions. Between two devices of one
memory nothing moves (an alias).

A library's collectives on a machine that states its protocols take what `collectives.protocols` says, and load the links as its rings do.

If the machine has measurements (`Machine.peer_transfers`, `Machine.collectives`), a transfer or collective alone takes the measured time,
and loads a channel no more than that implies. If both are measured, a library's message counts rather than the copy (`peer_transfers`).
Measured collectives of devices that no links join run one after another.
"""

from bisect import insort
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise, permutations
from math import inf
from typing import TYPE_CHECKING, Any

from simpy import Event

from simulator.engine.clock import Allocator, Clock, Signal, Timer
from simulator.engine.collectives.protocols import Line, Spread, held_share, lines
from simulator.engine.collectives.rounds import SCALABLE, TREE, distinct_rounds, measured_times, message_times
from simulator.engine.routes import ALIAS_ROUTE, Flow, Route, max_min
from simulator.machine.machine import HOST, NETWORK, Link, Machine
from simulator.plan.bodies.copy import ALL_TO_ALL, Collective
from traces.errors import SchedcastError

if TYPE_CHECKING:
    import networkx


@dataclass(slots=True, eq=False)
class Transfer:
    """The transfer that a lane runs or waits to run. A lane reuses one object. Only `Links` changes it."""

    signal: Signal  # comes at its end
    number: int = -1  # of its execution
    order: tuple[int, float, int] = (0, 0.0, -1)  # among those that wait: (priority, arrival, issue)
    route: Route = ALIAS_ROUTE
    bytes: float = 0.0
    start_s: float = -1.0
    freed_by: int = -1  # the execution whose links it got
    moving: bool = False  # whether its latency is over
    rate: float = 0.0  # bytes per second since `anchor_s`
    anchor_s: float = 0.0
    done_bytes: float = 0.0  # at `anchor_s`
    next_s: float = 0.0

    def __lt__(self, other: "Transfer") -> bool:
        return self.order < other.order


class Links(Allocator):
    """All links of a machine, and the transfers that wait for them or move over them."""

    def __init__(self, env: Clock, machine: Machine):
        """Links are directed. A link without an opposite also serves the way back."""
        super().__init__(env)
        self._machine = machine
        self._devices = {device.name: device for device in machine.devices}
        self._edges: dict[tuple[str, str], dict[str, Any]] = {}
        self._capacity: dict[tuple[str, str], float] = {}
        for link in machine.links:
            self._add(link.source, link.target, link, "")
        for link in machine.links:
            if (link.target, link.source) not in self._edges:
                self._add(link.target, link.source, link, "back" if link.duplex else "")
        self._routes: dict[tuple[str, str], Route] = {}
        self._groups: dict[tuple[tuple[tuple[str, str], ...], int], Route] = {}  # of transfers that one stands for
        self._collectives: dict[Collective, tuple[Route, float, list[Line]]] = {}
        self._near: dict[int, networkx.DiGraph] = {}
        self._timed_collectives: dict[tuple[Collective, float], tuple[Route, float]] = {}
        self._rates: dict[int, tuple[Route, float]] = {}  # while nothing else moves, by id: routes over many links are long
        self._shared: dict[tuple[int, ...], tuple[list[Route], list[float]]] = {}  # the rates of routes that move together
        self._queues: dict[tuple[str, str], list[Transfer]] = {}
        self._freed_by: dict[tuple[str, str], int] = {}
        self._waiting: list[Transfer] = []  # one of a lane at most
        self._started: list[Transfer] = []
        self._timer: Event | None = None

    def _add(self, source: str, target: str, link: Link, suffix: str) -> None:
        if link.channel:
            channel = (link.channel, suffix)
        elif link.duplex:
            channel = (source, target)
        else:
            channel = (min(source, target), max(source, target))
        self._capacity[channel] = max(self._capacity.get(channel, 0.0), link.bandwidth_bytes_per_s)
        weight = 1.0 + link.latency_s  # fewest links, then least latency
        self._edges[source, target] = {"link": link, "channel": channel, "weight": weight}

    @cached_property
    def _graphs(self) -> "tuple[networkx.DiGraph, networkx.DiGraph]":
        """The directed links without those of the host, and all of them."""
        import networkx  # here, because it takes 0.25 s to load, and a plan on one device needs no route

        graph = networkx.DiGraph()
        graph.add_nodes_from(self._devices)
        graph.add_edges_from((*ends, edge) for ends, edge in self._edges.items())
        past_host = graph.copy()
        past_host.remove_nodes_from([HOST])
        return past_host, graph

    def capacity(self, channel: tuple[str, str]) -> float:
        """Bytes per second of a channel."""
        return self._capacity[channel]

    def route(self, source: str, target: str) -> Route:
        """How bytes get from `source` to `target`. Raises SchedcastError if no links join them."""
        if (source, target) not in self._routes:
            self._routes[source, target] = self._find(source, target)
        return self._routes[source, target]

    def _find(self, source: str, target: str) -> Route:
        direct = self._edges.get((source, target))
        devices = self._devices
        one_memory = source in devices and target in devices and devices[source].memory == devices[target].memory
        if direct["link"].alias if direct else one_memory:
            return ALIAS_ROUTE
        nodes = self._short_path(source, target) or self._near_path(source, target)
        nodes = nodes or next(filter(None, (_shortest_path(graph, source, target) for graph in self._graphs)), [])
        if not nodes:
            raise SchedcastError(
                f"machine {self._machine.name} has no link from {source!r} to {target!r}; add one, or place both ends on one device"
            )
        hops = list(pairwise(nodes))
        edges = [self._edges[hop] for hop in hops]
        channels = dict.fromkeys(edge["channel"] for edge in edges)
        links: list[Link] = [edge["link"] for edge in edges]
        latency_s, slowest = sum(link.latency_s for link in links), min(links, key=lambda link: link.bandwidth_bytes_per_s)
        route = Route(
            directions=tuple(hop for hop in hops if not devices.keys().isdisjoint(hop)),
            channels=tuple(channels),
            latency_s=latency_s,
            bandwidth_bytes_per_s=slowest.bandwidth_bytes_per_s,
            alias=False,
            loads=(1.0,) * len(channels),
            latency_error=sum(link.latency_s * link.latency_error for link in links) / latency_s if latency_s else 0.0,
            bandwidth_error=slowest.bandwidth_error,
        )
        line = self._machine.peer_transfers.get(f"{source}>{target}")
        return route if line is None else self._measured(route, line.latency_s, line.bytes_per_s)

    def _short_path(self, source: str, target: str) -> list[str]:
        """A path of one link, or the fastest of those over one place that is not the host; empty if there is none."""
        if (source, target) in self._edges:
            return [source, target]
        between = [place for place in self._ahead.get(source, ()) if place != HOST and (place, target) in self._edges]
        over = min(between, key=lambda place: self._edges[source, place]["weight"] + self._edges[place, target]["weight"], default="")
        return [source, over, target] if over else []

    @cached_property
    def _ahead(self) -> dict[str, list[str]]:
        """The places that a link leads to from each place."""
        ahead: dict[str, list[str]] = {}
        for source, target in self._edges:
            ahead.setdefault(source, []).append(target)
        return ahead

    def _near_path(self, source: str, target: str) -> list[str]:
        """The shortest path between devices that a network joins, sought in their own nodes only; empty for others."""
        machine = self._machine
        if not machine.has_network or not {source, target} <= self._devices.keys():
            return []
        homes = [next(iter(machine.by_node((end,)))) for end in (source, target)]
        for home in homes:
            if home not in self._near:
                self._near[home] = self._graphs[0].subgraph([*machine.node_places(home), NETWORK]).copy()
        first, last = (self._near[home] for home in homes)
        if first is last:
            return _shortest_path(first, source, target)
        out, back = _shortest_path(first, source, NETWORK), _shortest_path(last, NETWORK, target)
        return out + back[1:] if out and back else []

    def _measured(self, route: Route, latency_s: float, bytes_per_s: float) -> Route:
        """The route with a measured latency and rate. Its loads are reduced so that its channels allow the rate if nothing else passes."""
        loads = tuple(min(load, self._capacity[channel] / bytes_per_s) for channel, load in zip(route.channels, route.loads, strict=True))
        measured = route._replace(latency_s=latency_s, bandwidth_bytes_per_s=bytes_per_s, loads=loads)
        return measured._replace(latency_error=0.0, bandwidth_error=0.0)

    def transfers(self, pairs: tuple[tuple[str, str], ...], moved_bytes: int) -> tuple[Route, float]:
        """The route of concurrent transfers of this size between pairs of devices, which take as long as the slowest, and the bytes of
        each.
        """
        return self.transfer(*pairs[0], moved_bytes) if len(pairs) == 1 else (self._together(pairs, moved_bytes), float(moved_bytes))

    def transfer(self, source: str, target: str, moved_bytes: int) -> tuple[Route, float]:
        """The route of a transfer, and the bytes that it moves. A message between two processes takes its library's time, if measured."""
        route = self.route(source, target)
        parts = None if route.alias or HOST in (source, target) else message_times(self._machine, source, target, moved_bytes)
        return (route, float(moved_bytes)) if parts is None else self._timed(route, float(moved_bytes), *parts, moved_bytes)

    def _together(self, pairs: tuple[tuple[str, str], ...], moved_bytes: int) -> Route:
        """One route for transfers of as many bytes between several pairs of devices."""
        if (pairs, moved_bytes) not in self._groups:
            routes = [self.transfer(*ends, moved_bytes)[0] for ends in pairs]
            flow = Flow()
            flow.add(routes, 1.0)
            self._groups[pairs, moved_bytes] = Route(
                directions=tuple(flow.directions),
                channels=tuple(flow.loads),
                latency_s=max(route.latency_s for route in routes),
                bandwidth_bytes_per_s=1.0 / flow.slowest_s if flow.slowest_s else inf,
                alias=not flow.loads,
                loads=tuple(flow.loads.values()),
                latency_error=flow.latency_error,
                bandwidth_error=flow.bandwidth_error,
            )
        return self._groups[pairs, moved_bytes]

    def stated(self, source: str, target: str) -> Route | None:
        """The route over a link that the machine states between two places of one memory; None where nothing limits them."""
        if (source, target) not in self._edges:
            return None
        route = self.route(source, target)
        return None if route.alias or (route.bandwidth_bytes_per_s == inf and not route.latency_s) else route

    def collective(self, body: Collective, payload_bytes: float) -> tuple[Route, float]:
        """The route of a collective over `payload_bytes` of each device, and the bytes on its busiest channel.

        It takes its measured time, else that of the library's fastest protocol, whose kernel takes SMs in either case. On a machine with
        neither, its communication rounds (`rounds`) follow one another. A round takes as long as the slowest of its moves and the fullest
        of its channels.
        """
        known = self._timed_collectives.get((body, payload_bytes))
        if known is None:
            known = self._timed_collectives[body, payload_bytes] = self._collective(body, payload_bytes)
        return known

    def _collective(self, body: Collective, payload_bytes: float) -> tuple[Route, float]:
        if body.times > 1:  # one after another
            route, moved = self.collective(replace(body, times=1), payload_bytes)
            return route._replace(latency_s=route.latency_s * body.times), moved * body.times
        if body not in self._collectives:
            by_protocols = self._machine.protocols and (body.algorithm in SCALABLE or body.operation == ALL_TO_ALL)
            self._collectives[body] = self._by_protocols(body) if by_protocols else (*self._by_rounds(body), [])
        route, share, laws = self._collectives[body]
        parts = measured_times(self._machine, body, payload_bytes)
        if not laws:
            return (route, share * payload_bytes) if parts is None else self._timed(route, share * payload_bytes, *parts, payload_bytes)
        best = min(laws, key=lambda line: line.seconds(payload_bytes))
        latency_s, moving_s = parts or (best.latency_s, best.s_per_byte * payload_bytes)
        timed, moved = self._timed(route, share * payload_bytes, latency_s, moving_s, payload_bytes)
        errors = (route.latency_error, route.bandwidth_error), (best.protocol.latency_error, best.protocol.bandwidth_error)
        latency_error, bandwidth_error = (0.0, 0.0) if parts else map(max, *errors)
        drawn = held_share(body.operation, len(body.devices)) * payload_bytes
        return timed._replace(
            latency_error=latency_error,
            bandwidth_error=bandwidth_error,
            blocks=best.protocol.blocks,
            draws_bytes_per_s=drawn / moving_s if moving_s else 0.0,
        ), moved

    def _timed(self, route: Route, busiest: float, latency_s: float, moving_s: float, payload_bytes: float) -> tuple[Route, float]:
        """The route, but its bytes take `moving_s` after `latency_s`; and the bytes on its busiest channel."""
        if route.alias:
            library = (self._machine.library, "")  # a separate channel, so that such collectives run one after another
            self._capacity[library] = inf
            route, busiest = Route((library,), (library,), 0.0, inf, False, (1.0,)), float(payload_bytes)
        if not moving_s:
            return self._measured(route, latency_s, 1.0), 0.0  # no bytes, at any rate
        return self._measured(route, latency_s, busiest / moving_s), busiest

    def _by_rounds(self, body: Collective) -> tuple[Route, float]:
        """The route of a collective by its communication rounds, and the bytes on its busiest channel per byte of one device's data.

        Rounds with moves between the same devices, as all rounds of a ring are, take equally long and are computed once.
        """
        root = -1 if body.root == HOST else body.devices.index(body.root) if body.root else 0
        distinct = distinct_rounds(body.operation, body.algorithm, len(body.devices), root)
        directions: dict[tuple[str, str], None] = {}
        total: dict[tuple[str, str], float] = defaultdict(float)
        latency_s = moving_s = latency_error = bandwidth_error = 0.0
        for moves, times in distinct.items():
            load: dict[tuple[str, str], float] = defaultdict(float)
            slowest_s = longest_s = 0.0
            for target, source, whole in moves:
                route = self.route(*(HOST if rank < 0 else body.devices[rank] for rank in (source, target)))
                moved = 1.0 if whole else 1.0 / len(body.devices)
                directions |= dict.fromkeys(route.directions)
                longest_s = max(longest_s, route.latency_s)
                slowest_s = max(slowest_s, moved / route.bandwidth_bytes_per_s)
                latency_error, bandwidth_error = max(latency_error, route.latency_error), max(bandwidth_error, route.bandwidth_error)
                for channel, share in zip(route.channels, route.loads, strict=True):
                    load[channel] += moved * share
            latency_s += times * longest_s
            moving_s += times * max([slowest_s, *(moved / self._capacity[channel] for channel, moved in load.items())])
            for channel, moved in load.items():
                total[channel] += times * moved
        busiest = max(total.values(), default=0.0)
        if not busiest:
            return ALIAS_ROUTE, 0.0
        loads = tuple(moved / busiest for moved in total.values())
        bandwidth = busiest / moving_s
        return Route(
            directions=tuple(directions),
            channels=tuple(total),
            latency_s=latency_s,
            bandwidth_bytes_per_s=bandwidth,
            alias=False,
            loads=loads,
            latency_error=latency_error,
            bandwidth_error=bandwidth_error,
        ), busiest

    def _by_protocols(self, body: Collective) -> tuple[Route, float, list[Line]]:
        """The route of a library's collective, the bytes on its busiest channel per byte of one device's data, and its lines."""
        nodes = list(self._machine.by_node(body.devices).values())
        inside, across = Flow(), Flow()
        for own, other in zip(nodes, [*nodes[1:], nodes[0]], strict=True):
            # Rings in all orders use every link between two GPUs; over a switch, one ring stands for all.
            joined = own[:2] == own or tuple(own[:2]) in self._edges
            pairs = list(permutations(own, 2)) if joined else list(zip(own, [*own[1:], own[0]], strict=True))
            inside.add((self.route(*pair) for pair in pairs), len(own) / max(1, len(pairs)))
            if len(nodes) > 1:
                across.add((self.route(device, other[rank % len(other)]) for rank, device in enumerate(own)), 1.0)
        spread = Spread(len(body.devices), len(nodes), inside.seconds(self._capacity), across.seconds(self._capacity))
        total: dict[tuple[str, str], float] = defaultdict(float)
        for flow, sent in zip((inside, across), spread.sent(body.operation), strict=True):
            for channel, load in flow.loads.items():
                total[channel] += load * sent
        busiest = max(total.values(), default=0.0)
        if not busiest:
            return ALIAS_ROUTE, 0.0, []
        loads = tuple(load / busiest for load in total.values())
        # The errors of a network exceed those of the protocols, which were fitted within nodes.
        route = Route(
            directions=tuple(inside.directions | across.directions),
            channels=tuple(total),
            latency_s=0.0,
            bandwidth_bytes_per_s=inf,
            alias=False,
            loads=loads,
            latency_error=across.latency_error,
            bandwidth_error=across.bandwidth_error,
        )
        return route, busiest, lines(self._machine.protocols, body.operation, body.algorithm == TREE, spread)

    def alone_s(self, route: Route, moved_bytes: float) -> float:
        """Seconds that a transfer takes while no other moves."""
        if route.alias:
            return 0.0
        if not moved_bytes:
            return route.latency_s
        if id(route) not in self._rates:
            self._rates[id(route)] = route, max_min([route], self._capacity)[0]
        return route.latency_s + moved_bytes / self._rates[id(route)][1]

    def distinct(self, routes: Iterable[Route]) -> dict[int, Route]:
        """Each of `routes`, by its id, without the queues and channels that do not distinguish it from any other.

        One queue represents all that the same routes join, and one channel all channels of one bandwidth that they load equally. A
        collective of many devices uses thousands, of which only a few remain.
        """
        distinct = {id(route): route for route in routes}
        queues: dict[tuple[str, str], list[int]] = defaultdict(list)
        loads: dict[tuple[str, str], list[tuple[int, float]]] = defaultdict(list)
        for number, route in enumerate(distinct.values()):
            for direction in route.directions:
                queues[direction].append(number)
            for channel, load in zip(route.channels, route.loads, strict=True):
                loads[channel].append((number, load))
        kept_queues = {tuple(users): direction for direction, users in reversed(queues.items())}
        kept_channels = {(self._capacity[channel], *users): channel for channel, users in reversed(loads.items())}
        few, wide = frozenset(kept_queues.values()), frozenset(kept_channels.values())
        return {key: route.within(few, wide) for key, route in distinct.items()}

    def enter(self, transfer: Transfer, number: int, priority: int, route: Route, moved_bytes: float) -> None:
        """Queue `transfer` as execution `number`. A transfer that has begun is not overtaken."""
        transfer.number, transfer.route, transfer.bytes = number, route, moved_bytes
        transfer.order = (priority, self._env.now, number)
        transfer.start_s, transfer.moving, transfer.rate, transfer.done_bytes, transfer.freed_by = -1.0, False, 0.0, 0.0, -1
        for direction in route.directions:
            queue = self._queues.setdefault(direction, [])
            insort(queue, transfer, lo=bool(queue and queue[0].start_s >= 0.0))
        self._waiting.append(transfer)
        self._request_allocation()

    def _allocate(self, now: float) -> None:
        for transfer in sorted(self._waiting, key=lambda t: t.order):
            route = transfer.route
            if all(self._queues[d][0] is transfer for d in route.directions):
                self._waiting.remove(transfer)
                transfer.start_s, transfer.next_s = now, now + route.latency_s
                transfer.freed_by = max(self._freed_by.get(d, -1) for d in route.directions)
                self._started.append(transfer)
        for transfer in self._started:
            if not transfer.moving and transfer.next_s <= now:
                transfer.moving, transfer.anchor_s = True, now
        self._share(now)
        soonest = min((t.next_s for t in self._started), default=inf)
        self._timer = Timer(self._env, soonest, self._tick) if soonest < inf else None

    def _share(self, now: float) -> None:
        moving = [t for t in self._started if t.moving]
        routes = [t.route for t in moving]
        together = tuple(map(id, routes))  # comparing routes of thousands of channels takes long
        if together not in self._shared:  # an entry holds its routes, so that no others get their ids
            self._shared[together] = (routes, max_min(routes, self._capacity))
        for transfer, rate in zip(moving, self._shared[together][1], strict=True):
            if rate != transfer.rate:
                transfer.done_bytes += (now - transfer.anchor_s) * transfer.rate
                transfer.anchor_s, transfer.rate = now, rate
            transfer.next_s = transfer.anchor_s + max(0.0, transfer.bytes - transfer.done_bytes) / rate

    def _tick(self, timer: Event) -> None:
        if timer is not self._timer:
            return  # rates have changed since the timer was set
        now = self._env.now
        for transfer in [t for t in self._started if t.moving and t.next_s <= now]:
            self._started.remove(transfer)
            for direction in transfer.route.directions:
                self._queues[direction].remove(transfer)
                self._freed_by[direction] = transfer.number
            transfer.signal.at(now)
        self._request_allocation()


def _shortest_path(graph: "networkx.DiGraph", source: str, target: str) -> list[str]:
    """The nodes of the shortest path; empty if there is none."""
    import networkx

    try:
        return networkx.shortest_path(graph, source, target, weight="weight")
    except (networkx.NetworkXNoPath, networkx.NodeNotFound):
        return []
