"""Plain training: forward, backward, then all updates, on one stream."""

from dataclasses import dataclass

from ..build import PlanBuilder
from ..plan import Plan, Task

NAME = "baseline"
ABOUT = "forward, backward, then the optimizer: what PyTorch does by itself"


@dataclass(frozen=True)
class Options:
    """No options."""


def plan(job, machine, costs, options: Options) -> Plan:
    """Micro-batches one after another, clipping, then one update of all parameters (for-loop form: one per parameter)."""
    build = PlanBuilder(job, machine.devices[0].name)
    tasks: list[Task] = []
    for micro_batch in range(job.accumulate):
        tasks += build.forward(micro_batch) + build.backward(micro_batch)
    tasks += build.clip()
    if job.form == "for":
        tasks += [build.update([p], f"{p}/update", layer) for layer, owned in build.layers.items() for p in owned]
    else:
        tasks.append(build.update(build.graph.parameters, "update", "optimizer"))
    return build.plan(NAME, tasks, options)
