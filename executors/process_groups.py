"""The process's communicators: one per stream, and per set of devices, that collectives run on.

PyTorch's process groups belong to the process, and so do these.
"""

from collections.abc import Sequence
from datetime import timedelta

import torch.distributed as dist

from simulator.collectives.local import ProcessGroup
from traces.errors import StepcastError

#: After so long without a peer a collective fails: peers of one step are at most a chunk of work apart.
TIMEOUT = timedelta(minutes=10)

_made: dict[tuple[str, ProcessGroup], tuple[dist.ProcessGroup, tuple[int, ...]]] = {}


def make(groups: Sequence[ProcessGroup], devices: Sequence[str], library: str) -> None:
    """Make the groups that are still missing. Every process must call this, with the same arguments; `devices`: by rank."""
    for group in groups:
        if (library, group) not in _made:
            ranks = tuple(devices.index(name) for name in group.devices)
            _made[library, group] = dist.new_group(list(ranks), timeout=TIMEOUT, backend=library), ranks


def group_of(group: ProcessGroup, library: str) -> tuple[dist.ProcessGroup, tuple[int, ...]]:
    """The communicator of a stream, and the ranks of its devices in their order.

    Raises StepcastError where there is none, as in a process that runs alone.
    """
    try:
        return _made[library, group]
    except KeyError:
        raise StepcastError(
            f"the plan has collectives over {', '.join(group.devices)}, which run with a process per device; start it with"
            f" torchrun --nproc-per-node {len(group.devices)}"
        ) from None


def forget() -> None:
    """When the process leaves its job."""
    _made.clear()
