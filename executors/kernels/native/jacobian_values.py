"""Launches the kernels of `jacobian_values.cu`, which compute the Jacobians of all steps of a recurrent layer in one launch."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from executors.kernels.native.compile import kernel, source
from simulator.plan.bodies.jacobian_rules import RnnSteps, Rule

_THREADS, _MATRICES = 128, 8


def steps(rule: Rule, places: Sequence[int], c_type: str, width: int, device: torch.device) -> Callable[..., Tensor] | None:
    """A function from the task's reads to the Jacobians [m, B, H, H], like the batched functions of `executors.kernels.jacobian_values`.

    `places`: the step of each Jacobian. Returns None if the kernel cannot be compiled.
    """
    text = source("jacobian_values.cu", {"REAL": c_type, "H": width, "THREADS": _THREADS, "MATRICES": _MATRICES})
    launch = kernel(text, f"schedcast_{rule.of}_jacobians")
    table = torch.tensor(places, dtype=torch.int32, device=device)
    flags = [int(rule.nonlinearity == "relu")] if isinstance(rule, RnnSteps) else []

    def run(*reads: Tensor) -> Tensor:
        first, samples = reads[0], reads[0].shape[1]
        jacobians = first.new_empty(len(places), samples, width, width)
        count = len(places) * samples
        grid = (-(-count // _MATRICES), -(-width * width // _THREADS), 1)
        launch(grid, (_THREADS, 1, 1), [*(tensor.contiguous() for tensor in reads), table, jacobians, count, samples, *flags])
        return jacobians

    return run if launch is not None else None
