"""The communication rounds of a collective: which chunk moves from which rank to which.

They serve to price a collective on links, and to expand it into tasks. Ring: n − 1 rounds in which every device adds a chunk of its
neighbor's, and n − 1 in which it copies a finished one; 2 (n − 1) / n of the data pass through every device (Patarasuk and Yuan, "Bandwidth
optimal all-reduce algorithms for clusters of workstations"). Tree: all data up a binary tree and down again, 2 ceil(log2 n) rounds.
Distributed: every device is the parameter server of its chunk. Server: one rank serves all chunks.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from simulator.plan.bodies.collective import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER

RING, TREE, DISTRIBUTED, SERVER = "ring", "tree", "distributed", "server"
#: By who sums, as strategies name it, the algorithm: all devices together, each one its chunk, or the host.
ALGORITHM_OF: Mapping[str, str] = MappingProxyType({"all-reduce": RING, "distributed": DISTRIBUTED, "host": SERVER})


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
    """The rounds of a collective in order. The moves of a round are independent, except that those to one target add up."""
    if ranks < 2:
        return []
    reduce, gather = _HALVES[algorithm](ranks, root)
    return {ALL_REDUCE: reduce + gather, REDUCE_SCATTER: reduce, ALL_GATHER: gather}[operation]


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
