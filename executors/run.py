"""What an execution gives back, and the entry that runs a plan."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import torch

from simulator.plan import Plan
from traces.errors import StepcastError
from traces.timeline import Timeline

from .measured import Measured, steady_steps, timeline_of


@dataclass
class Run:
    """Result of `execute`.

    `step_s` are seconds per step, one per steady step; `losses` one per iteration; `tensors` the carried tensors by value name at the end
    (all updates applied); `kept` the values asked for with `keep`, of the last iteration.
    """

    timeline: Timeline
    step_s: tuple[float, ...]
    losses: tuple[float, ...]
    tensors: dict[str, torch.Tensor]
    kept: dict[str, torch.Tensor] = field(default_factory=dict)
    peak_bytes: dict[str, int] = field(default_factory=dict)


class TaskFailedError(StepcastError):
    """A task raised. What ran beside it is of no use any more; the backend is."""


class Executable(Protocol):
    """A plan bound to tensors on a backend, keeping its state between calls.

    `losses` by iteration (one tensor per micro-batch), `kept` values of the last complete iteration, `iterations` begun so far.
    """

    losses: dict[int, tuple[torch.Tensor, ...]]
    kept: dict[str, torch.Tensor]
    iterations: int

    def run(self, steps: int, inputs: "list[Mapping[str, torch.Tensor]] | None" = None) -> list[Measured]:
        """Issue `steps` more periods, back to back, and wait for them."""

    def sync(self) -> list[Measured]:
        """Drain: run what lags behind, so that every iteration begun is complete. The next run starts a new prologue."""


class Backend(Protocol):
    """Where plans run."""

    def load(self, plan: Plan, tensors: Mapping[str, torch.Tensor], seed: int = 0, keep: tuple[str, ...] = ()) -> Executable:
        """Bind a plan to tensors by name (parameters, buffers, optimizer state and inputs of the job)."""


WARM_UP = 3


def execute(
    plan: Plan, tensors: Mapping[str, torch.Tensor], backend: Backend, steps: int = 10, keep: tuple[str, ...] = (), seed: int = 0
) -> Run:
    """Run `steps` iterations of `plan` back to back and drain; the first WARM_UP steps are not reported when there are more.

    `tensors` are copied, never changed. `keep` names values (such as gradients) to hold beyond their last reader. Peak bytes come from an
    untimed extra run.
    """
    program = backend.load(plan, tensors, seed, keep)
    times = program.run(steps)
    drained = program.sync()
    per_step = steady_steps(times, WARM_UP if steps > WARM_UP + 1 else min(1, steps - 1))
    timeline = timeline_of(plan, [*times, *drained], per_step)
    losses = tuple(float(sum(map(float, parts)) / len(parts)) for _, parts in sorted(program.losses.items()))
    kept = {name: tensor for name, tensor in program.kept.items() if name in keep}
    return Run(timeline, per_step, losses, dict(program.binding.carried), kept, backend.peak_bytes(plan, tensors, seed))
