"""This process's communicators: one PyTorch process group for each stream and set of devices that a plan's collectives use.

PyTorch keeps process groups per process, so this module keeps them at module level too.
"""

from collections.abc import Sequence
from datetime import timedelta

import torch.distributed as dist

from simulator.engine.collectives.local import ProcessGroup
from traces.errors import SchedcastError

#: A collective fails if a peer does not arrive within this time. Peers of one step are at most one chunk of work apart.
TIMEOUT = timedelta(minutes=10)

#: By (library, group): PyTorch's group, and the ranks of the group's devices in the order of the devices.
_groups: dict[tuple[str, ProcessGroup], tuple[dist.ProcessGroup, tuple[int, ...]]] = {}


def make(groups: Sequence[ProcessGroup], devices: Sequence[str], library: str) -> None:
    """Create the groups that do not exist yet. Every process must call this with the same arguments.

    `devices` lists the machine's devices by rank.
    """
    for group in groups:
        if (library, group) not in _groups:
            ranks = tuple(devices.index(name) for name in group.devices)
            _groups[library, group] = dist.new_group(list(ranks), timeout=TIMEOUT, backend=library), ranks


def group_of(group: ProcessGroup, library: str) -> tuple[dist.ProcessGroup, tuple[int, ...]]:
    """PyTorch's group for `group`, and the ranks of the group's devices in the order of the devices.

    Raises SchedcastError if the group was not created, for example because the process runs alone.
    """
    try:
        return _groups[library, group]
    except KeyError:
        raise SchedcastError(
            f"the plan has collectives over {', '.join(group.devices)}, which run with a process per device; start it with"
            f" torchrun --nproc-per-node {len(group.devices)}"
        ) from None


def forget() -> None:
    """Forget all groups. Called when PyTorch's process groups are destroyed."""
    _groups.clear()
