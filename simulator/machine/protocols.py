"""How a library of collectives moves bytes between GPUs, as figures of a machine. Seconds, and shares of the links' bandwidth."""

from dataclasses import dataclass
from typing import Final, Literal

#: Along a ring of all ranks, or for an all-reduce along trees of nodes; by a switch that adds what ranks send; from every rank to each.
Form = Literal["ring", "switch", "pairs"]
RINGS: Final = "ring"
SWITCH: Final = "switch"
PAIRS: Final = "pairs"


@dataclass(frozen=True)
class Protocol:
    """One way to run a collective; a library takes the one that is fastest for a size.

    `start_s`: before the first byte, launch included. `hop_s`: of each communication round within a node. `network_hop_s`,
    `network_tree_hop_s`: of each round between nodes in a ring and in a tree. `share`, `network_share`: of the bandwidth of links within a
    node and between nodes. `own_share`: rate at which a rank copies its own chunk, relative to the bandwidth of its links; 0: no copy.
    `blocks`: of the kernel that runs it on every GPU; each takes an SM. `latency_error`, `bandwidth_error`: one standard deviation of the
    logarithm.
    """

    form: Form
    start_s: float
    hop_s: float
    share: float
    own_share: float = 0.0
    network_hop_s: float = 0.0
    network_tree_hop_s: float = 0.0
    network_share: float = 1.0
    blocks: int = 0
    latency_error: float = 0.0
    bandwidth_error: float = 0.0
