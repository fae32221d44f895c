"""Reads the tensors that a program has on its devices, whole or in pieces, and compares them and its gradients with expected ones."""

from collections.abc import Iterable, Mapping

import torch

from executors.binding import Binding, apply_views
from simulator.plan.pieces import held
from simulator.plan.plan import Plan
from simulator.plan.task import PARAMETER


def parameter_difference(binding: Binding, expected: Mapping[str, torch.Tensor]) -> float:
    """The largest |a − b| between any device's copy of a parameter, or piece of one, and its expected value.

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
    sources = binding.plan.gradient_sources
    return _largest(
        (apply_views(kept[operand.value], operand), apply_views(expected[sources[name].value], sources[name]))
        for name, operand in binding.plan.gradients.items()
        if sources[name].value in expected
    )


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


def copy_current(plan: Plan, carried: Mapping[str, torch.Tensor], targets: Mapping[str, torch.Tensor]) -> None:
    """Copy parameters, buffers and optimizer state, as they are now, into the whole tensors `targets`, by the job's names.

    `carried`: those of the plan, by value name. Every element comes from the first value that has it. Elements that none has stay.
    """
    with torch.no_grad():
        for value in reversed(held(plan, targets)):  # so that the first one is the last to be copied
            if value.name in carried:
                apply_views(targets[value.source.value].detach(), value.source).copy_(carried[value.name])
