"""PyTorch's own parallel loops, here with one process; `tests.support.fsdp2_process` has several."""

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule

from calibrate.numerics import reference
from executors.parallel import Parallel
from simulator.model.job import Job
from tests.support.processes import require_gloo
from traces.documents.comparison import PARALLEL_LOOPS, PYTORCH_DDP, PYTORCH_FSDP

MODEL = "lm:form=llama,layers=2,d_model=16,heads=4,ffn=24,vocab=32"


@pytest.fixture
def group() -> Iterator[dist.ProcessGroup]:
    """A group of this process alone."""
    require_gloo()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


@pytest.mark.parametrize("loop", PARALLEL_LOOPS)
def test_they_train_with_the_numbers_of_plain_pytorch(loop, group):
    job = Job(MODEL, 4, image_size=6, accumulate=2, precision="fp64", checkpoint="full")
    plain, own = reference(job, job.build(), False), reference(job, job.build(), False, parallel=Parallel(loop, group))
    losses = [[float(loop.step()) for _ in range(3)] for loop in (plain, own)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-12)


def test_distributed_data_parallel_sums_after_the_last_microbatch(group):
    module, sums = Parallel(PYTORCH_DDP, group).wrapped(nn.Linear(2, 2), 3), []
    for _ in range(6):
        module(torch.zeros(1, 2))
        sums.append(module.require_backward_grad_sync)
    assert sums == [False, False, True] * 2


def test_fsdp2_shards_each_block_and_the_model(group):
    """As the units of the row `pytorch-fsdp`."""
    job = Job(MODEL, 4, image_size=6)
    module = Parallel(PYTORCH_FSDP, group).wrapped(job.build().module, 1)
    assert [path for path, layer in module.named_modules() if isinstance(layer, FSDPModule)] == ["", "blocks.0", "blocks.1"]
