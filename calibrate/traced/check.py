"""How well a profile made from a trace predicts the recorded step: with all of its keys, and without those of every second layer.

The first is no evidence, since the costs are those of the step; it says whether launches, gaps and the host were understood. The second
says what a cost is worth that the fits supply, as for another batch: half of the layers have no recorded cost then.
"""

from collections.abc import Collection
from dataclasses import dataclass

from simulator.engine.costs.model import CostModel
from simulator.engine.simulation import simulate
from simulator.machine.machine import Machine
from simulator.plan.keys import cost_key
from simulator.plan.plan import Plan
from traces.documents.profile import Profile


@dataclass(frozen=True)
class Check:
    """Seconds of one step alone, from its first kernel to its last. `held_out_s`: without the keys of every second layer.

    `held_out_kernels`: predicted over recorded seconds of the hidden keys' kernels, minus 1.
    """

    step_s: float
    held_out_s: float
    held_out_kernels: float


def checked(plan: Plan, machine: Machine, profile: Profile, precision: str | None) -> Check:
    """Predict one step of plain PyTorch's `plan` on the profile's `machine`, which starts with an idle GPU, as after data was loaded."""
    hidden = every_second_layer(plan, machine)
    rest = profile.model_copy(update={"costs": {key: cost for key, cost in profile.costs.items() if key not in hidden}})
    model, held_out = (CostModel(machine, each, precision).for_pytorch for each in (profile, rest))
    predicted, recorded = 0.0, 0.0
    for task, fitted, cost in zip(plan.tasks, held_out.resolve(plan), model.resolve(plan), strict=True):
        if cost_key(task, machine) in hidden and cost.source == "measured":
            predicted, recorded = predicted + fitted.cold_s, recorded + cost.cold_s
    return Check(alone_s(plan, model), alone_s(plan, held_out), predicted / recorded - 1 if recorded else 0.0)


def every_second_layer(plan: Plan, machine: Machine) -> Collection[str]:
    """The keys of the ops of every second layer with parameters or activations, in the order of their first op."""
    tasks = [task for task in plan.tasks if task.body.op]
    layers = list(dict.fromkeys(task.layer for task in tasks))[1::2]
    return {cost_key(task, machine) for task in tasks if task.layer in layers}


def alone_s(plan: Plan, model: CostModel) -> float:
    """Seconds from the first kernel of a single step to its last."""
    timeline = simulate(plan, model.machine, model.resolve(plan), iterations=1)
    spans = [span for span in timeline.spans if span.device in plan.devices]
    return max(span.end_s for span in spans) - min(span.start_s for span in spans)
