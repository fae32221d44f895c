"""A plan on one GPU in CUDA graphs of several periods each, with an eager prologue and an eager drain.

A graph never overlaps itself, so one that held a single period would hide what plans gain across the border of iterations. What an
iteration hands to later periods lives, where it crosses a graph's border, in the tensors of the last eager iterations before the capture:
the graph reads them at its beginning and writes its own last iterations into them at its end.
"""

import statistics
from collections.abc import Mapping, Sequence
from itertools import pairwise

import torch

from executors.binding import DRAWS, Instance
from executors.cuda.driver import Event, Graph
from executors.cuda.feeds import Placed, copy_all
from executors.cuda.issue import Issuer, fork, join
from executors.cuda.program import EagerProgram, Site
from executors.cuda.twins import EndMarks, spread, with_starts
from executors.measured import ChunkTimes, Measured, lengths
from executors.run import WARM_UP
from simulator.plan.plan import Plan
from traces.errors import StepcastError

#: Replays per timed twin; the first is not counted.
TWIN_REPLAYS = 6


class GraphProgram(EagerProgram):
    """A plan bound to tensors, run in graphs of `unit` periods wherever so many are asked for at once; what is left over runs eagerly."""

    warm_up = 0

    def __init__(self, site: Site, plan: Plan, tensors: Mapping[str, torch.Tensor], seed: int, keep: tuple[str, ...], unit: int):
        super().__init__(site, plan, tensors, seed, keep)
        lag = self._compiled.dependencies.largest_lag
        if lag > unit:
            raise StepcastError(f"{plan.strategy} works {lag} iterations behind, more than the {unit} of a graph; use --mode eager")
        _check_draws(plan)
        self.unit = unit
        self._graph: Graph | None = None
        self._read: list[Placed] = []  # the inputs that the graph reads, by offset; none while they are the job's own
        self._captured: dict[int, Instance] = {}  # of the graph's own iterations, by offset from its first period
        self._stacked: torch.Tensor | None = None  # the losses of one replay
        self._border: dict[int, Instance] = {}  # by iterations before the graph's first period
        self._loss_ages: list[int] = []  # their iterations, less the graph's first period
        self._crossing = self._crossing_slots()
        if {self.binding.slot[name] for name in self._feeds.at_host} & {slot for slots in self._crossing.values() for slot in slots}:
            raise StepcastError(f"{plan.strategy} fetches inputs of earlier iterations, which a CUDA graph cannot; use --mode eager")
        self._lead = next(iter(self._streams.values()))  # graphs are captured from, and launched on, the first lane
        self.driver.seed(seed)

    def run(self, steps: int, inputs: list[Mapping[str, torch.Tensor]] | None = None) -> ChunkTimes:
        """Issue `steps` more periods; one step length per graph after the call's first.

        New feeds are copied to the GPU, or to pinned memory, before anything is issued, and to where a graph reads them before each of
        its replays: what it fetches from the host itself only after the replay before, which the host waits for.
        """

        def fed(begin: int, end: int) -> list[Mapping[str, torch.Tensor]] | None:
            return None if inputs is None else inputs[begin:end]

        prologue = min(steps, max(0, self._prologue - self._period))
        first = super().run(prologue, fed(0, prologue))
        graphs, rest = divmod(steps - prologue, self.unit)
        ends = self._replay(graphs, fed(prologue, steps - rest)) if graphs else []
        last = super().run(rest, fed(steps - rest, steps))
        replayed = [begin + (end - begin) * (i + 1) / self.unit for begin, end in pairwise([0.0, *ends]) for i in range(self.unit)]
        return ChunkTimes(tuple(s / self.unit for s in lengths(ends)), ends_s=_one_after_another(first.ends_s, replayed, last.ends_s))

    @property
    def _prologue(self) -> int:
        """Eager periods before graphs: until everything repeats, and every kernel has run before it is captured."""
        return max(WARM_UP, self._compiled.dependencies.steady)

    def _replay(self, graphs: int, inputs: list[Mapping[str, torch.Tensor]] | None) -> list[float]:
        """Run so many graphs; seconds from the beginning of the first to the end of each."""
        driver = self.driver
        driver.synchronize()
        self._enter_border()
        if inputs is not None and not self._read:
            driver.use(self._lead)
            self._read = [self._feeds.own(self._inputs) for _ in range(self.unit)]
            self._graph = None  # one captured before reads the job's own inputs
        if self._graph is None:
            self._graph = self._capture()
        driver.use(self._lead)
        feeds = [self._inputs if inputs is None else {**self._inputs, **self._feeds.place(inputs[i])} for i in range(graphs * self.unit)]
        driver.synchronize()
        begin = self._marked()
        ends: list[Event] = []
        for number in range(graphs):
            if self._read:
                latest = ends[-1] if ends else begin
                self._feeds.refill(self._read, feeds[number * self.unit : (number + 1) * self.unit], latest.synchronize)
            self._graph.replay()
            self._hand_out_losses(self._period + number * self.unit)
            ends.append(self._marked())
        driver.synchronize()
        self._period += graphs * self.unit
        self._leave_border()
        return [begin.elapsed_time(end) * 1e-3 for end in ends]

    def _marked(self) -> Event:
        event = self.driver.event(timing=True)
        event.record(self._lead)
        return event

    def _capture(self, marks: EndMarks | None = None) -> Graph:
        """Capture `unit` periods from the current one on. With `marks` it is a twin, of which nothing but times is wanted."""
        driver, first, streams = self.driver, self._period, list(self._streams.values())
        instances = {first - age: _copy_of(instance) for age, instance in self._border.items()}
        issuer = Issuer(self._compiled, driver, self._streams, first)
        driver.use(self._lead)
        with driver.capture(self._lead) as graph:
            if marks is not None:
                marks.begin(self._lead)
            fork(driver, self._lead, streams)
            for period in range(first, first + self.unit):
                instances[period] = Instance(period, len(self.binding.slot), [])
                self._feeds.give(instances[period], self._read[period - first] if self._read else self._inputs)
                issuer.period(period, instances, marks)
            join(driver, streams, self._lead)
            driver.use(self._lead)
            self._to_border(instances, first + self.unit)
            losses = self._losses_of(instances, first)
            ages, stacked = [age for age, _ in losses], torch.stack([loss for _, loss in losses]) if losses else None
        if marks is None:
            self._captured = {period - first: instances[period] for period in range(first, first + self.unit)}
            self._stacked, self._loss_ages = stacked, ages
        return graph

    # What crosses the border.

    def _crossing_slots(self) -> dict[int, list[int]]:
        """Age -> slots of the iteration so many periods before a graph's first that the graph reads; kept values are among them."""
        plan, slot = self.plan, self.binding.slot
        lag = self._compiled.dependencies.largest_lag
        written = {operand.value: task.lag for task in plan.tasks for operand in task.writes}
        storage_lag = {plan.values[name].storage: at for name, at in written.items()}
        crossing: dict[int, set[int]] = {age: set() for age in range(1, lag + 1)}
        for task in plan.tasks:
            for operand in task.inputs:
                if operand.value not in slot:
                    continue
                begun = storage_lag.get(plan.values[operand.value].storage, 0)
                for age in range(begun + 1, task.lag + 1):
                    crossing[age].add(slot[operand.value])
        for name in self._keep:
            for age in crossing:
                crossing[age].add(slot[name])
        return {age: sorted(slots) for age, slots in crossing.items()}

    def _enter_border(self) -> None:
        """Bring the last iterations' values to where the graph reads them."""
        if not self._border:
            self._border = {age: _copy_of(self._instances[self._period - age]) for age in self._crossing}
            self.driver.use(self._lead)
            for age, slots in self._crossing.items():  # replays write to the border: no loss handed out and no feed may be part of it
                there = self._border[age].slots
                for slot in {self.binding.slot[name] for name in (*self.plan.losses, *self.binding.fed)} & set(slots):
                    there[slot] = there[slot].clone() if there[slot] is not None else None
        else:
            self.driver.use(self._lead)
            self._to_border(self._instances, self._period)

    def _to_border(self, instances: Mapping[int, Instance], end: int) -> None:
        """Copy what crosses from the last iterations before period `end` to where the next replay reads it."""
        targets, sources = [], []
        for age, slots in self._crossing.items():
            made, there = instances[end - age].slots, self._border[age].slots
            for slot in slots:
                if made[slot] is not None and made[slot] is not there[slot]:
                    targets.append(there[slot])
                    sources.append(made[slot])
        if targets:
            copy_all(targets, sources)

    def _leave_border(self) -> None:
        """After replays: the iterations that eager periods, or a drain, go on from."""
        self._instances.clear()
        self._reported.clear()
        for age, instance in self._border.items():
            found = _copy_of(instance)
            found.iteration = self._first_iteration + self._period - age
            self._instances[self._period - age] = found
            self._reported.add(self._period - age)
        done = self.unit - 1 - self._compiled.dependencies.largest_lag
        if done >= 0:
            last = self._captured[done]
            self.kept = {name: last.slots[self.binding.slot[name]] for name in self._keep}

    # Losses.

    def _losses_of(self, instances: Mapping[int, Instance], first: int) -> list[tuple[int, torch.Tensor]]:
        """(iteration less the graph's first period, loss) of the losses that a graph computes, in order."""
        lags = {operand.value: task.lag for task in self.plan.tasks for operand in task.writes}
        ages = [(offset - lags[name], name) for offset in range(self.unit) for name in self.plan.losses]
        return [(age, instances[first + age].slots[self.binding.slot[name]]) for age, name in ages]

    def _hand_out_losses(self, first: int) -> None:
        """Copy one replay's losses out of the graph, on its stream."""
        if self._stacked is None:
            return
        losses, parts = self._stacked.clone(), len(self.plan.losses)
        for position in range(0, len(self._loss_ages), parts):
            iteration = self._first_iteration + first + self._loss_ages[position]
            self.losses[iteration] = tuple(losses[position : position + parts])

    # Task times.

    def trace(self) -> list[Measured]:
        """Task times of the periods of one graph, from twins with an event after every k-th task."""
        super().run(max(0, self._prologue - self._period))
        self.driver.synchronize()
        self._enter_border()
        if self._graph is None:
            self._graph = self._capture()
        step_s = self._replayed_s(self._graph)

        def timed(every: int, offset: int) -> tuple[float, dict[tuple[int, int], float]]:
            marks = EndMarks(self.driver, every, offset)
            graph = self._capture(marks)
            twin_s = self._replayed_s(graph)
            seen = []
            for _ in range(TWIN_REPLAYS):
                graph.replay()
                self.driver.synchronize()
                seen.append(marks.read())
            return twin_s, {at: statistics.median(ends[at] for ends in seen) for at in seen[0]}

        ends, self.twin_overhead = spread(step_s, len(self._compiled.tasks), timed)
        self._leave_border()
        return with_starts(ends, [task.lane for task in self._compiled.tasks], self._compiled.dependencies)

    def _replayed_s(self, graph: Graph) -> float:
        """Seconds per step of a graph replayed back to back."""
        self.driver.use(self._lead)
        ends = []
        for _ in range(TWIN_REPLAYS):
            graph.replay()
            ends.append(self._marked())
        self.driver.synchronize()
        return statistics.median(a.elapsed_time(b) for a, b in pairwise(ends)) * 1e-3 / self.unit


def _copy_of(instance: Instance) -> Instance:
    """Another instance that holds the same tensors."""
    found = Instance(instance.iteration, 0, [])
    found.slots = instance.slots.copy()
    return found


def _check_draws(plan: Plan) -> None:
    """Raise StepcastError where dropout masks, drawn in issue order, would differ from those of the model."""
    draws = [task for task in plan.tasks if getattr(task.body, "target", "") in DRAWS]
    if len({task.lag for task in draws}) > 1 or [task.micro_batch for task in draws] != sorted(task.micro_batch for task in draws):
        raise StepcastError(f"{plan.strategy} draws dropout masks in an order of its own, which a CUDA graph cannot; use --mode eager")


def _one_after_another(*parts: Sequence[float]) -> tuple[float, ...]:
    """Ends of parts of a run, each counted from its own beginning, all counted from the beginning of the first."""
    found: list[float] = []
    for part in parts:
        before_s = found[-1] if found else 0.0
        found += [before_s + end_s for end_s in part]
    return tuple(found)
