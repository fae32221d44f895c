"""Do all devices that have a parameter have the same one?"""

from collections.abc import Mapping

import torch

from executors.binding import Binding, apply_views
from simulator.plan.task import PARAMETER


def parameter_difference(binding: Binding, expected: Mapping[str, torch.Tensor]) -> float:
    """max|a − b| over every device's copy of the parameters in `expected`, which are named as the job names them; not finite where a
    difference is not. 0 where the binding has none of them.
    """
    worst = 0.0
    for name, value in binding.plan.values.items():
        if value.kind == PARAMETER and value.source is not None and value.source.value in expected and name in binding.carried:
            wanted = apply_views(expected[value.source.value].detach(), value.source)
            found = binding.carried[name]
            difference = float((found - wanted.to(found.device)).abs().max()) if found.numel() else 0.0
            if not difference <= worst:  # also where it is not a number
                worst = difference
            if worst != worst:
                break
    return worst
