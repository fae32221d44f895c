"""Backward-fusion: each layer is updated as soon as its gradient is complete (Jiang et al., "Optimizer Fusion", algorithm 3)."""

from dataclasses import dataclass

from simulator.engine.costs.cost import PlanCosts
from simulator.machine.machine import Machine
from simulator.model.job import Job
from simulator.plan.fusion import fused
from simulator.plan.plan import Plan
from simulator.strategies.builder import PlanBuilder
from simulator.strategies.options import UpdateStream

NAME = "backward-fusion"
FAMILY = "fusion"
ABOUT = "update each layer during backward, once its gradient is complete and its old parameters are no longer read"
CANDIDATES = ("update_stream=on",)


@dataclass(frozen=True)
class Options:
    """Where the updates run."""

    update_stream: UpdateStream = False


def plan(job: Job, machine: Machine, costs: PlanCosts | None, options: Options) -> Plan:
    """Baseline's tasks, with one update per layer as soon as the layer may be updated (`PlanBuilder.ready`).

    Raises SchedcastError if the job clips by the global norm, which needs every gradient before the first update.

    >>> from simulator.machine.presets import load_machine
    >>> tasks = plan(Job("lenet5", batch=64), load_machine("h100"), None, Options()).tasks
    >>> [(task.layer, task.phase) for task in tasks][-2:]  # the first layer is updated last
    [('features.0', 'backward'), ('features.0', 'update')]
    """
    build = PlanBuilder(job, machine.devices[0].name)
    build.refuse_clipping(NAME, "forward-fusion")
    tasks = build.step()
    return build.plan(NAME, fused(tasks, build.updates_of_layers(int(options.update_stream)), build.tensors), options)
