"""The program of one process of a pipeline: `python -m tests.support.pipeline_process FILE.csv...`, with torchrun's variables.

torch's own runtime loads each file and runs one step on the layers of this process's stages. For each file every process prints the largest
difference between its gradients and those of the whole model on the whole batch.
"""

import sys

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

from simulator.strategies.pipeline import grid_csv

WIDTH, ROWS = 5, 3


def largest_error(path: str) -> float:
    """The largest difference in the gradients of this process's stages, after one step of the schedule at `path`."""
    schedule = grid_csv.read(path)
    rank = dist.get_rank()
    torch.manual_seed(0)
    layers = [torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh()).double() for _ in range(schedule.stages)]
    inputs, targets = (torch.randn(ROWS * schedule.microbatches, WIDTH, dtype=torch.float64) for _ in range(2))

    torch.nn.functional.mse_loss(torch.nn.Sequential(*layers)(inputs), targets).backward()
    expected = {stage: [parameter.grad for parameter in layer.parameters()] for stage, layer in enumerate(layers)}
    own = [stage for stage in range(schedule.stages) if schedule.rank_of[stage] == rank]
    for layer in layers:
        layer.zero_grad()

    stages = [PipelineStage(layers[stage], stage, schedule.stages, torch.device("cpu"), input_args=(inputs[:ROWS],)) for stage in own]
    runtime = _PipelineScheduleRuntime(stages, schedule.microbatches, loss_fn=torch.nn.functional.mse_loss)
    runtime._load_csv(path)
    runtime.step(*([inputs] if 0 in own else []), target=targets if schedule.stages - 1 in own else None)
    return max(
        float((parameter.grad - gradient).abs().max())
        for stage in own
        for parameter, gradient in zip(layers[stage].parameters(), expected[stage], strict=True)
    )


if __name__ == "__main__":
    dist.init_process_group("gloo")
    for path in sys.argv[1:]:
        print("error", largest_error(path))
    dist.destroy_process_group()
