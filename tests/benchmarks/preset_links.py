"""The error of all-reduces on `2xdgx-a100`, against Vidur's measurements: python -m tests.benchmarks preset-links.

The errors of links in `machines.json` come from here, by the rounds of a ring over the links alone: of latencies from small all-reduces, of
bandwidths from large ones. Beside them, those by the library's protocols, which were fitted on other measurements (`protocols`).
"""

import math
from dataclasses import replace
from statistics import fmean

from simulator.engine.clock import Clock
from simulator.engine.links import Links
from simulator.machine.machine import Machine
from simulator.machine.presets import load_machine
from simulator.plan.bodies.copy import Collective
from tests.benchmarks.collectives import Sample, all_reduces

#: Bytes below which latency decides, and from which on bandwidth does.
SMALL_BYTES, LARGE_BYTES = 2**16, 16e6
GPUS_PER_NODE = 8


def mean_square(machine: Machine, devices: tuple[str, ...], samples: list[Sample]) -> float:
    """Mean square of the logarithms of predicted over measured seconds."""
    links, body = Links(Clock(), machine), Collective("all-reduce", devices)
    errors = []
    for sample in samples:
        route, moved = links.collective(body, int(sample.size))
        errors.append(math.log(links.alone_s(route, moved) / sample.seconds))
    return fmean(error * error for error in errors)


def main() -> None:
    """Print a line for each number of ranks, and the root mean square over them, in which each counts the same."""
    machine = load_machine("2xdgx-a100")
    for how, priced in (("links", replace(machine, protocols=())), ("protocols", machine)):
        print(f"by {how}")
        compare(priced)


def compare(machine: Machine) -> None:
    """The lines of one machine."""
    names = [device.name for device in machine.devices]
    pooled: dict[tuple[int, str], list[float]] = {}
    for (ranks, nodes), samples in all_reduces().items():
        devices = tuple(names[node * GPUS_PER_NODE + i] for node in range(nodes) for i in range(ranks // nodes))
        sizes = {"latency": [s for s in samples if s.size < SMALL_BYTES], "bandwidth": [s for s in samples if s.size >= LARGE_BYTES]}
        for what, chosen in sizes.items():
            square = mean_square(machine, devices, chosen)
            pooled.setdefault((nodes, what), []).append(square)
            print(f"{ranks:2} ranks on {nodes} nodes, {what}: {math.sqrt(square):.2f} of {len(chosen)} sizes")
    for (nodes, what), squares in pooled.items():
        print(f"{nodes} nodes, {what}: {math.sqrt(fmean(squares)):.2f}")


if __name__ == "__main__":
    main()
