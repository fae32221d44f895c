"""The communication rounds of a collective: which chunk moves from which rank to which.

They are used to compute a collective's time on links, and to expand it into tasks. Ring: n − 1 rounds in which every device adds a chunk of
its neighbor's, and n − 1 in which it copies a finished one; 2 (n − 1) / n of the data pass through every device (Patarasuk and Yuan,
"Bandwidth optimal all-reduce algorithms for clusters of workstations"). Tree: all data up a binary tree and down again, 2 ceil(log2 n)
rounds.
Distributed: every device is the parameter server of its chunk. Server: one rank serves all chunks.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from math import log
from types import MappingProxyType
from typing import Final, NamedTuple

from simulator.machine.machine import Machine
from simulator.plan.bodies.copy import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, REDUCE_SCATTER, Algorithm, Collective
from traces.documents.collectives import CollectiveLaw

RING: Final = "ring"
TREE: Final = "tree"
DISTRIBUTED: Final = "distributed"
SERVER: Final = "server"
#: By who sums, as strategies name it, the algorithm: all devices together, each one its chunk, the host, or the first device.
ALGORITHM_OF: Mapping[str, Algorithm] = MappingProxyType({"all-reduce": RING, "distributed": DISTRIBUTED, "host": SERVER, "first": SERVER})


class Move(NamedTuple):
    """`target` adds (`add`) or copies a chunk of `source`'s data.

    `target` and `source` are ranks, or -1 for the host. `chunk`: None for all chunks.
    """

    target: int
    source: int
    chunk: int | None
    add: bool


Rounds = list[list[Move]]


def rounds(operation: str, algorithm: str, ranks: int, root: int = 0) -> Rounds:
    """The rounds of a collective in order. The moves of a round are independent, except that those to one target add up.

    In a ring of three, each device adds a chunk of its neighbor's twice, then copies a finished one twice:

    >>> for moves in rounds(ALL_REDUCE, RING, ranks=3):
    ...     print(*(f"{move.target} {'+' if move.add else '='} {move.source}'s chunk {move.chunk};" for move in moves))
    0 + 2's chunk 1; 1 + 0's chunk 2; 2 + 1's chunk 0;
    0 + 2's chunk 0; 1 + 0's chunk 1; 2 + 1's chunk 2;
    0 = 2's chunk 2; 1 = 0's chunk 0; 2 = 1's chunk 1;
    0 = 2's chunk 1; 1 = 0's chunk 2; 2 = 1's chunk 0;
    """
    if ranks < 2:
        return []
    if operation == ALL_TO_ALL:
        return [[Move(t, s, t, False) for t in range(ranks) for s in range(ranks) if s != t]]
    reduce, gather = _HALVES[algorithm](ranks, root)
    return {ALL_REDUCE: reduce + gather, REDUCE_SCATTER: reduce, ALL_GATHER: gather}[operation]


#: (target, source, whether the whole data moves) of each move of a round.
Ends = tuple[tuple[int, int, bool], ...]


def distinct_rounds(operation: str, algorithm: str, ranks: int, root: int = 0) -> dict[Ends, int]:
    """Rounds whose moves have the same ends, and how many of them there are. All rounds of a ring have the same."""
    if algorithm == RING and ranks > 1 and operation != ALL_TO_ALL:
        return {tuple((t, (t - 1) % ranks, False) for t in range(ranks)): (2 if operation == ALL_REDUCE else 1) * (ranks - 1)}
    every = rounds(operation, algorithm, ranks, root)
    return dict(Counter(tuple((move.target, move.source, move.chunk is None) for move in moves) for moves in every))


def _ring(n: int, _: int) -> tuple[Rounds, Rounds]:
    """After the first half, rank r holds the sum of chunk r."""
    reduce = [[Move(t, (t - 1) % n, (t - 2 - r) % n, True) for t in range(n)] for r in range(n - 1)]
    gather = [[Move(t, (t - 1) % n, (t - 1 - r) % n, False) for t in range(n)] for r in range(n - 1)]
    return reduce, gather


def _distributed(n: int, _: int) -> tuple[Rounds, Rounds]:
    reduce = [[Move(t, s, t, True) for t in range(n) for s in range(n) if s != t]]
    gather = [[Move(t, s, s, False) for t in range(n) for s in range(n) if s != t]]
    return reduce, gather


def _tree(n: int, _: int) -> tuple[Rounds, Rounds]:
    levels, step = [], 1
    while step < n:
        levels.append([(low, low + step) for low in range(0, n - step, 2 * step)])
        step *= 2
    reduce = [[Move(low, high, None, True) for low, high in level] for level in levels]
    gather = [[Move(high, low, None, False) for low, high in level] for level in reversed(levels)]
    return reduce, gather


def _server(n: int, root: int) -> tuple[Rounds, Rounds]:
    """A server on the host copies the first device's data and adds those of the others."""
    others = [rank for rank in range(n) if rank != root]
    reduce = [[Move(root, rank, None, root >= 0 or rank != others[0]) for rank in others]]
    return reduce, [[Move(rank, root, None, False) for rank in others]]


_HALVES: dict[str, Callable[[int, int], tuple[Rounds, Rounds]]] = {
    RING: _ring, TREE: _tree, DISTRIBUTED: _distributed, SERVER: _server,
}  # fmt: skip


# Measured times of a library's collectives and messages that run alone (`Machine.collectives`).


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
