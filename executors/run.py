"""What an execution gives back, and the entry that runs a plan."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import torch

from simulator.factory import brief
from simulator.plan import Plan, Task
from traces.errors import StepcastError
from traces.timeline import Timeline

from .binding import Binding
from .forms import Forms
from .measured import Measured, Passage, timeline_of


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

    `losses` by iteration (one tensor per micro-batch), `kept` values of the last complete iteration, `iterations` begun so far. A call of
    `run` gives one step length per `unit` periods; the first `warm_up` of a program's life are not typical. `twin_overhead`: by what share
    the steps that `trace` timed tasks in were slower than those without events.
    """

    binding: Binding
    losses: dict[int, tuple[torch.Tensor, ...]]
    kept: dict[str, torch.Tensor]
    iterations: int
    unit: int
    warm_up: int
    twin_overhead: float | None

    def run(self, steps: int, inputs: "list[Mapping[str, torch.Tensor]] | None" = None) -> Passage:
        """Issue `steps` more periods, back to back, and wait for them."""

    def sync(self) -> Passage:
        """Drain: run what lags behind, so that every iteration begun is complete. The next run starts a new prologue."""

    def trace(self) -> list[Measured]:
        """Times of every task in some typical periods; runs more of them where tasks are timed apart from steps."""


class Backend(Protocol):
    """Where plans run. `mode`: eager or graph; `unit`: periods per graph, or 1. `forms`: how canonical ops run there."""

    mode: str
    unit: int
    forms: Forms
    torch_device: torch.device

    def load(self, plan: Plan, tensors: Mapping[str, torch.Tensor], seed: int = 0, keep: tuple[str, ...] = ()) -> Executable:
        """Bind a plan to tensors by name (parameters, buffers, optimizer state and inputs of the job)."""

    def peak_bytes(self, plan: Plan, tensors: Mapping[str, torch.Tensor], seed: int = 0) -> dict[str, int]:
        """Highest bytes that the allocator held for the plan in an untimed run, by device; empty where it does not say."""


#: Periods at the start of a program's life that do not count.
WARM_UP = 3


def execute(
    plan: Plan, tensors: Mapping[str, torch.Tensor], backend: Backend, steps: int = 10, keep: tuple[str, ...] = (), seed: int = 0
) -> Run:
    """Run `steps` iterations of `plan` back to back and drain; the first WARM_UP steps are not reported when there are more.

    `tensors` are copied, never changed. `keep` names values (such as gradients) to hold beyond their last reader. Task times, where the
    backend takes them apart from steps, and peak bytes come from extra runs.
    """
    program = backend.load(plan, tensors, seed, keep)
    passage = program.run(steps)
    drained = program.sync()
    per_step = passage.steps_s[program.warm_up :] or passage.steps_s
    losses = tuple(float(sum(map(float, parts)) / len(parts)) for _, parts in sorted(program.losses.items()))
    kept = {name: tensor for name, tensor in program.kept.items() if name in keep}
    carried = dict(program.binding.carried)
    del program
    times = [*passage.times, *drained.times] or backend.load(plan, tensors, seed).trace()
    timeline = timeline_of(plan, times, per_step, backend.mode)
    return Run(timeline, per_step, losses, carried, kept, backend.peak_bytes(plan, tensors, seed))


def failure(task: Task, error: Exception) -> Exception:
    """What to raise where a task raised `error`: itself where memory ran out, which is no fault of the task's."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or "not enough memory" in str(error):
        return error
    where = f" in layer {task.layer!r}" if task.layer else ""
    return TaskFailedError(f"task {task.name}{where} failed: {brief(error)}; run the model in plain PyTorch to see why")
