"""A job's real tensors, by the value names that its plans use."""

import torch

from executors.kernels.update import initial_state
from simulator.model.built import Built
from simulator.model.graph import TrainingGraph
from simulator.model.job import Job
from simulator.model.ops.content import tensor_of
from simulator.plan.task import BUFFER, PARAMETER
from traces.errors import SchedcastError


def module_tensors(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The parameters and buffers of a module by name."""
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def job_tensors(job: Job, built: Built, graph: TrainingGraph) -> dict[str, torch.Tensor]:
    """Parameters, buffers, constants, inputs, gradient scaler and fresh optimizer state of `built`, by value name. Nothing is copied.

    Raises SchedcastError if `built` is not the model that was captured, because its factory makes another one each time, and if the graph
    rests on assumptions.
    """
    if graph.assumptions:
        raise SchedcastError(f"the model can be predicted, not run: {graph.assumptions[0]}; use predict")
    tensors = {**module_tensors(built.module), **built.named_inputs(), **built.scaler}
    _check_same_model(tensors, graph)
    for name, content in graph.constants.items():
        tensors[name] = tensor_of(content, graph.values[name].shape, graph.values[name].dtype)
    for parameter in graph.parameters:
        for state, tensor in initial_state(job.optimizer, tensors[parameter]).items():
            tensors[f"{parameter}::{state}"] = tensor
    return tensors


def _check_same_model(tensors: dict[str, torch.Tensor], graph: TrainingGraph) -> None:
    for name, value in graph.values.items():
        if value.kind not in (PARAMETER, BUFFER) or name in graph.constants:
            continue
        tensor = tensors.get(name)
        if tensor is None or tuple(tensor.shape) != value.shape or tensor.dtype != getattr(torch, value.dtype):
            shown = "missing" if tensor is None else f"{tuple(tensor.shape)} of {tensor.dtype}"
            raise SchedcastError(
                f"the factory makes another model each time: {name} is {shown}, and was {value.shape} of torch.{value.dtype} when captured;"
                " expected the same shapes every time; remove what is random in it"
            )
