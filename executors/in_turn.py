"""Runs that go from one plan to another: a program for each plan, which continues with the tensors of the previous one.

The programs share the tensors of parameters, buffers and optimizer state, so nothing is copied at a switch. There the program drains, and
the next one starts with the next iteration. The functions also take a plan that a run follows alone.
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate

import torch

from executors import measured
from executors.binding import Binding
from executors.measured import ChunkTimes, Measured, PlanTimes, device_uses
from executors.program import AT_FIRST, Backend, Executable, Start
from simulator.engine.switch import one_after_another
from simulator.plan.plan import Plan
from traces.documents.timeline import Timeline


def load(backend: Backend, plan: Plan, tensors: Mapping[str, torch.Tensor], seed: int = 0, keep: tuple[str, ...] = ()) -> Executable:
    """Load every plan that the run follows. See `Backend.load`."""
    if not plan.earlier:
        return backend.load(plan, tensors, seed, keep)
    start, programs = AT_FIRST, []
    for own in plan.sequence:
        programs.append(backend.load(own, tensors, seed, tuple(name for name in keep if name in own.values), start))
        start = Start(start.iteration + (own.iterations or 0), programs[-1])
    return ProgramsInTurn(plan, programs)


def peak_bytes(backend: Backend, plan: Plan, tensors: Mapping[str, torch.Tensor], seed: int = 0) -> dict[str, int]:
    """By device, the most of `Backend.peak_bytes` over the plans that the run follows."""
    highest: dict[str, int] = {}
    for own in plan.sequence:
        for name, peak in backend.peak_bytes(own, tensors, seed).items():
            highest[name] = max(highest.get(name, 0), peak)
    return highest


class ProgramsInTurn:
    """The programs of a run that follows several plans. See `Executable`. A program is freed when its last iteration is complete."""

    def __init__(self, plan: Plan, programs: Sequence[Executable]):
        """`programs`: one for each plan, in order, which share their carried tensors."""
        self._plan, self._plans = plan, plan.sequence
        self._programs = dict(enumerate(programs))
        self._switches = list(accumulate(own.iterations or 0 for own in plan.earlier))
        self._first_task = [0, *accumulate(len(own.tasks) for own in plan.earlier)]
        self._current = 0
        self.unit, self.warm_up = programs[0].unit, programs[0].warm_up
        self.tracing_overhead: float | None = None
        self.losses: dict[int, tuple[torch.Tensor, ...]] = {}

    @property
    def _program(self) -> Executable:
        """The program of the plan that the next iteration belongs to, unless a switch comes first."""
        return self._programs[self._current]

    @property
    def binding(self) -> Binding:
        """That of the current program. Carried tensors are those of all programs."""
        return self._program.binding

    @property
    def kept(self) -> dict[str, torch.Tensor]:
        return self._program.kept

    @property
    def iterations(self) -> int:
        return self._program.iterations

    def run(self, steps: int, inputs: list[Mapping[str, torch.Tensor]] | None = None) -> ChunkTimes:
        """See `Executable`. A switch comes before the first iteration of the next plan, and counts to that iteration's time."""
        chunks, done = [], 0
        while done < steps:
            if self._left() == 0:
                chunks.append(self._drained(self._current))
                del self._programs[self._current]  # frees its activations, graphs and streams; the next one has the carried tensors
                self._current += 1
            left = self._left()
            count = steps - done if left is None else min(steps - done, left)
            chunks.append(self._chunk(self._current, self._program.run(count, None if inputs is None else inputs[done : done + count])))
            done += count
        return _joined(chunks)

    def sync(self) -> ChunkTimes:
        return _joined([self._drained(self._current)])

    def sample(self, steps: int) -> ChunkTimes:
        """Run `steps` steps of every plan for their times, whatever its number of iterations. Numbers mean nothing afterwards.

        Each plan is completed and, if its tasks lag, filled before its steps are timed. `steps_s` are steps of the whole run.
        """
        chunks = []
        for number, plan in enumerate(self._plans):
            program, lead = self._programs[number], plan.largest_lag
            if self.unit > 1:  # a program of graphs begins with eager periods, and only graphs are timed
                lead = -(-program.prologue // self.unit) * self.unit  # type: ignore[attr-defined]  # that program has one
            chunk = self._chunk(number, program.run(lead + steps))
            of_steps = replace(chunk.parts[0], steps_s=chunk.steps_s[lead if self.unit == 1 else 0 :])
            chunks += [replace(chunk, parts=(of_steps,)), self._drained(number)]
        chunk = _joined(chunks)
        return replace(chunk, steps_s=run_steps_s(self._plan, chunk.parts))

    def trace(self) -> list[Measured]:
        times = [item for number, program in self._programs.items() for item in self._of_plan(number, program.trace())]
        overheads = [program.tracing_overhead for program in self._programs.values()]
        known = [each for each in overheads if each is not None]
        self.tracing_overhead = max(known) if len(known) == len(overheads) else None
        return times

    def parameter_difference(self, expected: Mapping[str, torch.Tensor]) -> float:
        return self._program.parameter_difference(expected)

    def gradient_difference(self, expected: Mapping[str, torch.Tensor]) -> float:
        return self._program.gradient_difference(expected)

    def copy_current(self, targets: Mapping[str, torch.Tensor]) -> None:
        self._program.copy_current(targets)

    def _left(self) -> int | None:
        """Iterations before the next switch; None if there is none."""
        return None if self._current == len(self._switches) else self._switches[self._current] - self.iterations

    def _drained(self, number: int) -> ChunkTimes:
        """Complete every iteration of a plan."""
        chunk = self._programs[number].sync()
        self._take_losses(number)
        drain_s = chunk.ends_s[-1] if chunk.ends_s else 0.0
        return ChunkTimes((), self._of_plan(number, chunk.times), parts=(PlanTimes(number, (), drain_s),))

    def _chunk(self, number: int, chunk: ChunkTimes) -> ChunkTimes:
        """What a program measured, as times of plan `number`."""
        self._take_losses(number)
        return replace(chunk, times=self._of_plan(number, chunk.times), parts=(PlanTimes(number, chunk.steps_s),))

    def _take_losses(self, number: int) -> None:
        losses = self._programs[number].losses
        for iteration in list(losses):
            self.losses[iteration] = losses.pop(iteration)

    def _of_plan(self, number: int, times: Iterable[Measured]) -> tuple[Measured, ...]:
        """Times of a plan's tasks, whose indices count the tasks of all plans."""
        return tuple(replace(item, index=item.index + self._first_task[number]) for item in times)


def _joined(chunks: Sequence[ChunkTimes]) -> ChunkTimes:
    """Chunks that ran one after another, as one. The seconds of a drain pass before the next iteration begins."""
    ends_s, begin_s = [], 0.0
    for chunk in chunks:
        ends_s += [begin_s + end_s for end_s in chunk.ends_s]
        begin_s += (chunk.ends_s[-1] if chunk.ends_s else 0.0) + sum(part.drain_s or 0.0 for part in chunk.parts)
    return ChunkTimes(
        tuple(step_s for chunk in chunks for step_s in chunk.steps_s),
        tuple(item for chunk in chunks for item in chunk.times),
        tuple(ends_s),
        tuple(part for chunk in chunks for part in chunk.parts),
    )


def sample(program: Executable, steps: int) -> ChunkTimes:
    """Run `steps` steps for their times, or of a run that follows several plans equally many of each, whatever their `iterations`."""
    return program.sample(steps) if isinstance(program, ProgramsInTurn) else program.run(steps)


def run_steps_s(plan: Plan, parts: Sequence[PlanTimes], warm_up: int = 0) -> tuple[float, ...]:
    """Seconds per step of whole runs that follow several plans, one for each step that was measured of every plan.

    A run has as many steps of each plan as that says, and the drains at its switches: see `simulator.engine.switch`. `warm_up`: how many
    steps of each plan to skip at first. Returns nothing if a plan or a drain was not measured, or if there is only one plan.
    """
    if not plan.earlier:
        return ()
    steps_s: list[list[float]] = [[] for _ in plan.sequence]
    drains_s: list[list[float]] = [[] for _ in plan.sequence]
    for part in parts:
        steps_s[part.number] += part.steps_s
        drains_s[part.number] += [] if part.drain_s is None else [part.drain_s]
    counts = [own.iterations or 1 for own in plan.sequence]
    if not all(drains_s[:-1]):
        return ()
    drain_s = sum(sum(drains) / len(drains) for drains in drains_s[:-1])
    counted = [steps[warm_up:] or steps for steps in steps_s]
    return tuple((sum(n * s for n, s in zip(counts, steps, strict=True)) + drain_s) / sum(counts) for steps in zip(*counted, strict=False))


def timeline_of(
    plan: Plan,
    times: Sequence[Measured],
    per_step: tuple[float, ...],
    mode: str = "eager",
    peak_bytes: Mapping[str, int] | None = None,
) -> Timeline:
    """The measured timeline of a run (`measured.timeline_of`).

    Plans that were measured come one after another; the window begins with the last full period of the first of them, and of later ones
    the timeline shows the first full period.
    """
    if not plan.earlier:
        return measured.timeline_of(plan, times, per_step, mode, peak_bytes)
    timelines: list[Timeline] = []
    first = 0
    for part in plan.sequence:
        own = [replace(item, index=item.index - first) for item in times if first <= item.index < first + len(part.tasks)]
        first += len(part.tasks)
        if own and timelines:
            begin = min(item.period for item in own)
            own = [item for item in own if item.period <= begin + part.largest_lag]
        if own:
            timeline = measured.timeline_of(part, own, (), mode, peak_bytes)
            timelines.append(replace(timeline, window_s=(timeline.window_s[0], max(span.end_s for span in timeline.spans))))
    joined = one_after_another(timelines)
    step_s = statistics.median(per_step) if per_step else joined.window_s[1] - joined.window_s[0]
    uses = device_uses(plan, joined.spans, joined.window_s, peak_bytes or {})
    return replace(joined, step_s=step_s, devices=uses, period_lengths_s=per_step)
