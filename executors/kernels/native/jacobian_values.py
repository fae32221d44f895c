"""Launches of `jacobian_values.cu`: the Jacobians of all steps as one kernel."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from executors.kernels.native.compile import kernel, source
from simulator.bodies.jacobian_rules import RnnSteps, Rule

_THREADS, _MATRICES = 128, 8


def steps(rule: Rule, places: Sequence[int], real: str, width: int, device: torch.device) -> Callable[..., Tensor] | None:
    """What the rule's batched form gives of the task's reads, in one launch. `places`: which step each Jacobian comes from."""
    text = source("jacobian_values.cu", {"REAL": real, "H": width, "THREADS": _THREADS, "MATRICES": _MATRICES})
    launch = kernel(text, f"stepcast_{rule.of}_jacobians")
    table = torch.tensor(places, dtype=torch.int32, device=device)
    more = [int(rule.nonlinearity == "relu")] if isinstance(rule, RnnSteps) else []

    def run(*reads: Tensor) -> Tensor:
        first, samples = reads[0], reads[0].shape[1]
        found = first.new_empty(len(places), samples, width, width)
        count = len(places) * samples
        grid = (-(-count // _MATRICES), -(-width * width // _THREADS), 1)
        launch(grid, (_THREADS, 1, 1), [*(tensor.contiguous() for tensor in reads), table, found, count, samples, *more])
        return found

    return run if launch is not None else None
