"""Measured steps of DistributedDataParallel and FSDP2 beside the rows `pytorch-ddp` and `pytorch-fsdp`, in processes that gloo joins.

    torchrun --standalone --nproc-per-node 2 -m tests.benchmarks.parallel_steps [MODEL BATCH SEQ]

Costs of ops and collectives are measured in the same processes after the steps, those of hooks are the committed ones.
"""

import copy
import sys
import time
from statistics import median

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from calibrate.distributed.testbeds import CpuGroupTestbed
from executors.distributed.control import end_ranks, join_channel, open_channel
from executors.distributed.loaded_plans import RankServer
from executors.distributed.ranks import launched
from simulator.engine.costs.model import CostModel
from simulator.model.job import Job
from simulator.predict.forecast import plan_strategy, planned_forecast
from simulator.strategies.sharding.units import ROOT, unit_of
from tests.support.fsdp2_process import train
from traces.documents.comparison import PARALLEL_LOOPS
from traces.documents.profile import Profile

_STEPS, _WARM_UP = 25, 5


def sharded(module: nn.Module, world: int) -> nn.Module:
    """A copy of a model under FSDP2, by blocks."""
    module, mesh = copy.deepcopy(module), init_device_mesh("cpu", (world,))
    for path, block in list(module.named_modules()):
        if path and unit_of(path, ROOT) == path:
            fully_shard(block, mesh=mesh)
    return fully_shard(module, mesh=mesh)


def main(model: str = "lm:form=llama,layers=4,d_model=128,heads=4,ffn=384,vocab=512", batch: str = "8", length: str = "32") -> None:
    """Train in all processes, then predict in the first one and print a line for each loop."""
    ranks = launched()
    channel = open_channel(ranks) if ranks.first else join_channel(ranks)
    torch.set_num_threads(1)
    job = Job(model, int(batch), image_size=int(length) or None, optimizer="adam", precision="fp32")
    built = job.build()
    size = len(built.target) // ranks.world
    own = slice(ranks.rank * size, (ranks.rank + 1) * size)
    modules = (DistributedDataParallel(copy.deepcopy(built.module)), sharded(built.module, ranks.world))
    measured: dict[str, list[float]] = {}
    for text, module in zip(PARALLEL_LOOPS, modules, strict=True):
        step = train(job, built, module, [each[own] for each in built.inputs], built.target[own])
        seconds = []
        for _ in range(_STEPS):
            begun = time.perf_counter()
            step()
            seconds.append(time.perf_counter() - begun)
        measured[text] = seconds[_WARM_UP:]
    if not ranks.first:
        sys.exit(RankServer(channel).serve())
    testbed = CpuGroupTestbed(channel)
    profile = Profile(identity=testbed.identity)
    testbed.measure_machine(profile)
    machine = testbed.machine(profile)
    testbed.preview([plan_strategy(text, {}, job, machine, CostModel(machine, profile)) for text in measured], machine, profile)
    machine = testbed.machine(profile)
    for text, seconds in measured.items():
        forecast = planned_forecast(job, text, {}, machine, CostModel(machine, profile))
        predicted, low, high = (f"{1e3 * each:.1f}" for each in (forecast.timeline.step_s, *forecast.interval_s))
        own_s, least_s = (f"{1e3 * each:.1f}" for each in (median(seconds), min(seconds)))
        print(f"{text:14} predicted {predicted} ms ({low} to {high}), measured {own_s} ms, {least_s} at least")
    testbed.close()
    end_ranks(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
