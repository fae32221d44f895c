"""Machines of several GPUs with links laid as presets lay them, at 400 bytes/s unless told."""

from dataclasses import replace

from simulator.engine.simulation import simulate
from simulator.machine.machine import HOST, Machine
from simulator.machine.presets import LinkEntry, MachineEntry, preset
from tests.support.tiny import build, copy, rows

LATENCY_S, BYTES_PER_S = 0.25, 400.0


def link(kind: str, group: int = 0, bandwidth: float = BYTES_PER_S, latency_s: float = LATENCY_S, duplex: bool = True) -> LinkEntry:
    """An entry as `machines.json` has them."""
    return LinkEntry(kind=kind, group=group, latency_s=(latency_s, "eager"), bandwidth_bytes_per_s=(bandwidth, "eager"), duplex=duplex)


def laid(count: int, *links: LinkEntry) -> Machine:
    """So many GPUs with such links, whose launches cost nothing."""
    return replace(preset("laid", MachineEntry(gpu="t4", count=count, host="2016", links=list(links))), hosts=())


def moved(machine: Machine, *pairs: tuple[str, str]) -> list[tuple[str, float, float]]:
    """Copies of a value each, by pairs of places, all ready at once."""
    made = [copy(f"{a}>{b}", a, b, f"x{i}", f"y{i}", on=b if a == HOST else a, stream=9 + i) for i, (a, b) in enumerate(pairs)]
    plan, costs = build(*made)
    return rows(simulate(plan, machine, costs, iterations=1))
