"""Compares the parameters and gradients that a program has on its devices with expected ones."""

from collections.abc import Iterable, Mapping

import torch

from executors.binding import Binding, apply_views
from simulator.plan.task import PARAMETER


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


def current_tensors(binding: Binding, names: Iterable[str]) -> dict[str, torch.Tensor]:
    """Copies in host memory of the parameters and buffers that the binding has, by the job's names, as they are now.

    A tensor that is divided among several values is put together; of several copies, such as those of replicas, the first one is taken.
    Parts that the binding lacks, because another process has them, are NaN.
    """
    wanted, parts = set(names), {}
    for name, value in binding.plan.values.items():
        if value.source is not None and value.source.value in wanted and value.kind in (PARAMETER, BUFFER) and name in binding.carried:
            parts.setdefault(value.source.value, {}).setdefault(value.source.views, (value.source, binding.carried[name]))
    return {name: _assembled(list(of_value.values())) for name, of_value in parts.items()}
