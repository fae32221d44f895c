"""How long a library's collectives take on links, by its protocols (`Machine.protocols`).

Each protocol gives a line: a latency, and seconds per byte of one rank's data. A collective takes the time of the lowest line at its size.
The lines follow NCCL's own model (src/graph/tuning.cc of NCCL 2.28), with figures that were fitted on measured times:

- A ring has n − 1 rounds (an all-reduce twice as many) in which every rank passes on one of n chunks. Between m nodes, a rank leaves its
  node in one of every n / m rings, so the adapters of a node share what a ring sends.
- A tree for an all-reduce is a chain within a node and a binary tree of nodes, up and down; two trees have half of the data each.
- A switch that adds (NVLS) takes every rank's data once and returns the sum once.
- In an all-to-all every rank sends a chunk to each other rank.
"""

from collections.abc import Sequence
from math import ceil, log2
from typing import Final, NamedTuple

from simulator.machine.protocols import PAIRS, RINGS, SWITCH, Protocol
from simulator.plan.bodies.copy import ALL_REDUCE, ALL_TO_ALL

#: The share of a ring's bandwidth that NCCL expects of its trees: 0.92 for the protocol, 0.85 for the pattern (src/graph/tuning.cc).
TREE_SHARE: Final = 0.92 * 0.85


class Spread(NamedTuple):
    """How `ranks` lie on `nodes`, each with the same number.

    `inside_s`, `across_s`: seconds per byte in which every rank sends to the next one of its node, and to the same rank of the next node,
    over links at their full bandwidth.
    """

    ranks: int
    nodes: int
    inside_s: float
    across_s: float

    @property
    def local(self) -> float:
        """Ranks per node."""
        return self.ranks / self.nodes

    def sent(self, operation: str) -> tuple[float, float]:
        """What a rank sends inside its node and across, per byte of its data. An all-reduce, or each half of it, sends as a ring does."""
        if operation == ALL_TO_ALL:
            return (self.local - 1) / self.ranks, 1 - 1 / self.nodes
        whole = (2 if operation == ALL_REDUCE else 1) * (self.ranks - 1) / self.ranks
        leaving = 1 / self.local if self.nodes > 1 else 0.0
        return whole * (1 - leaving), whole * leaving

    @property
    def tree_across(self) -> float:
        """What a rank sends between nodes in an all-reduce, per byte, if two trees of nodes have half of the data each."""
        return 2 * (1 - 1 / self.nodes) / self.local


class Line(NamedTuple):
    """A collective of n bytes takes `latency_s + s_per_byte * n` seconds by `protocol`."""

    latency_s: float
    s_per_byte: float
    protocol: Protocol

    def seconds(self, payload_bytes: float) -> float:
        """Latency and moving together."""
        return self.latency_s + self.s_per_byte * payload_bytes


def lines(protocols: Sequence[Protocol], operation: str, tree: bool, spread: Spread) -> list[Line]:
    """A line for each protocol and algorithm that can run the operation. `tree`: whether it must be along trees.

    A ring of 8 GPUs whose links move 100 GB/s takes 14 rounds of an all-reduce, in which each rank sends 14/8 of its data:

    >>> ring = Protocol(RINGS, start_s=1e-5, hop_s=1e-6, share=1.0)
    >>> (line,) = lines([ring], ALL_REDUCE, tree=False, spread=Spread(ranks=8, nodes=1, inside_s=1e-11, across_s=0.0))
    >>> f"{line.latency_s:.1e} s, and {line.seconds(1e9) - line.latency_s:.4f} s for 1 GB"
    '2.4e-05 s, and 0.0175 s for 1 GB'
    """
    by_form = {form: [protocol for protocol in protocols if protocol.form == form] for form in (RINGS, SWITCH, PAIRS)}
    if operation == ALL_TO_ALL:
        return [_pairs(protocol, spread) for protocol in by_form[PAIRS]]
    trees = [_tree(protocol, spread) for protocol in by_form[RINGS]] if operation == ALL_REDUCE and (tree or spread.nodes > 1) else []
    if tree:
        return trees
    switched = [_switch(protocol, spread) for protocol in by_form[SWITCH]] if operation == ALL_REDUCE and spread.local > 1 else []
    return [_ring(protocol, operation, spread) for protocol in by_form[RINGS]] + trees + switched


def held_share(operation: str, ranks: int) -> float:
    """Bytes of its memory that a rank reads and writes, per byte of its data: its operands. The library's buffers stay in the cache."""
    return 2.0 if operation in (ALL_REDUCE, ALL_TO_ALL) else 1 + 1 / ranks


def _moving(protocol: Protocol, spread: Spread, inside: float, across: float, own: float, share: float = 1.0) -> float:
    """Seconds in which a rank sends these bytes inside its node and across nodes, and copies its own chunk.

    `share`: a factor on the bandwidth.
    """
    inside_s, own_s = inside * spread.inside_s / protocol.share, own * spread.inside_s
    return max(inside_s, across * spread.across_s / protocol.network_share) / share + (
        own_s / protocol.own_share if protocol.own_share else 0.0
    )


def _ring(protocol: Protocol, operation: str, spread: Spread) -> Line:
    passes = 2 if operation == ALL_REDUCE else 1
    rounds, across = passes * (spread.ranks - 1), passes * (spread.nodes - 1)
    hop_s = protocol.network_hop_s if spread.local > 1 else protocol.network_tree_hop_s
    moving_s = _moving(protocol, spread, *spread.sent(operation), 1 / spread.ranks)
    return Line(protocol.start_s + (rounds - across) * protocol.hop_s + across * hop_s, moving_s, protocol)


def _tree(protocol: Protocol, spread: Spread) -> Line:
    local = spread.local
    latency_s = protocol.start_s + 2 * (local - 1) * protocol.hop_s + 2 * ceil(log2(spread.nodes)) * protocol.network_tree_hop_s
    return Line(latency_s, _moving(protocol, spread, 2.0 if local > 1 else 0.0, spread.tree_across, 0.0, TREE_SHARE), protocol)


def _switch(protocol: Protocol, spread: Spread) -> Line:
    latency_s = protocol.start_s + 2 * ceil(log2(spread.nodes)) * protocol.network_tree_hop_s
    return Line(latency_s, _moving(protocol, spread, 1 + 1 / spread.local, spread.tree_across, 0.0), protocol)


def _pairs(protocol: Protocol, spread: Spread) -> Line:
    latency_s = protocol.start_s + (spread.ranks - 1) * protocol.hop_s + (protocol.network_tree_hop_s if spread.nodes > 1 else 0.0)
    return Line(latency_s, _moving(protocol, spread, *spread.sent(ALL_TO_ALL), 1 / spread.ranks), protocol)
