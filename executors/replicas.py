"""Reads the parameters that a program has on its devices, and compares them and its gradients with expected ones."""

from collections.abc import Iterable, Mapping

import torch

from executors.binding import Binding, apply_views
from simulator.plan.plan import Plan
from simulator.plan.task import BUFFER, PARAMETER, Operand, Value


def parameter_difference(binding: Binding, expected: Mapping[str, torch.Tensor]) -> float:
    """The largest |a − b| between any device's copy of a parameter and its expected value.

    `expected` has the parameters by the job's names. Returns 0 if the binding has none of them, and a value that is not finite if a
    difference is not finite.
    """
    return _largest(
        (binding.carried[name], apply_views(expected[value.source.value].detach(), value.source))
        for name, value in binding.plan.values.items()
        if value.kind == PARAMETER and value.source is not None and value.source.value in expected and name in binding.carried
    )


def gradient_difference(binding: Binding, kept: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor]) -> float:
    """The largest |a − b| between a gradient of the binding's plan, which is among the values `kept`, and the one that is expected.

    `expected` has them by the job's names of the parameters. Returns as `parameter_difference` does.
    """
    gradients = binding.plan.gradients.items()
    return _largest((apply_views(kept[operand.value], operand), expected[name]) for name, operand in gradients if name in expected)


def _largest(pairs: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> float:
    """The largest |actual − correct|; NaN if one is."""
    worst = 0.0
    for actual, correct in pairs:
        difference = float((actual - correct.to(actual.device)).abs().max()) if actual.numel() else 0.0
        if not difference <= worst:  # also true if the difference is NaN
            worst = difference
        if worst != worst:
            break
    return worst


def current_values(plan: Plan) -> list[Value]:
    """The parameters and buffers of a plan that hold the job's, or shards of them. Of several replicas, only the first."""
    first: dict[Operand, Value] = {}
    for value in plan.values.values():
        if value.kind in (PARAMETER, BUFFER) and value.source is not None:
            first.setdefault(value.source, value)
    return list(first.values())


def copy_current(plan: Plan, carried: Mapping[str, torch.Tensor], targets: Mapping[str, torch.Tensor]) -> None:
    """Copy parameters and buffers, as they are now, into `targets`, by the job's names. `carried`: those of the plan, by value name."""
    with torch.no_grad():
        for value in current_values(plan):
            if value.source.value in targets and value.name in carried:
                apply_views(targets[value.source.value].detach(), value.source).copy_(carried[value.name])
