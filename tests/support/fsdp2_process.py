"""PyTorch's own DistributedDataParallel, FSDP2 and tensor parallelism beside our `fsdp`, with torchrun's variables in the environment.

    python -m tests.support.fsdp2_process [MODEL SEQ BATCH PRECISION]

Each process trains its part of a batch in each of PyTorch's own parallel loops, and then all of it with its part of the layers
(`parallelize_module`, each way of Megatron-LM); then the plans of `fsdp`, of its first stage as nanotron has it, and of `fsdp:tp=N,sp=off`
run in the same processes. Rank 0 prints one JSON document: the largest difference of everyone's parameters from plain PyTorch's after some
steps, and the median seconds of a step.
"""

import copy
import json
import sys
import time
from collections.abc import Callable
from statistics import median

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module

from calibrate.numerics import STEPS, References, compare
from executors.distributed.backend import DistributedBackend
from executors.distributed.control import end_ranks, join_channel, open_channel
from executors.distributed.loaded_plans import RankServer
from executors.distributed.ranks import launched
from executors.kernels.update import torch_optimizer
from executors.parallel import Parallel
from executors.tensors import job_tensors
from simulator.machine.this_cpu import this_cpu
from simulator.model.built import Built
from simulator.model.job import Job
from tests.support.jobs import planned
from traces.documents.comparison import PARALLEL_LOOPS

#: Steps that are timed, after as many as are compared.
TIMED = 10


def train(job: Job, built: Built, module: torch.nn.Module, inputs: list[torch.Tensor], target: torch.Tensor) -> Callable[[], None]:
    """A function that takes one step of plain training."""
    parameters = list(module.parameters())
    mixed = len({isinstance(each, DTensor) for each in parameters}) > 1  # which PyTorch's foreach form refuses
    optimizer = torch_optimizer(job.optimizer, "for" if mixed else job.form, parameters, job.hyper)

    def step() -> None:
        optimizer.zero_grad()
        built.loss(module(*inputs), target).backward()
        optimizer.step()

    return step


def divided(built: Built, world: int) -> torch.nn.Module:
    """A copy of one of our decoders with PyTorch's own tensor parallelism."""
    whole = {"input_layouts": Replicate(), "output_layouts": Replicate()}
    ways: dict[str, ParallelStyle] = {"tokens": RowwiseParallel(**whole), "head": ColwiseParallel(**whole)}
    for layer in ("attention.query", "attention.key", "attention.value", "feed_forward.gate", "feed_forward.up"):
        ways[f"blocks.*.{layer}"] = ColwiseParallel()
    ways |= {f"blocks.*.{layer}": RowwiseParallel() for layer in ("attention.output", "feed_forward.down")}
    return parallelize_module(copy.deepcopy(built.module), init_device_mesh("cpu", (world,)), ways)


def compared(job: Job, built: Built, module: torch.nn.Module, part: slice) -> tuple[float, float]:
    """The largest difference of parameters from plain PyTorch's, and the seconds of a step. `part`: of the batch that `module` sees."""
    plain = copy.deepcopy(built.module)
    step = train(job, built, module, [each[part] for each in built.inputs], built.target[part])
    whole = train(job, built, plain, list(built.inputs), built.target)
    for _ in range(STEPS):
        step()
        whole()
    theirs = {name: p.full_tensor() if isinstance(p, DTensor) else p for name, p in module.named_parameters()}
    theirs = {name.removeprefix("module."): parameter for name, parameter in theirs.items()}  # as DistributedDataParallel has them
    error = max(float((theirs[name] - parameter).detach().abs().max()) for name, parameter in plain.named_parameters())
    seconds = []
    for _ in range(TIMED):
        begun = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - begun)
    return error, median(seconds)


def main(model: str = "lm:form=llama,layers=2,d_model=64,heads=4,kv_heads=2,ffn=128,vocab=96", length: str = "16", *more: str) -> None:
    """Train by PyTorch's own ways in all processes, then by the plans, and print what came out."""
    batch, precision = (*more, "8", "fp64")[:2] if len(more) != 1 else (more[0], "fp64")
    ranks = launched()
    channel = open_channel(ranks) if ranks.first else join_channel(ranks)
    torch.set_num_threads(1)
    job = Job(model, int(batch), image_size=int(length) or None, precision=precision, optimizer="adamw")
    built = job.build()
    size = len(built.target) // ranks.world
    own = slice(ranks.rank * size, (ranks.rank + 1) * size)
    theirs = {
        loop: compared(job, built, Parallel(loop, dist.group.WORLD).wrapped(copy.deepcopy(built.module), 1), own) for loop in PARALLEL_LOOPS
    } | {
        "parallelize_module": compared(job, built, divided(built, ranks.world), slice(None)),
    }
    if not ranks.first:
        sys.exit(RankServer(channel).serve())
    document = {name: {"error": error, "step_s": seconds} for name, (error, seconds) in theirs.items()}
    backend = DistributedBackend(this_cpu(devices=ranks.world, library="gloo"), channel)
    for text in ("fsdp", "fsdp:shard=1,gradients=held", f"fsdp:tp={ranks.world},sp=off"):
        plan = planned(text, job, backend.machine)
        numerics = compare(job, built, plan, backend, References(job, built, STEPS, backend).of(plan))
        run = backend.load(plan, job_tensors(job, built, job.graph())).run(TIMED + 1)
        document[text] = {"error": numerics.max_param_error, "step_s": median(run.steps_s)}
    print(json.dumps(document))
    end_ranks(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
