"""PyTorch's own parallel loops: the user's loop in several processes, its module under DistributedDataParallel or FSDP2.

What `simulator.strategies.pytorch_ddp` and `pytorch_fsdp` predict: PyTorch's defaults, each process with its part of the batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from executors.reference import split
from simulator.strategies.zero.units import ROOT, unit_of
from traces.documents.comparison import PYTORCH_FSDP


@dataclass(frozen=True)
class Parallel:
    """One of `PARALLEL_LOOPS` in this process. `group`: of all its processes; `device`: the type of their devices, cpu or cuda."""

    loop: str
    group: dist.ProcessGroup
    device: str = "cpu"

    @property
    def prefix(self) -> str:
        """The prefix of the names of the module's layers when it is wrapped."""
        return "" if self.loop == PYTORCH_FSDP else "module."

    def part(self, batch: Any, whole: Sequence[Tensor]) -> Any:
        """This process's part of a batch. `whole`: as in `executors.reference.Reference`."""
        return split(batch, self.group.size(), whole)[self.group.rank()]

    def wrapped(self, module: nn.Module, microbatches: int) -> nn.Module:
        """The module, which is changed, as its processes call it. DistributedDataParallel sums in the last of the microbatches."""
        if self.loop == PYTORCH_FSDP:
            return _sharded(module, DeviceMesh.from_group(self.group, self.device))
        wrapped, calls = DistributedDataParallel(module, process_group=self.group), count(1)

        def sum_in_the_last(loop: DistributedDataParallel, arguments: object) -> None:  # as its `no_sync` does around the others
            loop.require_backward_grad_sync = next(calls) % microbatches == 0

        wrapped.register_forward_pre_hook(sum_in_the_last)
        return wrapped


def _sharded(module: nn.Module, mesh: DeviceMesh) -> nn.Module:
    for path, block in list(module.named_modules()):
        if path and unit_of(path, ROOT) == path and not isinstance(block, nn.ModuleList | nn.ModuleDict):
            fully_shard(block, mesh=mesh)
    fully_shard(module, mesh=mesh)
    return module
