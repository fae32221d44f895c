"""Forward-fusion: each layer is updated just before its next forward (Jiang et al., "Optimizer Fusion", algorithm 2)."""

from dataclasses import dataclass

from simulator.engine.costs.cost import PlanCosts
from simulator.machine.machine import Machine
from simulator.model.job import Job
from simulator.plan.fusion import delayed
from simulator.plan.plan import Plan
from simulator.strategies.builder import PlanBuilder

NAME = "forward-fusion"
FAMILY = "fusion"
ABOUT = "delay each layer's update until just before its next forward"


@dataclass(frozen=True)
class Options:
    """No options."""


def plan(job: Job, machine: Machine, costs: PlanCosts | None, options: Options) -> Plan:
    """Baseline's tasks, with one update per layer (lag 1) before the first task that reads its parameters.

    The lag plays the role of the paper's flag: the first iteration has nothing to update, a shared layer is updated once, and pending
    updates are flushed whenever the plan drains (evaluation, state_dict, the end of training).

    >>> from simulator.machine.presets import load_machine
    >>> tasks = plan(Job("lenet5", batch=64), load_machine("h100"), None, Options()).tasks
    >>> [(task.layer, task.phase, task.lag) for task in tasks if task.layer == "features.3"][:2]
    [('features.3', 'update', 1), ('features.3', 'forward', 0)]
    """
    build = PlanBuilder(job, machine.devices[0].name)
    tasks = build.step()
    return build.plan(
        NAME,
        delayed(tasks, build.updates_of_layers(lag=1), build.tensors),
        options,
        {"updates": "delayed to the next forward; sync() flushes them"},
    )
