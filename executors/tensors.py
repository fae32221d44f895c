"""A job's real tensors, by the value names that its plans use."""

import torch

from executors.kernels.update import initial_state
from simulator.graph import TrainingGraph
from simulator.job import Job
from simulator.models.built import Built


def job_tensors(job: Job, built: Built, graph: TrainingGraph) -> dict[str, torch.Tensor]:
    """Parameters, buffers, constants, inputs and fresh optimizer state of `built`, by value name. Existing tensors are not copied."""
    module = built.module
    tensors: dict[str, torch.Tensor] = {**dict(module.named_parameters()), **dict(module.named_buffers()), **built.named_inputs()}
    for name, content in graph.constants.items():
        tensors[name] = torch.tensor(content, dtype=getattr(torch, graph.values[name].dtype))
    for parameter in graph.parameters:
        for state, tensor in initial_state(job.optimizer, tensors[parameter]).items():
            tensors[f"{parameter}::{state}"] = tensor
    return tensors
