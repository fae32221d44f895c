"""Runs a plan on a backend, or a run that goes from one plan to another."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from executors import in_turn
from executors.measured import Measured, PlanTimes
from executors.program import Backend
from simulator.plan.plan import Plan
from simulator.plan.tensors import cut_tensors
from traces.documents.timeline import Timeline


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
        self._program = in_turn.load(backend, plan, tensors, seed, keep)
        self._warm_up = self._program.warm_up
        self._lengths_s: list[float] = []
        self._parts: list[PlanTimes] = []  # of a run that follows several plans, what was measured of each
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

        Of a run that follows several plans, once all were measured, steps of the whole run (`in_turn.run_steps_s`).
        """
        if whole := in_turn.run_steps_s(self._plan, self._parts, self._warm_up):
            return whole
        return tuple(self._lengths_s[self._warm_up :] or self._lengths_s)

    def run(self, steps: int, feeds: "list[Feeds] | None" = None) -> None:
        """Run `steps` more iterations back to back. `feeds`: one per iteration (default: the job's own inputs every time)."""
        chunk = self._program.run(steps, feeds)
        before_s = self.ends_s[-1] if self.ends_s else 0.0
        self.ends_s += [before_s + end_s for end_s in chunk.ends_s]
        self._lengths_s += chunk.steps_s
        self._parts += chunk.parts
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
        peak_bytes = in_turn.peak_bytes(self._backend, self._plan, self._tensors, self._seed)
        if timeline:
            times = times or in_turn.load(self._backend, self._plan, self._tensors, self._seed).trace()
            measured_timeline = in_turn.timeline_of(self._plan, times, self.steps_s, self._backend.mode, peak_bytes)
        return Run(measured_timeline, self.steps_s, self.losses, carried, kept, peak_bytes)


def execute(
    plan: Plan, tensors: Mapping[str, torch.Tensor], backend: Backend, steps: int = 10, keep: tuple[str, ...] = (), seed: int = 0
) -> Run:
    """Run `steps` iterations of `plan` back to back and drain. See `Execution`."""
    execution = Execution(plan, tensors, backend, seed, keep)
    execution.run(steps)
    return execution.finish()
