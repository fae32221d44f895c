"""The machine a plan runs on: devices, their memories, host lanes and links. SI units throughout."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from traces.errors import UnknownNameError

if TYPE_CHECKING:
    from traces.collectives import CollectiveLaw
    from traces.profile import Transfer

#: The other end of links to the host's memory.
HOST = "host"
#: What joins nodes. On a machine that has it, every node has a host of its own, and `HOST` is that of the device at the other end.
NETWORK = "network"


@dataclass(frozen=True)
class Memory:
    """Memory that one or more devices share (partitions of one GPU share one).

    `cache_bytes` is the last-level cache that the cache model walks; `saturation_share` the share of SMs that alone saturates the
    bandwidth.
    """

    name: str
    size_bytes: int
    bandwidth_bytes_per_s: float
    cache_bytes: int
    saturation_share: float = 0.3


@dataclass(frozen=True)
class Device:
    """Something that runs tasks: a GPU, a partition of one, or a group of CPU cores (an SM is a core).

    `peak_flops` by precision (fp32, tf32, bf16, fp64). `priority_levels`: how many distinct levels the hardware has.
    `task_overhead_s`: time the executor adds to every task on the lane itself (CPU; on a GPU the host lane has it).
    `shared_overhead_s`: what an op call costs more while another worker of the device calls ops too. `wake_s`: from when a task is ready
    to its start by a worker that sleeps.
    """

    name: str
    kind: str  # "cpu" or "gpu"
    sms: int
    peak_flops: Mapping[str, float]
    memory: str
    priority_levels: int = 1
    task_overhead_s: float = 0.0
    shared_overhead_s: float = 0.0
    wake_s: float = 0.0


@dataclass(frozen=True)
class HostLane:
    """The thread that issues tasks to `devices` in plan order.

    `dispatch_s`: of a task whose cost has an `issue_s` (a calibrated machine), the executor's own part; else the whole, per launch.
    `node_gap_s` comes between two nodes of a graph on one stream, `cross_gap_s` between nodes on two, both on top of what the costs hold.
    `callback_s`: how long a stream that calls a function on the host (a task with body `Host`) stands still besides the body's duration.
    `call_s`: what issuing the call takes the host besides `dispatch_s`.
    """

    name: str
    devices: tuple[str, ...]
    dispatch_s: float
    record_s: float = 1e-6
    wait_s: float = 1e-6
    queue_depth: int = 1000
    graph_launch_s: float = 10e-6
    node_gap_s: float = 1e-6
    cross_gap_s: float = 2e-6
    graph_iterations: int = 4
    callback_s: float = 10e-6
    call_s: float = 0.0


@dataclass(frozen=True)
class Link:
    """A connection between two devices (or "host"). Links with one `channel` name share its bandwidth.

    `duplex`: both directions at full speed at once. `alias`: both ends lie in one memory; a transfer moves nothing.
    """

    source: str
    target: str
    latency_s: float
    bandwidth_bytes_per_s: float
    duplex: bool = True
    channel: str = ""
    alias: bool = False


@dataclass(frozen=True)
class Machine:
    """Devices, memories, host lanes and links. `sources` says where each figure comes from.

    `library`: what makes collectives between the devices ("nccl", "gloo"); "" where one process has them all, and plans spell
    collectives out. `collectives` (by `law_name`) and `lines` (by "SOURCE>TARGET") were measured: what a collective, or a transfer from one
    device to another, takes alone. Links then only decide what it shares.
    """

    name: str
    devices: tuple[Device, ...]
    memories: tuple[Memory, ...]
    hosts: tuple[HostLane, ...] = ()
    links: tuple[Link, ...] = ()
    sources: Mapping[str, str] = field(default_factory=dict)
    library: str = ""
    collectives: "Mapping[str, CollectiveLaw]" = field(default_factory=dict)
    lines: "Mapping[str, Transfer]" = field(default_factory=dict)

    @cached_property
    def _by_name(self) -> dict[str, Device]:
        return {device.name: device for device in self.devices}

    @cached_property
    def _memories(self) -> dict[str, Memory]:
        return {memory.name: memory for memory in self.memories}

    @cached_property
    def _hosts(self) -> dict[str, HostLane]:
        return {name: host for host in self.hosts for name in host.devices}

    def device(self, name: str) -> Device:
        """The device called `name`. Raises UnknownNameError."""
        try:
            return self._by_name[name]
        except KeyError:
            raise UnknownNameError("device", name, list(self._by_name)) from None

    def memory(self, device: str) -> Memory:
        """The memory of a device."""
        return self._memories[self.device(device).memory]

    def host(self, device: str) -> HostLane | None:
        """The host lane that issues to a device; None where dispatch is part of the task (CPU)."""
        return self._hosts.get(device)

    def memory_name(self, place: str) -> str:
        """What tells the memories of devices, and of the host, apart: a CPU's is the host's."""
        if place == HOST:
            return next((d.memory for d in self.devices if d.kind == "cpu"), HOST)
        return self.device(place).memory

    def stated(self, source: str, target: str) -> Link | None:
        """The link from one place to the other that is no alias; None where there is none."""
        way = (source, target)
        return next((link for link in self.links if (link.source, link.target) == way and not link.alias), None)

    def limited(self, size_bytes: float | None) -> "Machine":
        """The machine with no memory of more than so many bytes (None: as it is). Devices that share a memory share its limit."""
        if size_bytes is None:
            return self
        return replace(self, memories=tuple(replace(each, size_bytes=min(each.size_bytes, int(size_bytes))) for each in self.memories))

    def nodes(self, devices: Iterable[str]) -> int:
        """How many nodes the devices are on: those of one are joined by other ways than the network."""
        if NETWORK not in self.graph:
            return 1
        return len({self._node_of[device] for device in devices})

    @cached_property
    def _node_of(self) -> dict[str, int]:
        import networkx

        graph = self.graph.to_undirected()
        graph.remove_nodes_from([HOST, NETWORK])
        return {name: node for node, joined in enumerate(networkx.connected_components(graph)) for name in joined}

    @cached_property
    def graph(self):
        """The links as a networkx DiGraph whose edges carry `link`."""
        import networkx

        graph = networkx.DiGraph()
        graph.add_nodes_from(self._by_name)
        for link in self.links:
            graph.add_edge(link.source, link.target, link=link)
        return graph
