"""Runs a plan on a backend, and defines the interfaces of backends and the result of a run."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import torch

from executors.binding import Binding, Forms
from executors.errors import PeerLostError
from executors.measured import ChunkTimes, Measured, SegmentTimes, run_steps_s, timeline_of
from simulator.model.user_code import brief
from simulator.plan.plan import Plan
from simulator.plan.task import Task
from simulator.plan.tensors import cut_tensors
from traces.documents.timeline import Timeline
from traces.errors import SchedcastError, out_of_memory


@dataclass
class Run:
    """Result of `execute`.

    `timeline`: None if none was requested. `step_s`: seconds per step, one per steady step. `losses`: one per iteration. `tensors`: the
    carried tensors by value name, after all updates, and whole tensors of the job of which the plan has pieces. `kept`: the values named in
    `keep`, of the last iteration. `peak_bytes`: the allocator's figure by device.
    """

    timeline: Timeline | None
    step_s: tuple[float, ...]
    losses: tuple[float, ...]
    tensors: dict[str, torch.Tensor]
    kept: dict[str, torch.Tensor] = field(default_factory=dict)
    peak_bytes: dict[str, int] = field(default_factory=dict)


class TaskFailedError(SchedcastError):
    """A task raised an error. The program that it belongs to is unusable; the backend can still be used."""


class Executable(Protocol):
    """A plan bound to tensors on a backend. It retains its state between calls.

    `losses`: by iteration, one tensor per microbatch. `unit`: `run` returns one step length per `unit` periods. `warm_up`: how many step
    lengths at the start are not typical. `tracing_overhead`: the relative slowdown of the steps in which `trace` timed the tasks, compared
    with steps without events.
    """

    losses: dict[int, tuple[torch.Tensor, ...]]
    unit: int
    warm_up: int
    tracing_overhead: float | None

    @property
    def binding(self) -> Binding:
        """The values' tensors."""

    @property
    def kept(self) -> dict[str, torch.Tensor]:
        """The retained values of the last complete iteration."""

    @property
    def iterations(self) -> int:
        """How many iterations have begun."""

    def run(self, steps: int, inputs: "list[Mapping[str, torch.Tensor]] | None" = None) -> ChunkTimes:
        """Issue `steps` more periods back to back and wait for them. `inputs`: the feeds of each iteration (default: the job's own)."""

    def sync(self) -> ChunkTimes:
        """Drain: run the lagging tasks, so that every iteration begun is complete. The next run starts a new prologue."""

    def trace(self) -> list[Measured]:
        """The times of every task in some typical periods. Runs more periods for them."""

    def copy_current(self, targets: Mapping[str, torch.Tensor]) -> None:
        """Copy the current parameters, buffers and optimizer state into `targets`, by the job's names, between two runs.

        A tensor in `targets` is whole, also if the plan has it in pieces; what no piece covers stays. Nothing is drained. They are the
        newest ones: if stages work on different iterations, each stage's values have all updates that it has made.
        """

    def parameter_difference(self, expected: Mapping[str, torch.Tensor]) -> float:
        """The largest |a − b| between any device's current copy of a parameter and its value in `expected`; see `executors.tensors`."""

    def gradient_difference(self, expected: Mapping[str, torch.Tensor]) -> float:
        """The same of the gradients by parameter. The plan's gradients must be among the retained values."""


class Backend(Protocol):
    """A place where plans run. `mode`: eager or graph. `unit`: periods per graph, or 1. `forms`: the forms of canonical ops."""

    mode: str
    unit: int
    forms: Forms
    torch_device: torch.device

    def load(self, plan: Plan, tensors: Mapping[str, torch.Tensor], seed: int = 0, keep: tuple[str, ...] = ()) -> Executable:
        """Bind a plan to tensors by name (parameters, buffers, optimizer state and inputs of the job)."""

    def peak_bytes(self, plan: Plan, tensors: Mapping[str, torch.Tensor], seed: int = 0) -> dict[str, int]:
        """Peak bytes of the allocator for the plan in an untimed run, by device; empty if the allocator has no count.

        If the allocator counts several devices of one memory together, the one figure is under the memory's name.
        """


#: Periods at the start of a program that are not counted.
WARM_UP = 3

#: New values of the job's inputs and targets for one iteration, by name (`input:0`, `target:0`).
Feeds = Mapping[str, torch.Tensor]


class Execution:
    """The execution of a plan, in one or more chunks of iterations.

    `losses`: by iteration. `ends_s`: when each iteration ended, in seconds from the first one's start, without the time between chunks.
    `steps_s`: seconds per step, one for each step after the first of its chunk.
    """

    def __init__(self, plan: Plan, tensors: Mapping[str, torch.Tensor], backend: Backend, seed: int = 0, keep: tuple[str, ...] = ()):
        """`tensors` are copied and never changed. `keep`: names of values, such as gradients, to retain beyond their last reader."""
        self._plan, self._tensors, self._backend, self._seed, self._keep = plan, tensors, backend, seed, keep
        self._program = backend.load(plan, tensors, seed, keep)
        self._warm_up = self._program.warm_up
        self._lengths_s: list[float] = []
        self._segments: list[SegmentTimes] = []  # of a plan of several segments, what was measured of each
        self._times: tuple[Measured, ...] = ()  # of the last chunk only, since those of all chunks would fill the memory
        self._losses: dict[int, float] = {}
        self.ends_s: list[float] = []

    @property
    def losses(self) -> tuple[float, ...]:
        """The losses computed so far, by iteration."""
        return tuple(loss for _, loss in sorted(self._losses.items()))

    @property
    def steps_s(self) -> tuple[float, ...]:
        """Seconds per step. Skips the first steps, which are not typical, unless there are no others.

        Of a plan of several segments, once all were measured, steps of a whole run (`run_steps_s`).
        """
        if whole := run_steps_s(self._plan.parts, self._segments, self._warm_up):
            return whole
        return tuple(self._lengths_s[self._warm_up :] or self._lengths_s)

    def run(self, steps: int, feeds: "list[Feeds] | None" = None) -> None:
        """Run `steps` more iterations back to back. `feeds`: one per iteration (default: the job's own inputs every time)."""
        chunk = self._program.run(steps, feeds)
        before_s = self.ends_s[-1] if self.ends_s else 0.0
        self.ends_s += [before_s + end_s for end_s in chunk.ends_s]
        self._lengths_s += chunk.steps_s
        self._segments += chunk.segments
        self._times = chunk.times
        self._take_losses()

    def copy_current(self, targets: Mapping[str, torch.Tensor]) -> None:
        self._program.copy_current(targets)

    def _take_losses(self) -> None:
        losses = self._program.losses
        for iteration in list(losses):
            of_microbatches = [float(loss) for loss in losses.pop(iteration)]
            self._losses[iteration] = sum(of_microbatches) / len(of_microbatches)

    def drain(self) -> None:
        """Complete every iteration begun, so that all have a loss. The next run starts a new prologue."""
        self._times = (*self._times, *self._program.sync().times)
        self._take_losses()

    def finish(self, timeline: bool = True) -> Run:
        """Complete every iteration begun, and return the result of the run. Task times are those of the last chunk.

        Peak bytes come from an extra run, and so do task times if the backend measures them separately from steps.
        """
        self.drain()
        times = list(self._times)
        program = self._program
        del self._program  # its memory is free before the peak is measured
        kept = {name: tensor for name, tensor in program.kept.items() if name in self._keep}
        whole = {name: self._tensors[name].detach().clone() for name in cut_tensors(self._plan) if name in self._tensors}
        if whole:
            program.copy_current(whole)
        carried = {**program.binding.carried, **whole}
        del program
        measured_timeline = None
        peak_bytes = self._backend.peak_bytes(self._plan, self._tensors, self._seed)
        if timeline:
            times = times or self._backend.load(self._plan, self._tensors, self._seed).trace()
            measured_timeline = timeline_of(self._plan, times, self.steps_s, self._backend.mode, peak_bytes)
        return Run(measured_timeline, self.steps_s, self.losses, carried, kept, peak_bytes)


def execute(
    plan: Plan, tensors: Mapping[str, torch.Tensor], backend: Backend, steps: int = 10, keep: tuple[str, ...] = (), seed: int = 0
) -> Run:
    """Run `steps` iterations of `plan` back to back and drain. See `Execution`."""
    execution = Execution(plan, tensors, backend, seed, keep)
    execution.run(steps)
    return execution.finish()


#: What to do about a task that failed.
RUN_PLAIN = "run the model in plain PyTorch to see why"


def failure(task: Task, error: Exception, advice: str = RUN_PLAIN) -> Exception:
    """The error to raise after a task raised `error`: a TaskFailedError with the advice, or `error` itself if it is not the task's fault.

    That is so if memory ran out or another process was lost.
    """
    if isinstance(error, PeerLostError) or out_of_memory(error):
        return error
    where = f" in layer {task.layer!r}" if task.layer else ""
    if isinstance(error, SchedcastError):
        return TaskFailedError(f"task {task.name}{where}: {error}")
    return TaskFailedError(f"task {task.name}{where} failed: {brief(error)}; {advice}")
