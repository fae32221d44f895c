"""The jobs, graphs and plans of small models that most tests use."""

import torch
from torch import nn

from simulator.engine.costs.model import CostModel
from simulator.machine.machine import Machine
from simulator.model.built import Built
from simulator.model.capture.capture import capture
from simulator.model.graph import TrainingGraph
from simulator.model.job import Job
from simulator.plan.plan import Plan
from simulator.strategies import registry as strategies
from tests.support import mlp, models

#: The model of two linear layers.
MLP = f"{mlp.__file__}:make"


def job_of(model: str, batch: int = 4, precision: str = "fp64", **fields) -> Job:
    """A job of one of the small models in `models`, by name, in double precision, so that numbers can be compared exactly."""
    return Job(f"{models.__file__}:{model}", batch, precision=precision, **fields)


def graph_of(module: nn.Module, *inputs: torch.Tensor, loss=lambda out, _: out.sum(), batch: int = 0, **built) -> TrainingGraph:
    """The step of a module without a target. `loss`: of its output and None. `batch`: by default the first dimension of the first input."""
    return capture(lambda: Built(module, inputs, {}, None, loss, **built), batch=batch or len(inputs[0]))


def planned(text: str, job: Job, machine: Machine, costs: CostModel | None = None) -> Plan:
    """A valid plan by `NAME[:option=value,...]`."""
    strategy, options = strategies.parse(text)
    plan = strategy.plan(job, machine, costs, options)
    plan.validate(machine)
    return plan


def mlp_plan(text: str, machine: Machine, factory: str = "make", batch: int = 4, **fields) -> Plan:
    """The plan of a strategy for a model of `mlp`."""
    return planned(text, Job(f"{mlp.__file__}:{factory}", batch, **fields), machine)
