"""Backward-fusion: each layer is updated as soon as its gradient is complete (Jiang et al., "Optimizer Fusion", algorithm 3)."""

from dataclasses import dataclass

from traces.errors import StepcastError

from ..build import PlanBuilder, insert, last_access
from ..plan import Plan, Task

NAME = "backward-fusion"
ABOUT = "update each layer in backward, as soon as its gradient is complete and its old value is no longer read"


@dataclass(frozen=True)
class Options:
    """Where the updates run."""

    update_stream: bool = False
    """Updates on a second stream, beside the rest of backward."""


def plan(job, machine, costs, options: Options) -> Plan:
    """Baseline's tasks, with one update per layer behind the last task that touches its gradients or reads its parameters.

    These are the paper's use count and its race rule. Refuses global-norm clipping, which needs every gradient before the first update.
    """
    if job.clip_norm is not None:
        raise StepcastError(
            f"backward-fusion cannot clip by the global norm (--clip-norm {job.clip_norm}): it updates before all gradients are known;"
            " use forward-fusion"
        )
    device = machine.devices[0]
    build = PlanBuilder(job, device.name)
    tasks: list[Task] = []
    for micro_batch in range(job.accumulate):
        tasks += build.forward(micro_batch) + build.backward(micro_batch)
    storages = {}  # what an update must wait for: storage -> layers
    for layer, owned in build.layers.items():
        for parameter in owned:
            storages[build.storage(parameter)] = layer
            storages[build.storage(build.gradient(parameter).value)] = layer
    ready = last_access(tasks, lambda task: {storages[s] for s in build.touched(task) if s in storages})
    stream, priority = (1, 0) if options.update_stream else (0, 0)
    updates = [
        (ready[layer] + 1, build.update(owned, f"{layer}/update", layer, stream=stream, priority=priority))
        for layer, owned in sorted(build.layers.items(), key=lambda item: ready[item[0]])
    ]
    return build.plan(NAME, insert(tasks, updates), options)
