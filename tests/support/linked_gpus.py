"""Machines of several GPUs with links as in presets, by default at 400 bytes/s."""

from dataclasses import replace

from simulator.engine.simulation import simulate
from simulator.machine.machine import HOST, Link, Machine
from simulator.machine.presets import LinkEntry, MachineEntry, preset
from tests.support.tiny import build, copy, rows
from tests.support.tiny import gpu as tiny_gpu

LATENCY_S, BYTES_PER_S = 0.25, 400.0


def link(kind: str, group: int = 0, bandwidth: float = BYTES_PER_S, latency_s: float = LATENCY_S, duplex: bool = True) -> LinkEntry:
    """A link entry as in `machines.json`."""
    return LinkEntry(kind=kind, group=group, latency_s=(latency_s, "eager"), bandwidth_bytes_per_s=(bandwidth, "eager"), duplex=duplex)


def linked_gpus(count: int, *links: LinkEntry) -> Machine:
    """A machine of `count` GPUs with the given links, which alone price collectives. Launches cost nothing."""
    return replace(preset("linked", MachineEntry(gpu="t4", count=count, host="2016", links=list(links))), hosts=(), protocols=())


def gpus(count: int = 2, bytes_per_s: float = 1e9, shared: str = "") -> Machine:
    """GPUs that a library's collectives join, each with a link of this rate to every other, and without a host that takes time.

    `shared`: a channel that all links share.
    """
    names = [f"g{i}" for i in range(count)]
    links = tuple(Link(a, b, 0.0, bytes_per_s, channel=shared) for a in names for b in names if a != b)
    return replace(tiny_gpu(*names, links=links), library="nccl")


def copy_spans(machine: Machine, *pairs: tuple[str, str]) -> list[tuple[str, float, float]]:
    """Spans of copies of one value per (source, target), all ready at once."""
    copies = [copy(f"{a}>{b}", a, b, f"x{i}", f"y{i}", on=b if a == HOST else a, stream=9 + i) for i, (a, b) in enumerate(pairs)]
    plan, costs = build(*copies)
    return rows(simulate(plan, machine, costs, iterations=1))
