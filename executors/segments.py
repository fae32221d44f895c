"""Runs plans of several segments: one program for each, and every program continues with the tensors of the previous one.

The programs share the tensors of parameters, buffers and optimizer state, so nothing is copied at a switch. There the program drains, and
the next one starts with the next iteration.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import torch

from executors.binding import Binding
from executors.measured import ChunkTimes, Measured, SegmentTimes, run_steps_s
from executors.run import Executable
from simulator.plan.plan import Plan


@dataclass(frozen=True)
class Start:
    """What a program starts with: the number of its first iteration, and the program whose carried tensors it continues with, if any."""

    iteration: int = 0
    before: Executable | None = None

    @property
    def carried(self) -> Mapping[str, torch.Tensor]:
        """The tensors to continue with, by value name."""
        return {} if self.before is None else self.before.binding.carried


#: Loads a plan of one segment with the values to keep and a start.
LoadPart = Callable[[Plan, tuple[str, ...], Start], Executable]


AT_FIRST = Start()


def load_parts(plan: Plan, keep: tuple[str, ...], load: LoadPart, start: Start = AT_FIRST) -> Executable:
    """Load each segment of a plan. Returns the program; of several segments, one that runs them in turn."""
    if len(plan.segments) == 1:
        return load(plan, keep, start)
    programs: list[Executable] = []
    for part in plan.parts:
        programs.append(load(part, tuple(name for name in keep if name in part.values), start))
        start = Start(start.iteration + (part.segments[0].repeat or 0), programs[-1])
    return SegmentedExecutable(plan, programs)


def highest_of_parts(plan: Plan, peak_bytes: Callable[[Plan], Mapping[str, int]]) -> dict[str, int]:
    """By device, the most of `peak_bytes(part)` over the segments of a plan."""
    highest: dict[str, int] = {}
    for part in plan.parts:
        for name, peak in peak_bytes(part).items():
            highest[name] = max(highest.get(name, 0), peak)
    return highest


class SegmentedExecutable:
    """A plan of several segments. See `Executable`. A program is freed when its last iteration is complete."""

    def __init__(self, plan: Plan, programs: Sequence[Executable]):
        """`programs`: one for each segment, in order, which share their carried tensors."""
        self._parts = plan.parts
        self._programs = dict(enumerate(programs))
        self._switches = list(accumulate(part.segments[0].repeat or 0 for part in self._parts[:-1]))
        self._first_task = [0, *accumulate(len(part.tasks) for part in self._parts[:-1])]
        self._current = 0
        self.unit, self.warm_up = programs[0].unit, programs[0].warm_up
        self.tracing_overhead: float | None = None
        self.losses: dict[int, tuple[torch.Tensor, ...]] = {}

    @property
    def _program(self) -> Executable:
        """The program of the segment that the next iteration belongs to, unless a switch comes first."""
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
        """See `Executable`. A switch comes before the first iteration of the next segment, and counts to that iteration's time."""
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
        """Run `steps` steps of every segment for their times, whatever its number of iterations. Numbers mean nothing afterwards.

        Each segment is completed and, if its tasks lag, filled before its steps are timed. `steps_s` are steps of the whole run.
        """
        chunks = []
        for number, part in enumerate(self._parts):
            program, lead = self._programs[number], part.largest_lag
            if self.unit > 1:  # a program of graphs begins with eager periods, and only graphs are timed
                lead = -(-program.prologue // self.unit) * self.unit  # type: ignore[attr-defined]  # that program has one
            chunk = self._chunk(number, program.run(lead + steps))
            of_steps = replace(chunk.segments[0], steps_s=chunk.steps_s[lead if self.unit == 1 else 0 :])
            chunks += [replace(chunk, segments=(of_steps,)), self._drained(number)]
        chunk = _joined(chunks)
        return replace(chunk, steps_s=run_steps_s(self._parts, chunk.segments))

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
        """Complete every iteration of a segment."""
        chunk = self._programs[number].sync()
        self._take_losses(number)
        drain_s = chunk.ends_s[-1] if chunk.ends_s else 0.0
        return ChunkTimes((), self._of_plan(number, chunk.times), segments=(SegmentTimes(number, (), drain_s),))

    def _chunk(self, number: int, chunk: ChunkTimes) -> ChunkTimes:
        """What a program measured, as times of the plan's segment `number`."""
        self._take_losses(number)
        return replace(chunk, times=self._of_plan(number, chunk.times), segments=(SegmentTimes(number, chunk.steps_s),))

    def _take_losses(self, number: int) -> None:
        losses = self._programs[number].losses
        for iteration in list(losses):
            self.losses[iteration] = losses.pop(iteration)

    def _of_plan(self, number: int, times: Iterable[Measured]) -> tuple[Measured, ...]:
        """Times of a segment's tasks, whose indices count the tasks of all segments."""
        return tuple(replace(item, index=item.index + self._first_task[number]) for item in times)


def _joined(chunks: Sequence[ChunkTimes]) -> ChunkTimes:
    """Chunks that ran one after another, as one. The seconds of a drain pass before the next iteration begins."""
    ends_s, begin_s = [], 0.0
    for chunk in chunks:
        ends_s += [begin_s + end_s for end_s in chunk.ends_s]
        begin_s += (chunk.ends_s[-1] if chunk.ends_s else 0.0) + sum(segment.drain_s or 0.0 for segment in chunk.segments)
    return ChunkTimes(
        tuple(step_s for chunk in chunks for step_s in chunk.steps_s),
        tuple(item for chunk in chunks for item in chunk.times),
        tuple(ends_s),
        tuple(segment for chunk in chunks for segment in chunk.segments),
    )


def sample(program: Executable, steps: int) -> ChunkTimes:
    """Run `steps` steps for their times; for a plan of several segments, equally many of each, whatever their numbers of iterations."""
    return program.sample(steps) if isinstance(program, SegmentedExecutable) else program.run(steps)
