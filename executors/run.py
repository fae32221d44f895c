"""What an execution gives back, and the entry that runs a plan."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import torch

from executors.binding import Binding
from executors.errors import PeerLostError
from executors.forms import Forms
from executors.measured import ChunkTimes, Measured, timeline_of
from simulator.models.factory import brief
from simulator.plan.plan import Plan
from simulator.plan.task import Task
from traces.errors import StepcastError
from traces.timeline import Timeline


@dataclass
class Run:
    """Result of `execute`.

    `timeline` is None where none was asked for. `step_s` are seconds per step, one per steady step; `losses` one per iteration; `tensors`
    the carried tensors by value name at the end (all updates applied); `kept` the values asked for with `keep`, of the last iteration;
    `peak_bytes` the allocator's figure by device.
    """

    timeline: Timeline | None
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

    def run(self, steps: int, inputs: "list[Mapping[str, torch.Tensor]] | None" = None) -> ChunkTimes:
        """Issue `steps` more periods, back to back, and wait for them."""

    def sync(self) -> ChunkTimes:
        """Drain: run what lags behind, so that every iteration begun is complete. The next run starts a new prologue."""

    def trace(self) -> list[Measured]:
        """Times of every task in some typical periods; runs more of them where tasks are timed apart from steps."""

    def parameter_difference(self, expected: Mapping[str, torch.Tensor]) -> float:
        """max|a − b| over every device's copy of the parameters in `expected`, as they are now; see `replicas`."""


class Backend(Protocol):
    """Where plans run. `mode`: eager or graph; `unit`: periods per graph, or 1. `forms`: how canonical ops run there."""

    mode: str
    unit: int
    forms: Forms
    torch_device: torch.device

    def load(self, plan: Plan, tensors: Mapping[str, torch.Tensor], seed: int = 0, keep: tuple[str, ...] = ()) -> Executable:
        """Bind a plan to tensors by name (parameters, buffers, optimizer state and inputs of the job)."""

    def peak_bytes(self, plan: Plan, tensors: Mapping[str, torch.Tensor], seed: int = 0) -> dict[str, int]:
        """Highest bytes that the allocator held for the plan in an untimed run, by device; empty where it does not say.

        Where the allocator counts several devices of one memory together, the one figure is under the memory's name.
        """


#: Periods at the start of a program's life that do not count.
WARM_UP = 3


#: New values of the job's inputs and targets for one iteration, by name (`input:0`, `target:0`).
Feeds = Mapping[str, torch.Tensor]


class Execution:
    """A plan being executed, chunk of iterations after chunk.

    `losses` by iteration and `ends_s`, when each iteration ended: seconds of steps since the first began, without what was done between
    the chunks. `steps_s` are seconds per step, one per step after the first of its chunk.
    """

    def __init__(self, plan: Plan, tensors: Mapping[str, torch.Tensor], backend: Backend, seed: int = 0, keep: tuple[str, ...] = ()):
        """`tensors` are copied, never changed. `keep` names values (such as gradients) to hold beyond their last reader."""
        self._plan, self._tensors, self._backend, self._seed, self._keep = plan, tensors, backend, seed, keep
        self._program = backend.load(plan, tensors, seed, keep)
        self._warm_up = self._program.warm_up
        self._lengths_s: list[float] = []
        self._times: tuple[Measured, ...] = ()  # of the last chunk: those of all would fill the memory
        self._losses: dict[int, float] = {}
        self.ends_s: list[float] = []

    @property
    def losses(self) -> tuple[float, ...]:
        """By iteration."""
        return tuple(loss for _, loss in sorted(self._losses.items()))

    @property
    def steps_s(self) -> tuple[float, ...]:
        """Without the first steps, which are not typical, when there are more."""
        return tuple(self._lengths_s[self._warm_up :] or self._lengths_s)

    def run(self, steps: int, feeds: "list[Feeds] | None" = None) -> None:
        """Run `steps` more iterations back to back; `feeds` for each of them (default: the job's own inputs, every time)."""
        chunk = self._program.run(steps, feeds)
        before_s = self.ends_s[-1] if self.ends_s else 0.0
        self.ends_s += [before_s + end_s for end_s in chunk.ends_s]
        self._lengths_s += chunk.steps_s
        self._times = chunk.times
        self._take_losses()

    def _take_losses(self) -> None:
        found = self._program.losses
        for iteration in list(found):
            parts = [float(part) for part in found.pop(iteration)]
            self._losses[iteration] = sum(parts) / len(parts)

    def finish(self, timeline: bool = True) -> Run:
        """Complete every iteration begun. Task times are those of the last chunk.

        Peak bytes, and task times where the backend takes them apart from steps, come from extra runs.
        """
        times = [*self._times, *self._program.sync().times]
        self._take_losses()
        program, self._program = self._program, None
        kept = {name: tensor for name, tensor in program.kept.items() if name in self._keep}
        carried = dict(program.binding.carried)
        del program
        made = None
        peak_bytes = self._backend.peak_bytes(self._plan, self._tensors, self._seed)
        if timeline:
            times = times or self._backend.load(self._plan, self._tensors, self._seed).trace()
            made = timeline_of(self._plan, times, self.steps_s, self._backend.mode, peak_bytes)
        return Run(made, self.steps_s, self.losses, carried, kept, peak_bytes)


def execute(
    plan: Plan, tensors: Mapping[str, torch.Tensor], backend: Backend, steps: int = 10, keep: tuple[str, ...] = (), seed: int = 0
) -> Run:
    """Run `steps` iterations of `plan` back to back and drain. See `Execution`."""
    execution = Execution(plan, tensors, backend, seed, keep)
    execution.run(steps)
    return execution.finish()


def failure(task: Task, error: Exception) -> Exception:
    """What to raise where a task raised `error`: itself where memory ran out, or another process, which is no fault of the task's."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError | PeerLostError) or "not enough memory" in str(error):
        return error
    where = f" in layer {task.layer!r}" if task.layer else ""
    return TaskFailedError(f"task {task.name}{where} failed: {brief(error)}; run the model in plain PyTorch to see why")
