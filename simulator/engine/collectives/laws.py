"""Measured times of a library's collectives and messages that run alone (`Machine.collectives`)."""

from math import log

from simulator.engine.collectives.rounds import RING, TREE, rounds
from simulator.machine.machine import Machine
from simulator.plan.bodies.collective import Collective
from traces.documents.collectives import CollectiveLaw

#: Algorithms of a single library call, which scale to other numbers of ranks. A parameter server takes two calls and does not.
SCALABLE = frozenset({RING, TREE})
#: The operation of a message from one process to another, in the names of laws. It has two ranks.
SEND = "send"


def measured_times(machine: Machine, body: Collective, payload_bytes: float) -> tuple[float, float] | None:
    """Latency in seconds and seconds in which bytes move, by the law of the machine's library; None if it has no law for the collective.

    A law holds for the number of nodes that it was measured on. For a number of ranks without a law, the law of the nearest number is
    scaled by the algorithm: the latency by its rounds, the time per byte by the bytes that each device sends on.
    """
    ranks, laws = len(body.devices), _laws_by_ranks(machine, body.name, body.devices)
    if not laws or (body.algorithm not in SCALABLE and ranks not in laws):
        return None
    nearest = min(laws, key=lambda count: (abs(log(ranks / count)), count))
    latency_s, moving_s = laws[nearest].parts(payload_bytes)
    if nearest == ranks:
        return latency_s, moving_s
    (count, sent), (nearest_count, nearest_sent) = (_extent(body, n) for n in (ranks, nearest))
    return latency_s * count / nearest_count, moving_s * sent / nearest_sent


def message_times(machine: Machine, source: str, target: str, moved_bytes: float) -> tuple[float, float] | None:
    """The same of a message from one process's device to another's; None if its law was not measured."""
    law = _laws_by_ranks(machine, SEND, (source, target)).get(2)
    return law.parts(moved_bytes) if law is not None else None


def _laws_by_ranks(machine: Machine, operation: str, devices: tuple[str, ...]) -> dict[int, CollectiveLaw]:
    """Number of ranks -> law of this operation on the same number of nodes."""
    if not machine.library or not machine.collectives:
        return {}
    start, nodes = f"{operation}|{machine.library}|", machine.nodes(devices)
    laws = {}
    for name, law in machine.collectives.items():
        ranks, _, law_nodes = name.removeprefix(start).partition("/")
        if name.startswith(start) and int(law_nodes or 1) == nodes:
            laws[int(ranks)] = law
    return laws


def _extent(body: Collective, ranks: int) -> tuple[int, float]:
    """Number of rounds of the algorithm, and the fraction of the data that a device sends on in all of them."""
    moves_by_round = rounds(body.operation, body.algorithm, ranks)
    return len(moves_by_round), sum(1.0 if moves[0].chunk is None else 1 / ranks for moves in moves_by_round)
