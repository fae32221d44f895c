"""Checks that all devices hold the same value of each parameter."""

from collections.abc import Mapping

import torch

from executors.binding import Binding, apply_views
from simulator.plan.task import PARAMETER


def parameter_difference(binding: Binding, expected: Mapping[str, torch.Tensor]) -> float:
    """The largest |a − b| between any device's copy of a parameter and its expected value.

    `expected` has the parameters by the job's names. Returns 0 if the binding has none of them, and a value that is not finite if a
    difference is not finite.
    """
    worst = 0.0
    for name, value in binding.plan.values.items():
        if value.kind == PARAMETER and value.source is not None and value.source.value in expected and name in binding.carried:
            correct = apply_views(expected[value.source.value].detach(), value.source)
            actual = binding.carried[name]
            difference = float((actual - correct.to(actual.device)).abs().max()) if actual.numel() else 0.0
            if not difference <= worst:  # also true if the difference is NaN
                worst = difference
            if worst != worst:
                break
    return worst
