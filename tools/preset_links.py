"""The error of all-reduces within and between nodes: python -m tools preset-links.

On `2xdgx-a100`, against Vidur's measurements: the errors of links in `machines.json` come from here, by the rounds of a ring over the links
alone: of latencies from small all-reduces, of bandwidths from large ones. Next to them, those by the library's protocols, which were fitted
on other measurements (`protocols`). Vidur does not state its network; the bus bandwidth that it reaches is printed, which is what rings
send between nodes.

On presets of 16 GPUs with the network that a source states, against all-reduces of nccl-tests between two nodes of eight (`two_nodes.csv`,
float32, out of place): Oracle's README of oci-hpc-oke (16 adapters of 100 Gb/s a node), aws-samples' README of micro-benchmarks/nccl-tests
(EFA), Red Hat's "Spectrum-X Host Configuration on OpenShift" (RoCE), lessizzmore/create-a3mega-ztan-fork (GPUDirect-TCPXO). One figure is
fitted on these, and only on Red Hat's: `network_tree_hop_s` of the switch, by its all-reduces from 4 MB on.
"""

import csv
import gzip
import math
import statistics
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from simulator.engine.clock import Clock
from simulator.engine.links import Links
from simulator.machine.machine import NETWORK, Machine
from simulator.machine.presets import load_machine
from simulator.plan.bodies.copy import Collective
from tests.support.shared_data import shared_folder

#: Bytes below which latency decides, and from which on bandwidth does.
SMALL_BYTES, LARGE_BYTES = 2**16, 16e6
#: The same of all-reduces between nodes that reach every adapter.
ALL_BYTES = 2**26
GPUS_PER_NODE = 8
VIDUR = "a100_dgx_all_reduce.csv.gz"
NODES = Path(__file__).with_name("two_nodes.csv")


class Sample(NamedTuple):
    """The median seconds of all-reduces of one size in bytes."""

    size: float
    seconds: float


def all_reduces() -> dict[tuple[int, int], list[Sample]]:
    """Vidur's samples by (ranks, nodes), in order of size; empty without the shared data."""
    folder = shared_folder("collectives")
    if folder is None or not (folder / VIDUR).is_file():
        return {}
    found = defaultdict(dict)
    with gzip.open(folder / VIDUR, "rt") as file:
        for row in csv.DictReader(file):
            ranks, per_node = int(row["num_workers"]), int(row["devices_per_node"])
            found[ranks, ranks // per_node][float(row["size"])] = float(row["time_stats.all_reduce.median"]) * 1e-3
    return {name: [Sample(*each) for each in sorted(found[name].items())] for name in sorted(found, key=lambda name: name[::-1])}


class Cluster(NamedTuple):
    """Two nodes of eight GPUs, and the network of each GPU in one direction."""

    source: str
    preset: str
    bytes_per_s: float

    @property
    def machine(self) -> Machine:
        """The preset with this network."""
        return with_network(load_machine(f"{2 * GPUS_PER_NODE}x{self.preset}"), self.bytes_per_s)


def clusters() -> dict[Cluster, list[Sample]]:
    """The committed measurements."""
    found: dict[Cluster, list[Sample]] = defaultdict(list)
    with NODES.open(newline="") as file:
        for row in csv.DictReader(file):
            cluster = Cluster(row["source"], row["preset"], float(row["gbit_per_s"]) / 8 * 1e9)
            found[cluster].append(Sample(float(row["bytes"]), float(row["us"]) * 1e-6))
    return found


def with_network(machine: Machine, bytes_per_s: float) -> Machine:
    """The machine whose adapters have this many bytes per second for each of their GPUs."""
    adapters = sum(link.target == NETWORK for link in machine.links)
    rate = bytes_per_s * len(machine.devices) / adapters
    links = (replace(link, bandwidth_bytes_per_s=rate) if NETWORK in (link.source, link.target) else link for link in machine.links)
    return replace(machine, links=tuple(links))


def errors(machine: Machine, devices: tuple[str, ...], samples: list[Sample]) -> list[float]:
    """The logarithms of predicted over measured seconds."""
    links, body = Links(Clock(), machine), Collective("all-reduce", devices)
    return [math.log(links.alone_s(*links.collective(body, int(sample.size))) / sample.seconds) for sample in samples]


def main() -> None:
    """Print a line for each number of ranks, and the root mean square over them, in which each counts the same; then the clusters."""
    machine = load_machine("2xdgx-a100")
    for how, priced in (("links", replace(machine, protocols=())), ("protocols", machine)):
        print(f"by {how}")
        compare(priced)
    for (ranks, nodes), samples in all_reduces().items():
        rates = [2e-9 * (ranks - 1) / ranks * sample.size / sample.seconds for sample in samples if sample.size >= LARGE_BYTES]
        print(f"{ranks:2} ranks on {nodes} nodes: {min(rates):.1f} to {max(rates):.1f} GB/s of bus bandwidth")
    ranges = {"to 64 KB": (0, SMALL_BYTES), "to 16 MB": (SMALL_BYTES, 2**24), "from 64 MB": (ALL_BYTES - 1, math.inf)}
    for cluster, samples in clusters().items():
        devices = tuple(device.name for device in cluster.machine.devices)
        found = errors(cluster.machine, devices, samples)
        shown = []
        for name, (low, high) in ranges.items():
            own = [error for error, sample in zip(found, samples, strict=True) if low < sample.size <= high]
            shown.append(f"{name} {math.expm1(statistics.median(own)):+.0%}")
        print(f"{cluster.source}, 16 {cluster.preset}, {8e-9 * cluster.bytes_per_s:.0f} Gb/s for each:", ", ".join(shown))


def compare(machine: Machine) -> None:
    """The lines of one machine."""
    names = [device.name for device in machine.devices]
    pooled: dict[tuple[int, str], list[float]] = {}
    for (ranks, nodes), samples in all_reduces().items():
        devices = tuple(names[node * GPUS_PER_NODE + i] for node in range(nodes) for i in range(ranks // nodes))
        sizes = {"latency": [s for s in samples if s.size < SMALL_BYTES], "bandwidth": [s for s in samples if s.size >= LARGE_BYTES]}
        for what, chosen in sizes.items():
            found = errors(machine, devices, chosen)
            square = fmean(error * error for error in found)
            pooled.setdefault((nodes, what), []).append(square)
            middle = math.exp(statistics.median(found))
            print(f"{ranks:2} ranks on {nodes} nodes, {what}: {math.sqrt(square):.2f} of {len(chosen)} sizes, predicted {middle:.2f}x")
    for (nodes, what), squares in pooled.items():
        print(f"{nodes} nodes, {what}: {math.sqrt(fmean(squares)):.2f}")


if __name__ == "__main__":
    main()
