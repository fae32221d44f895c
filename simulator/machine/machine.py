"""The machine a plan runs on: devices, their memories, host lanes and links. SI units throughout."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Final, Literal

from simulator.machine.protocols import Protocol
from traces.errors import Code, SchedcastError, UnknownNameError

if TYPE_CHECKING:
    from traces.documents.collectives import CollectiveLaw
    from traces.documents.profile import Profile, Transfer

#: The other end of links to the host's memory.
HOST = "host"
#: The network between nodes. On a machine with one, every node has its own host, and `HOST` means that of the device at the other end.
NETWORK = "network"
#: How a device receives what another one sends (`Machine.receives`).
Receives = Literal["free", "blocking", "late"]
FREE: Final = "free"
BLOCKING: Final = "blocking"
LATE: Final = "late"


@dataclass(frozen=True)
class Memory:
    """Memory of one device, or shared by several (partitions of one GPU).

    `cache_bytes`: size of the last-level cache that the cache model simulates. `saturation_share`: fraction of the SMs that saturates the
    bandwidth. `reached`: the share of a data sheet's bandwidth that kernels reach, relative to HBM, whose share is in the efficiencies;
    1 for a measured bandwidth.
    """

    name: str
    size_bytes: int
    bandwidth_bytes_per_s: float
    cache_bytes: int
    saturation_share: float = 0.3
    reached: float = 1.0


#: Threads of a warp, and the units in which an SM gives registers to a warp and shared memory to a block (bytes).
_WARP, _REGISTER_UNIT, _SHARED_UNIT = 32, 256, 128


@dataclass(frozen=True)
class SmLimits:
    """The limits of one SM over all resident blocks together: `threads`, `blocks`, `registers` and `shared_bytes`.

    `schedulers`: each has an equal part of the registers, and a warp's registers are in one part.
    """

    threads: int
    blocks: int
    registers: int
    shared_bytes: int
    schedulers: int = 4

    def resident(self, threads: int, registers: int, shared_bytes: int) -> int:
        """How many blocks of a kernel are resident on one SM at a time, at least 1. `threads` of a block; `registers` of a thread, 0:
        unknown.

        >>> SmLimits(threads=2048, blocks=32, registers=65536, shared_bytes=233472).resident(threads=256, registers=64, shared_bytes=0)
        4
        """
        warps = -(-threads // _WARP)
        limits = [self.blocks, self.threads // (warps * _WARP)]
        if registers:
            per_warp = -(-registers * _WARP // _REGISTER_UNIT) * _REGISTER_UNIT
            limits.append(self.registers // self.schedulers // per_warp * self.schedulers // warps)
        if shared_bytes:
            limits.append(self.shared_bytes // (-(-shared_bytes // _SHARED_UNIT) * _SHARED_UNIT))
        return max(1, min(limits))


@dataclass(frozen=True)
class Device:
    """A GPU, a partition of one, or a group of CPU cores (an SM is then a core).

    `peak_flops`: by precision (fp32, tf32, bf16, fp16, fp64). `priority_levels`: number of distinct levels of the hardware.
    `task_overhead_s`: time that the executor adds to every task on the lane (CPU; on a GPU the host lane has it).
    `shared_overhead_s`: extra time of an op call while another worker of the device also calls ops.
    `wake_s`: time from when a task is ready until a sleeping worker starts it.
    `threads`: if above 0, the number of threads that work on one task together, as plain PyTorch uses a CPU; such a device has one SM.
    `waiting`: what these threads do between ops, if the user's OMP_WAIT_POLICY is set: "active" or "passive".
    `workspace_bytes`: memory that stays allocated for each lane on which a matrix product has run.
    `reached`: the share of a data sheet's peaks that any kernel can reach, where it is known to be below 1.
    `sm`: the limits of an SM, if blocks per SM are to follow from the resources of a block (`efficiencies.geometry`).
    `clock_hz`, `power_w`: of a GPU, the boost clock and the power limit of its data sheet; 0: unknown.
    `errors`: as in `HostLane`.
    """

    name: str
    kind: str  # "cpu" or "gpu"
    sms: int
    peak_flops: Mapping[str, float] = field(hash=False)
    memory: str
    priority_levels: int = 1
    task_overhead_s: float = 0.0
    shared_overhead_s: float = 0.0
    wake_s: float = 0.0
    threads: int = 0
    waiting: str = ""
    workspace_bytes: int = 0
    reached: float = 1.0
    errors: Mapping[str, float] = field(default_factory=dict, hash=False)
    sm: SmLimits | None = None
    clock_hz: float = 0.0
    power_w: float = 0.0

    @property
    def share_name(self) -> str:
        """The part of the device that a task uses, as cost keys name it: its SMs, or the threads that work on it together (`2-threads`)."""
        if not self.threads:
            return str(self.sms)
        return "-".join(filter(None, (f"{self.threads}-threads", self.waiting)))


@dataclass(frozen=True)
class HostLane:
    """The thread that issues tasks to `devices` in plan order.

    `dispatch_s`: the executor's own time to issue a task whose cost has an `issue_s` (a calibrated machine); otherwise the time per launch.
    `switch_s`: time to switch to another lane, needed at every change of the lane and at the start of every period.
    `graph_launch_s`: time to launch a CUDA graph; `graph_node_s` more for each node, and `graph_branch_s` for each lane beyond the first.
    `node_gap_s`, `cross_gap_s`: gaps between two nodes of a CUDA graph on one stream and on two streams, on top of the measured costs.
    `launch_gap_s`: how much longer a kernel that is launched individually takes than its measured cost, which includes the gap between two
    nodes of a graph; negative if the gap between launched kernels is shorter.
    `callback_s`: time for which a stream that calls a host function (a task with body `Host`) is blocked, in addition to the body's
    duration.
    `call_s`: host time to issue such a call, in addition to `dispatch_s`.
    `loop_s`: time that PyTorch's own loop (modules, autograd) adds to issuing an op, if no profile has measured it.
    `forward_step_s`, `backward_step_s`: host time per time step of a recurrent layer in the one call of cuDNN that launches the kernels of
    all steps, if no profile has measured it.
    `batch_s`, `sample_s`: time between two steps of a training loop to load a batch, and additional time per sample. A predicted step
    does not contain it.
    `errors`: by field, one standard deviation of the logarithm of a time that was not measured; a field without one counts as exact.
    """

    name: str
    devices: tuple[str, ...]
    dispatch_s: float
    record_s: float = 1e-6
    wait_s: float = 1e-6
    switch_s: float = 0.0
    queue_depth: int = 1000
    graph_launch_s: float = 10e-6
    graph_node_s: float = 0.0
    graph_branch_s: float = 0.0
    node_gap_s: float = 1e-6
    cross_gap_s: float = 2e-6
    launch_gap_s: float = 0.0
    graph_iterations: int = 4
    callback_s: float = 10e-6
    call_s: float = 0.0
    loop_s: float = 0.0
    forward_step_s: float = 0.0
    backward_step_s: float = 0.0
    batch_s: float = 0.0
    sample_s: float = 0.0
    errors: Mapping[str, float] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class Link:
    """A connection between two devices, or between a device and "host". Links with the same `channel` share its bandwidth.

    `duplex`: both directions run at full bandwidth at the same time. `alias`: both ends are in one memory, so a transfer moves nothing.
    `latency_error`, `bandwidth_error`: one standard deviation of the logarithm of an assumed figure; 0 if it was measured or stated.
    """

    source: str
    target: str
    latency_s: float
    bandwidth_bytes_per_s: float
    duplex: bool = True
    channel: str = ""
    alias: bool = False
    latency_error: float = 0.0
    bandwidth_error: float = 0.0


@dataclass(frozen=True)
class Machine:
    """Devices, memories, host lanes and links. `sources`: where each figure comes from.

    `library`: the library that runs collectives and messages between the devices, each of which is a process ("nccl", "gloo"); "" if one
    process has all devices and plans contain the copies of each collective. `collectives` (by `law_name`) and `peer_transfers` (by
    "SOURCE>TARGET"): measured times of a collective or message, or of a transfer between two devices, that runs alone. If it was measured,
    links only determine what it shares. Otherwise, `protocols` says how the library uses the links.

    `receives`: "free" (a transfer needs only the link to its target), or "blocking": as with NCCL, two devices exchange messages in both
    directions on one stream of each device, where the messages run one after another in the order in which the device issues them. A
    receive occupies its stream until its bytes have arrived. It is issued where the plan has the transfer or, with "late", right before the
    first task that reads the received tensor; see `plan.messages`.

    `whole`: if the devices are partitions of one GPU, the machine with that GPU unsplit. A plan may use that device instead.

    `plain`: the machine as plain PyTorch uses it, if that differs (`for_pytorch`): all cores of a CPU work on one op at a time.

    `rated`: if measured figures have replaced those of data sheets, the machine with the latter: the table's efficiencies are shares of
    them.

    `pipe_bytes_per_s`: the single bandwidth of all transfers in a model without links (DeePa's `cost=paper`), if a paper states it; 0: the
    lowest between two devices.

    >>> ram = Memory("ram", size_bytes=2**30, bandwidth_bytes_per_s=1e11, cache_bytes=2**25)
    >>> machine = Machine("two cores", (Device("cpu:0", "cpu", sms=2, peak_flops={"fp32": 1e11}, memory="ram"),), (ram,))
    >>> machine.memory("cpu:0").size_bytes, machine.with_memory_limit(2**20).memory("cpu:0").size_bytes
    (1073741824, 1048576)
    """

    name: str
    devices: tuple[Device, ...]
    memories: tuple[Memory, ...]
    hosts: tuple[HostLane, ...] = ()
    links: tuple[Link, ...] = ()
    sources: Mapping[str, str] = field(default_factory=dict)
    library: str = ""
    receives: Receives = FREE
    collectives: "Mapping[str, CollectiveLaw]" = field(default_factory=dict)
    peer_transfers: "Mapping[str, Transfer]" = field(default_factory=dict)
    protocols: tuple[Protocol, ...] = ()
    whole: "Machine | None" = None
    plain: "Machine | None" = None
    rated: "Machine | None" = None
    pipe_bytes_per_s: float = 0.0

    @property
    def for_pytorch(self) -> "Machine":
        """This machine as plain PyTorch uses it."""
        unsplit = self.whole or self
        return unsplit.plain or unsplit

    @cached_property
    def for_parallel_loops(self) -> "Machine":
        """This machine as PyTorch's own loop uses it with a process on each device: none of our executor's workers."""
        unsplit = self.whole or self
        own = [replace(device, task_overhead_s=0.0, shared_overhead_s=0.0, wake_s=0.0, errors={}) for device in unsplit.devices]
        return replace(unsplit, devices=tuple(own), hosts=(unsplit.plain or unsplit).hosts)

    def for_devices(self, devices: Iterable[str]) -> "Machine":
        """This machine, or its variant that has `devices`: the unsplit GPU, or the CPU as plain PyTorch uses it."""
        if self._by_name.keys().isdisjoint(devices):
            for variant in filter(None, (self.whole, self.plain)):
                if not variant._by_name.keys().isdisjoint(devices):
                    return variant
        return self

    @cached_property
    def layout(self) -> tuple:
        """What a plan that does not use costs may depend on. Machines that differ only in rates and times have equal ones."""
        return (
            tuple((d.name, d.kind, d.sms, d.memory, d.priority_levels, d.threads, d.waiting, d.workspace_bytes) for d in self.devices),
            tuple((memory.name, memory.size_bytes, memory.cache_bytes) for memory in self.memories),
            tuple((host.name, host.devices) for host in self.hosts),
            tuple((link.source, link.target, link.duplex, link.channel, link.alias) for link in self.links),
            (self.library, self.receives),
        )

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
        """The device called `name`. Raises UnknownNameError if there is none."""
        if name in self._by_name:  # most are, and simulations ask often
            return self._by_name[name]
        try:
            return self.for_devices((name,))._by_name[name]
        except KeyError:
            raise UnknownNameError("device", name, list(self._by_name)) from None

    def memory(self, device: str) -> Memory:
        """The memory of a device."""
        return self._memories[self.device(device).memory]

    def host(self, device: str) -> HostLane | None:
        """The host lane that issues to a device; None if dispatch is part of the task (CPU)."""
        return self._hosts.get(device) if device in self._by_name else self.for_devices((device,))._hosts.get(device)

    def memory_name(self, place: str) -> str:
        """The name of the memory of a device or of the host. A CPU and the host share one memory."""
        if place == HOST:
            return next((d.memory for d in self.devices if d.kind == "cpu"), HOST)
        return self.device(place).memory

    def link_between(self, source: str, target: str) -> Link | None:
        """The link from `source` to `target` that moves bytes; None if there is none or it is an alias."""
        return self._moving_links.get((source, target))

    @cached_property
    def _moving_links(self) -> dict[tuple[str, str], Link]:
        """The first link of each pair of ends that moves bytes."""
        return {(link.source, link.target): link for link in reversed(self.links) if not link.alias}

    def with_memory_limit(self, size_bytes: float | None) -> "Machine":
        """The machine with every memory limited to `size_bytes` (None: no limit). Devices that share a memory share its limit."""
        if size_bytes is None:
            return self
        memories = tuple(replace(memory, size_bytes=int(min(memory.size_bytes, size_bytes))) for memory in self.memories)
        whole, plain = (variant and variant.with_memory_limit(size_bytes) for variant in (self.whole, self.plain))
        return replace(self, memories=memories, whole=whole, plain=plain)

    def with_network(self, bytes_per_s: float | None) -> "Machine":
        """The machine whose network gives each device this rate in each direction (None: its own). Its latency stays.

        An adapter that several devices share has the rate of all of them. Raises SchedcastError for a machine of one node.

        >>> from simulator.machine.presets import load_machine
        >>> machine = load_machine("16xa100").with_network(6.25e9)  # two GPUs share an adapter
        >>> {link.bandwidth_bytes_per_s for link in machine.links if NETWORK in (link.source, link.target)}
        {12500000000.0}
        """
        if bytes_per_s is None:
            return self
        if not self.has_network:
            raise SchedcastError(
                f"machine {self.name} is one node, which has no network between nodes; name several, such as 16xh100", Code.DEVICES
            )
        sharing = Counter(link.target for link in self.links if link.source in self._by_name)

        def with_rate(link: Link) -> Link:
            if NETWORK not in (link.source, link.target):
                return link
            adapter = link.source if link.target == NETWORK else link.target
            return replace(link, bandwidth_bytes_per_s=bytes_per_s * max(1, sharing[adapter]), bandwidth_error=0.0)

        plain, rated = (variant and variant.with_network(bytes_per_s) for variant in (self.plain, self.rated))
        return replace(self, links=tuple(map(with_rate, self.links)), plain=plain, rated=rated)

    def nodes(self, devices: Iterable[str]) -> int:
        """Number of nodes that the devices are on. Devices of one node are connected without the network."""
        return len(self.by_node(devices))

    def by_node(self, devices: Iterable[str]) -> dict[int, list[str]]:
        """The devices of each node, in their order, by the node's number. Without a network all are on node 0."""
        nodes: dict[int, list[str]] = {}
        for device in devices:
            nodes.setdefault(self._node_of[device], []).append(device)
        return nodes

    @property
    def priority_levels(self) -> int:
        """Levels of priority that every device has."""
        return min(device.priority_levels for device in self.devices)

    @property
    def node_size(self) -> int:
        """The number of devices of the first node."""
        return len(next(iter(self.by_node(device.name for device in self.devices).values())))

    def node_places(self, node: int) -> list[str]:
        """The devices, switches and bridges of a node."""
        return [place for place, own in self._node_of.items() if own == node]

    @cached_property
    def has_network(self) -> bool:
        """Whether a network joins nodes."""
        return any(NETWORK in (link.source, link.target) for link in self.links)

    @cached_property
    def _node_of(self) -> dict[str, int]:
        if not self.has_network:
            return dict.fromkeys(self._by_name, 0)
        import networkx

        graph = self.graph.to_undirected()
        graph.remove_nodes_from([HOST, NETWORK])
        return {name: node for node, connected in enumerate(networkx.connected_components(graph)) for name in connected}

    @cached_property
    def graph(self):
        """The links as a networkx DiGraph. Each edge has its `Link` as attribute `link`."""
        import networkx

        graph = networkx.DiGraph()
        graph.add_nodes_from(self._by_name)
        for link in self.links:
            graph.add_edge(link.source, link.target, link=link)
        return graph


# Splits one GPU into partitions that work as separate devices with disjoint SMs and one memory.


#: The SM count of a partition is a multiple of this (green contexts on Hopper).
SMS_PER_STEP = 8


def split(whole: Machine, count: int, profile: "Profile | None" = None) -> Machine:
    """`count` equal partitions of a machine with one GPU.

    Links between partitions are aliases and move nothing; links to the host are shared. A partition has as many SMs as the profile says the
    driver gave it, otherwise the largest multiple of SMS_PER_STEP that fits. Raises SchedcastError if the GPU has too few SMs.

    >>> from simulator.machine.presets import load_machine
    >>> [(device.name, device.sms) for device in split(load_machine("h100"), 2).devices]
    [('cuda:0/0', 64), ('cuda:0/1', 64)]
    """
    gpu = whole.devices[0]
    measured = profile.partition_sms.get(str(count)) if profile is not None else None
    sms = measured or _sms_per_partition(gpu.sms, count)
    names = [f"{gpu.name}/{index}" for index in range(count)]
    peaks = {precision: flops * sms / gpu.sms for precision, flops in gpu.peak_flops.items()}
    links = [
        replace(link, source=source, target=target, channel=link.channel or f"{link.source}>{link.target}")
        for link in whole.links
        for name in names
        for source, target in [tuple(name if end == gpu.name else end for end in (link.source, link.target))]
    ]
    bandwidth = whole.memories[0].bandwidth_bytes_per_s
    links += [Link(a, b, 0.0, bandwidth, alias=True) for a in names for b in names if a != b]
    note = f"{sms} of {gpu.sms}: " + ("as the driver split them" if measured else f"the largest multiple of {SMS_PER_STEP} that fits")
    return replace(
        whole,
        devices=tuple(replace(gpu, name=name, sms=sms, peak_flops=peaks) for name in names),
        hosts=tuple(replace(host, devices=tuple(names)) for host in whole.hosts),
        links=tuple(links),
        sources={**whole.sources, "sms": note, "peak_flops": "that of the whole GPU by the share of its SMs"},
        whole=whole,
        rated=whole.rated and split(whole.rated, count, profile),
    )


def _sms_per_partition(sms: int, count: int) -> int:
    if count < 1:
        raise SchedcastError(f"{count} partitions requested; expected at least 1", Code.DEVICES)
    per_partition = sms // count // SMS_PER_STEP * SMS_PER_STEP
    if not per_partition:
        most = sms // SMS_PER_STEP
        raise SchedcastError(
            f"{count} partitions requested; {sms} SMs give at most {most} of {SMS_PER_STEP} SMs; choose 1 to {most}", Code.DEVICES
        )
    return per_partition
