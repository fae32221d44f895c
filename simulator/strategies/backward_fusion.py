"""Backward-fusion: each layer is updated as soon as its gradient is complete (Jiang et al., "Optimizer Fusion", algorithm 3)."""

from dataclasses import dataclass

from simulator.build import PlanBuilder, insert
from simulator.plan.plan import Plan

NAME = "backward-fusion"
ABOUT = "update each layer in backward, as soon as its gradient is complete and its old value is no longer read"


@dataclass(frozen=True)
class Options:
    """Where the updates run."""

    update_stream: bool = False
    """Updates on a second stream, beside the rest of backward."""


def plan(job, machine, costs, options: Options) -> Plan:
    """Baseline's tasks, with one update per layer as soon as it may be updated (`PlanBuilder.ready`).

    Refuses global-norm clipping, which needs every gradient before the first update.
    """
    build = PlanBuilder(job, machine.devices[0].name)
    build.refuse_clipping(NAME, "forward-fusion")
    tasks = build.step()
    stream = int(options.update_stream)
    updates = [
        (last + 1, build.update(build.layers[layer], f"{layer}/update", layer, stream=stream)) for layer, last in build.ready(tasks).items()
    ]
    return build.plan(NAME, insert(tasks, updates), options)
