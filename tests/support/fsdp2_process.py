"""PyTorch's own FSDP2 beside our `fsdp`: `python -m tests.support.fsdp2_process [MODEL SEQ BATCH PRECISION]`, with torchrun's variables.

Each process trains its part of a batch under `fully_shard`, block by block; then the plan of `fsdp` runs in the same processes. Rank 0
prints one JSON document: the largest difference of FSDP2's parameters, and of ours, from plain PyTorch's after some steps, and the median
seconds of a step of either.
"""

import copy
import json
import sys
import time
from collections.abc import Callable
from statistics import median

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from calibrate.numerics import STEPS, References, compare
from executors.distributed.backend import DistributedBackend
from executors.distributed.control import end_ranks, join_channel, open_channel
from executors.distributed.rank_server import RankServer
from executors.distributed.ranks import launched
from executors.kernels.update import torch_optimizer
from executors.tensors import job_tensors
from simulator.machine.this_cpu import this_cpu
from simulator.model.built import Built
from simulator.model.job import Job
from simulator.strategies.sharding.units import unit_of
from tests.support.jobs import planned

#: Steps that are timed, after as many as are compared.
TIMED = 10


def train(job: Job, built: Built, module: torch.nn.Module, inputs: list[torch.Tensor], target: torch.Tensor) -> Callable[[], None]:
    """A function that takes one step of plain training."""
    optimizer = torch_optimizer(job.optimizer, job.form, module.parameters(), job.hyper)

    def step() -> None:
        optimizer.zero_grad()
        built.loss(module(*inputs), target).backward()
        optimizer.step()

    return step


def of_fsdp2(job: Job, built: Built, rank: int, world: int) -> tuple[float, float]:
    """The largest difference of parameters from plain PyTorch's, and the seconds of a step."""
    plain, sharded = copy.deepcopy(built.module), copy.deepcopy(built.module)
    mesh = init_device_mesh("cpu", (world,))
    for path, block in list(sharded.named_modules()):
        if path and unit_of(path) == path and not isinstance(block, torch.nn.ModuleList) and any(True for _ in block.parameters()):
            fully_shard(block, mesh=mesh)
    fully_shard(sharded, mesh=mesh)

    def part(tensor: torch.Tensor) -> torch.Tensor:
        size = len(tensor) // world
        return tensor[rank * size : (rank + 1) * size]

    step = train(job, built, sharded, [part(each) for each in built.inputs], part(built.target))
    whole = train(job, built, plain, list(built.inputs), built.target)
    for _ in range(STEPS):
        step()
        whole()
    theirs = {name: parameter.full_tensor() for name, parameter in sharded.named_parameters()}
    error = max(float((theirs[name] - parameter).detach().abs().max()) for name, parameter in plain.named_parameters())
    seconds = []
    for _ in range(TIMED):
        begun = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - begun)
    return error, median(seconds)


def main(model: str = "lm:form=llama,layers=2,d_model=64,heads=4,kv_heads=2,ffn=128,vocab=96", length: str = "16", *more: str) -> None:
    """Train by FSDP2 in all processes, then by the plan, and print what came out."""
    batch, precision = (*more, "8", "fp64")[:2] if len(more) != 1 else (more[0], "fp64")
    ranks = launched()
    channel = open_channel(ranks) if ranks.first else join_channel(ranks)
    torch.set_num_threads(1)
    job = Job(model, int(batch), image_size=int(length) or None, precision=precision, optimizer="adamw")
    built = job.build()
    error, seconds = of_fsdp2(job, built, ranks.rank, ranks.world)
    if not ranks.first:
        sys.exit(RankServer(channel).serve())
    backend = DistributedBackend(this_cpu(devices=ranks.world, library="gloo"), channel)
    plan = planned("fsdp", job, backend.machine)
    numerics = compare(job, built, plan, backend, References(job, built, STEPS, backend).of(plan))
    run = backend.load(plan, job_tensors(job, built, job.graph())).run(TIMED + 1)
    document = {"fsdp2": {"error": error, "step_s": seconds}, "fsdp": {"error": numerics.max_param_error, "step_s": median(run.steps_s)}}
    print(json.dumps(document))
    end_ranks(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
