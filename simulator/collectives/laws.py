"""What a library's collective takes alone, where it was measured (`Machine.collectives`)."""

from math import log

from simulator.bodies.collective import Collective
from simulator.collectives.rounds import RING, TREE, rounds
from simulator.machine.machine import Machine
from traces.collectives import CollectiveLaw

#: How libraries make collectives. Of a server, which is two of theirs, nothing is known on other numbers of ranks.
MADE = frozenset({RING, TREE})


def measured_parts(machine: Machine, body: Collective, payload_bytes: float) -> tuple[float, float] | None:
    """Seconds of latency, and seconds in which bytes move, by the law of the machine's library; None where it has none.

    A law holds for as many nodes as it was measured on. On a number of ranks without one, the law of the nearest number is scaled as the
    algorithm is: the latency by its rounds, the time per byte by the bytes that each device passes on.
    """
    ranks, known = len(body.devices), _known(machine, body)
    if not known or (body.algorithm not in MADE and ranks not in known):
        return None
    nearest = min(known, key=lambda count: (abs(log(ranks / count)), count))
    latency_s, moving_s = known[nearest].parts(payload_bytes)
    if nearest == ranks:
        return latency_s, moving_s
    (steps, passed), (steps_there, passed_there) = (_extent(body, count) for count in (ranks, nearest))
    return latency_s * steps / steps_there, moving_s * passed / passed_there


def _known(machine: Machine, body: Collective) -> dict[int, CollectiveLaw]:
    """The laws of this operation on as many nodes, by ranks."""
    if not machine.library or not machine.collectives:
        return {}
    start, nodes = f"{body.name}|{machine.library}|", machine.nodes(body.devices)
    found = {}
    for name, law in machine.collectives.items():
        ranks, _, on = name.removeprefix(start).partition("/")
        if name.startswith(start) and int(on or 1) == nodes:
            found[int(ranks)] = law
    return found


def _extent(body: Collective, ranks: int) -> tuple[int, float]:
    """Rounds of the algorithm, and the share of the data that a device passes on in all of them."""
    made = rounds(body.operation, body.algorithm, ranks)
    return len(made), sum(1.0 if moves[0].chunk is None else 1 / ranks for moves in made)
