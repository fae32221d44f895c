"""What `machines.json` holds: presets' figures, each with its source."""

import json
from functools import cache
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from simulator.machine.protocols import Form

DATA = Path(__file__).with_name("machines.json")
Sourced = tuple[float, str]
SourcedCount = tuple[int, str]


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid")


class GpuEntry(_Entry):
    """One model of GPU. `sm`: the fields of `SmLimits`, or nothing. `clock_hz`, `power_w`: as in `Device`, of GPUs with tensor cores."""

    product: str
    sms: SourcedCount
    peak_flops: dict[str, Sourced]
    peak_reached: Sourced = (1.0, "")
    memory_bytes: SourcedCount
    bandwidth_bytes_per_s: Sourced
    bandwidth_reached: Sourced
    cache_bytes: SourcedCount
    priority_levels: SourcedCount
    saturation_share: Sourced
    sm: dict[str, SourcedCount] = {}
    clock_hz: Sourced = (0.0, "")
    power_w: Sourced = (0.0, "")


class HostEntry(_Entry):
    """Times of the issuing thread; fields as in HostLane."""

    dispatch_s: Sourced
    record_s: Sourced
    wait_s: Sourced
    queue_depth: SourcedCount
    graph_launch_s: Sourced
    node_gap_s: Sourced
    cross_gap_s: Sourced
    callback_s: Sourced
    loop_s: Sourced
    forward_step_s: Sourced
    backward_step_s: Sourced
    batch_s: Sourced
    sample_s: Sourced


class LinkEntry(_Entry):
    """One kind of link between the GPUs of a machine. A route over several links has the sum of their latencies."""

    kind: Literal["host", "pairs", "switch", "bridge", "riser", "uplink", "network"]
    latency_s: Sourced
    bandwidth_bytes_per_s: Sourced
    duplex: bool
    channel: str = ""
    group: int = 0


class MachineEntry(_Entry):
    """`count` GPUs of one model, a host, and links. `pipe_bytes_per_s`: as in Machine."""

    gpu: str
    count: int
    host: str
    links: list[LinkEntry]
    pipe_bytes_per_s: Sourced = (0.0, "")


class ProtocolEntry(_Entry):
    """A way in which a library runs collectives; fields as in `protocols.Protocol`."""

    form: Form
    start_s: Sourced
    hop_s: Sourced
    share: Sourced
    own_share: Sourced = (0.0, "")
    network_hop_s: Sourced
    network_tree_hop_s: Sourced
    network_share: Sourced


class NodeEntry(_Entry):
    """The usual form of a node of these `gpus`.

    `size`: GPUs of a full node. `links`: without its `network` if there is only one node. `protocols`: those of collectives, whose times
    within a node are multiplied by `latency`. `channels`: blocks of the kernel that runs a collective, by the form of the protocol.
    """

    gpus: list[str]
    size: int
    protocols: list[str]
    latency: Sourced
    channels: dict[str, SourcedCount]
    links: list[LinkEntry]


class Data(BaseModel):
    """The whole of `machines.json`."""

    sources: dict[str, str]
    errors: dict[str, Sourced]
    error_sources: dict[str, str]
    gpus: dict[str, GpuEntry]
    hosts: dict[str, HostEntry]
    protocols: dict[str, ProtocolEntry]
    nodes: dict[str, NodeEntry]
    machines: dict[str, MachineEntry]

    def node_of(self, gpu: str) -> NodeEntry:
        """The usual node of a GPU."""
        return next(node for node in self.nodes.values() if gpu in node.gpus)


@cache
def data() -> Data:
    """The committed presets."""
    return Data.model_validate(json.loads(DATA.read_text()))
