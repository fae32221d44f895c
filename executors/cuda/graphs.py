"""Runs a plan on the GPUs of one process in CUDA graphs of several periods each, with an eager prologue and an eager drain.

A graph never overlaps itself, so with one period per graph a plan could not overlap successive iterations. The values that an iteration
passes to later periods across the border between two graphs are stored in the tensors of the last eager iterations before the capture: a
graph reads them at its start, and at its end it copies the values of its own last iterations into them.

One graph contains the work of all GPUs: the streams of all lanes are forked from one and joined to it. What is done beside the plan's tasks
on a GPU, such as these copies, is issued to a stream of that GPU, which is forked and joined in the same way.
"""

import statistics
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from itertools import groupby, pairwise

import torch

from executors.binding import Instance
from executors.cuda.driver import Event, Graph, Stream, timing_event
from executors.cuda.instrumented import EndMarks, run_instrumented, with_starts
from executors.cuda.issue import fork, join
from executors.cuda.program import EagerProgram, Pairs, Placed, Site, copy_all
from executors.measured import ChunkTimes, Measured, lengths
from executors.program import AT_FIRST, WARM_UP, Start
from simulator.engine.memory.over_time import across_border
from simulator.plan.bodies.update import rate_at
from simulator.plan.plan import Plan
from traces.errors import SchedcastError

#: Replays per instrumented run. The first one gives no step length.
INSTRUMENTED_REPLAYS = 6


#: By GPU, the numbers of its losses among those of a replay, and one tensor of them.
Stacked = dict[torch.device, tuple[list[int], torch.Tensor]]


class GraphProgram(EagerProgram):
    """A plan bound to tensors and run in graphs of `unit` periods. The periods of a call that do not fill a graph run eagerly."""

    warm_up = 0

    def __init__(
        self,
        site: Site,
        plan: Plan,
        tensors: Mapping[str, torch.Tensor],
        seed: int,
        keep: tuple[str, ...],
        unit: int,
        start: Start = AT_FIRST,
    ):
        plan.check_graph()
        super().__init__(site, plan, tensors, seed, keep, start)
        lag = self._compiled.dependencies.largest_lag
        if lag > unit:
            raise SchedcastError(f"{plan.strategy} works {lag} iterations behind, more than the {unit} of a graph; use --mode eager")
        _check_draws(plan, len(self._drivers))
        self.unit = unit
        self._graph: Graph | None = None
        self._graph_rates: tuple[float | None, ...] = ()  # the learning rates that the graph has captured
        updates = [task for task in plan.tasks if task.body.is_update]
        self._rates = updates[0].body.rates if updates else ()
        self._update_lags = sorted({task.lag for task in updates})
        self._graph_inputs: list[Placed] = []  # the inputs that the graph reads, by offset; empty if it reads the job's own inputs
        self._captured: dict[int, Instance] = {}  # the instances of the graph's own iterations, by offset from its first period
        self._stacked: Stacked = {}  # the losses of one replay
        self._border: dict[int, Instance] = {}  # earlier iterations that the graph reads, by age: periods before the graph's first one
        self._loss_offsets: list[int] = []  # the iterations of the losses, relative to the graph's first period
        self._graph_ends: list[Event] = []  # the ends of the graphs that have been launched and not waited for
        self._crossing = self._slots_across_border()
        if {self.binding.slot[name] for name in self._feeds.at_host} & {slot for slots in self._crossing.values() for slot in slots}:
            raise SchedcastError(f"{plan.strategy} fetches inputs of earlier iterations, which a CUDA graph cannot; use --mode eager")
        #: A stream of each GPU. Graphs are captured from that of the first one, and launched on it.
        self._gpu_streams: dict[torch.device, Stream] = {}
        for stream in self._every_stream:
            self._gpu_streams.setdefault(stream.device, stream)
        self._main_stream = self._gpu_streams[self.driver.device]
        self._device_of = {slot: self.binding.device(plan.values[n].device) for n, slot in self.binding.slot.items() if n in plan.values}
        self.driver.seed(seed)

    def run(self, steps: int, inputs: list[Mapping[str, torch.Tensor]] | None = None) -> ChunkTimes:
        """Issue `steps` more periods. There is one step length per graph after the call's first graph.

        New feeds are copied to the GPU, or to pinned memory, before any task is issued. Before each replay they are copied to the tensors
        that the graph reads. Those that the graph fetches from host memory are copied after the previous replay, for which the host waits.
        """

        def feeds(begin: int, end: int) -> list[Mapping[str, torch.Tensor]] | None:
            return None if inputs is None else inputs[begin:end]

        prologue = min(steps, max(0, self.prologue - self._period))
        first = super().run(prologue, feeds(0, prologue))
        graphs, rest = divmod(steps - prologue, self.unit)
        ends: list[float] = []
        done = prologue
        for count in self._alike(graphs):
            first_s = ends[-1] if ends else 0.0
            ends += [first_s + end_s for end_s in self._replay(count, feeds(done, done + count * self.unit))]
            done += count * self.unit
        last = super().run(rest, feeds(steps - rest, steps))
        replayed = [begin + (end - begin) * (i + 1) / self.unit for begin, end in pairwise([0.0, *ends]) for i in range(self.unit)]
        return ChunkTimes(tuple(s / self.unit for s in lengths(ends)), ends_s=_concatenate(first.ends_s, replayed, last.ends_s))

    @property
    def prologue(self) -> int:
        """Eager periods before the first graph: until dependencies repeat, and every task has run before it is captured."""
        return max(WARM_UP, self._compiled.dependencies.steady)

    def _alike(self, graphs: int) -> list[int]:
        """Divide the next `graphs` graphs into successive ones that update at the same learning rates: how many there are of each."""
        firsts = [self._period + number * self.unit for number in range(graphs)]
        return [len(list(alike)) for _, alike in groupby(firsts, self._rates_from)]

    def _rates_from(self, period: int) -> tuple[float | None, ...]:
        """The learning rates of the updates in a graph that begins with `period`, which are part of what it captures."""
        if not self._rates:
            return ()
        iterations = (self._first_iteration + period + i - lag for i in range(self.unit) for lag in self._update_lags)
        return tuple(rate_at(self._rates, iteration) for iteration in iterations)

    def _replay(self, graphs: int, inputs: list[Mapping[str, torch.Tensor]] | None) -> list[float]:
        """Run `graphs` graphs at one learning rate. Returns the seconds from the start of the first to the end of each."""
        driver = self.driver
        self._wait()
        self._enter_border()
        if inputs is not None and not self._graph_inputs:
            driver.use(self._main_stream)
            self._graph_inputs = [self._feeds.copies(self._inputs) for _ in range(self.unit)]
            self._graph = None  # a graph captured earlier reads the job's own inputs
        rates = self._rates_from(self._period)
        if self._graph is None or self._graph_rates != rates:
            self._graph = None  # frees the previous one
            self._graph, self._graph_rates = self._capture(), rates
        driver.use(self._main_stream)
        feeds = [self._inputs if inputs is None else {**self._inputs, **self._feeds.place(inputs[i])} for i in range(graphs * self.unit)]
        self._wait()
        driver.use(self._main_stream)
        begin = timing_event(self.driver, self._main_stream)
        ends = self._graph_ends = []
        for number in range(graphs):
            if self._graph_inputs:
                latest = ends[-1] if ends else begin
                wait = partial(driver.wait_for, latest, self._overdue(driver.now_s()))
                self._feeds.refill(self._graph_inputs, feeds[number * self.unit : (number + 1) * self.unit], wait, self._copy)
            self._graph.replay()
            self._report_losses(self._period + number * self.unit)
            ends.append(timing_event(self.driver, self._main_stream))
        self._unwaited += graphs * self.unit
        self._wait()
        self._graph_ends = []
        self._period += graphs * self.unit
        self._leave_border()
        # Graphs leave no events that a later period could wait for, and they have ended.
        self._issuer = self._new_issuer(self._period)
        return [begin.elapsed_time(end) * 1e-3 for end in ends]

    def in_flight(self) -> str:
        """See EagerProgram. During replays, the graphs that the GPU has not finished: which of their tasks run is not visible."""
        if not self._graph_ends:
            return super().in_flight()
        left = sum(not end.query() for end in self._graph_ends)
        lanes = f"{len(self._compiled.tasks)} tasks on {len(self._streams)} lanes"
        return f"plan {self.plan.strategy} ({left} of {len(self._graph_ends)} graphs of {self.unit} periods with {lanes})"

    def _capture(self, marks: EndMarks | None = None) -> Graph:
        """Capture `unit` periods from the current one on. With `marks` it is an instrumented graph, which is used for its times only."""
        driver, first, streams = self.driver, self._period, self._every_stream
        instances = {first - age: _copy_of(instance) for age, instance in self._border.items()}
        for period, instance in instances.items():
            instance.iteration = self._first_iteration + period
        issuer = self._new_issuer(first)
        driver.use(self._main_stream)
        with driver.capture(self._main_stream, self._drivers[1:]) as graph:
            if marks is not None:
                marks.begin(self._main_stream)
            fork(driver, self._main_stream, streams)
            for stream in self._gpu_streams.values():
                if marks is not None and stream is not self._main_stream:
                    marks.begin(stream)
            for period in range(first, first + self.unit):
                instances[period] = Instance(self._first_iteration + period, len(self.binding.slot), [])
                self._feeds.put(instances[period], self._graph_inputs[period - first] if self._graph_inputs else self._inputs)
                issuer.period(period, instances, marks, advice="a CUDA graph may not contain it, so use --mode eager")
            join(driver, streams, self._main_stream)
            driver.use(self._main_stream)
            self._copy_to_border(instances, first + self.unit)
            losses = self._losses_of(instances, first)
            offsets, stacked = [offset for offset, *_ in losses], self._stack(losses)
        if marks is None:
            self._captured = {period - first: instances[period] for period in range(first, first + self.unit)}
            self._stacked, self._loss_offsets = stacked, offsets
        return graph

    # Values that cross the border between two graphs.

    def _slots_across_border(self) -> dict[int, list[int]]:
        """By age, the slots that a graph reads of the iteration that began `age` periods before the graph. Includes kept values."""
        slot, kept = self.binding.slot, {self.binding.slot[name] for name in self._keep}
        crossing = across_border(self.plan).items()
        return {age: sorted(kept | {slot[name] for name in names if name in slot}) for age, names in crossing}

    def _enter_border(self) -> None:
        """Before replays: copy the last iterations' values to the tensors that the graph reads, and free everything else of these
        iterations.

        Storage whose release no later task orders is not freed before then, and would stay allocated as long as the graph exists.
        """
        self.driver.use(self._main_stream)
        if not self._border:
            # Slots without a value have what an op saves for its backward.
            values = {slot for name, slot in self.binding.slot.items() if name in self.plan.values}
            self._border = {
                age: _copy_of(self._instances[self._period - age], without=values - set(slots)) for age, slots in self._crossing.items()
            }
            for age, slots in self._crossing.items():  # replays overwrite these tensors, so reported losses and feeds must be copied
                border = self._border[age].slots
                for slot in {self.binding.slot[name] for name in (*self.plan.losses, *self.binding.fed)} & set(slots):
                    border[slot] = border[slot].clone() if border[slot] is not None else None
        else:
            self._copy_to_border(self._instances, self._period)
        self._wait()  # the copies read what other lanes have allocated
        self._instances.clear()

    def _copy_to_border(self, instances: Mapping[int, Instance], end: int) -> None:
        """Copy the crossing values of the last iterations before period `end` to the tensors that the next replay reads."""
        pairs: Pairs = {}
        for age, slots in self._crossing.items():
            latest, border = instances[end - age].slots, self._border[age].slots
            for slot in slots:
                if latest[slot] is not None and latest[slot] is not border[slot]:
                    pairs.setdefault(self._device_of.get(slot, self._main_stream.device), []).append((border[slot], latest[slot]))
        self._copy(pairs)

    def _copy(self, pairs: Pairs) -> None:
        """Copy tensors into others, each pair on its GPU."""
        self._on_gpus(pairs, lambda device: copy_all([target for target, _ in pairs[device]], [source for _, source in pairs[device]]))

    def _on_gpus(self, devices: Iterable[torch.device], work: Callable[[torch.device], None]) -> None:
        """Issue work for each of these GPUs to a stream of it, after all work on the main stream and before what follows there."""
        main, devices = self._main_stream, list(devices)
        streams = [self._gpu_streams[device] for device in devices]
        if set(devices) - {main.device}:
            fork(self.driver, main, streams)
        for device, stream in zip(devices, streams, strict=True):
            if stream is not main:
                self.driver.use(stream)
            work(device)
            if stream is not main:
                self.driver.use(main)
        join(self.driver, streams, main)

    def _leave_border(self) -> None:
        """After replays: restore the instances of the last iterations, for the eager periods or the drain that come next."""
        self._instances.clear()
        self._reported.clear()
        computed_at = max((task.lag for task in self.plan.tasks for o in task.writes if o.value in self.plan.losses), default=0)
        for age, instance in self._border.items():
            restored = _copy_of(instance)
            restored.iteration = self._first_iteration + self._period - age
            self._instances[self._period - age] = restored
            if age > computed_at:  # an iteration so old had its losses computed, and reported, in a graph
                self._reported.add(self._period - age)
        last_complete = self.unit - 1 - self._compiled.dependencies.largest_lag
        if last_complete >= 0:
            last = self._captured[last_complete]
            self.kept = {name: last.slots[self.binding.slot[name]] for name in self._keep}

    # Losses.

    def _stack(self, losses: Sequence[tuple[int, torch.device, torch.Tensor]]) -> Stacked:
        stacked: Stacked = {}

        def stack(device: torch.device) -> None:
            numbers = [number for number, (_, own, _) in enumerate(losses) if own == device]
            stacked[device] = numbers, torch.stack([losses[number][2] for number in numbers])

        self._on_gpus(dict.fromkeys(device for _, device, _ in losses), stack)
        return stacked

    def _losses_of(self, instances: Mapping[int, Instance], first: int) -> list[tuple[int, torch.device, torch.Tensor]]:
        """(iteration relative to the graph's first period, GPU, loss) of the losses that a graph computes, in order."""
        lags = {operand.value: task.lag for task in self.plan.tasks for operand in task.writes}
        offsets = [(period - lags[name], name) for period in range(self.unit) for name in self.plan.losses]
        slots = self.binding.slot
        return [(offset, self._device_of[slots[name]], instances[first + offset].slots[slots[name]]) for offset, name in offsets]

    def _report_losses(self, first: int) -> None:
        """Copy one replay's losses out of the graph, after it."""
        if not self._stacked:
            return
        losses: dict[int, torch.Tensor] = {}

        def copy(device: torch.device) -> None:
            numbers, stacked = self._stacked[device]
            losses.update(zip(numbers, stacked.clone(), strict=True))

        self._on_gpus(self._stacked, copy)
        per_iteration = len(self.plan.losses)
        for position in range(0, len(self._loss_offsets), per_iteration):
            iteration = self._first_iteration + first + self._loss_offsets[position]
            self.losses[iteration] = tuple(losses[number] for number in range(position, position + per_iteration))

    # Task times.

    def trace(self) -> list[Measured]:
        """The task times of one graph's periods, from runs with an event after every k-th task."""
        super().run(max(0, self.prologue - self._period))
        self._wait()
        self._enter_border()
        if self._graph is None:
            self._graph, self._graph_rates = self._capture(), self._rates_from(self._period)
        step_s = self._step_s(self._graph)

        def run_once(every: int, offset: int) -> tuple[float, dict[tuple[int, int], float]]:
            marks = EndMarks(self.driver, every, offset)
            graph = self._capture(marks)
            run_s = self._step_s(graph)
            replays = []
            for _ in range(INSTRUMENTED_REPLAYS):
                graph.replay()
                self._wait()
                replays.append(marks.read())
            return run_s, {task: statistics.median(ends[task] for ends in replays) for task in replays[0]}

        ends, self.tracing_overhead = run_instrumented(step_s, len(self._compiled.tasks), run_once)
        self._leave_border()
        return with_starts(ends, [task.lane for task in self._compiled.tasks], self._compiled.dependencies)

    def _step_s(self, graph: Graph) -> float:
        """Seconds per step of a graph replayed back to back."""
        self.driver.use(self._main_stream)
        ends = []
        for _ in range(INSTRUMENTED_REPLAYS):
            graph.replay()
            ends.append(timing_event(self.driver, self._main_stream))
        self._wait()
        return statistics.median(a.elapsed_time(b) for a, b in pairwise(ends)) * 1e-3 / self.unit


def _copy_of(instance: Instance, without: Collection[int] = ()) -> Instance:
    """The instance with a copy of its slots, of which those in `without` are empty."""
    copy = Instance(instance.iteration, 0, [])
    copy.slots = [None if slot in without else tensor for slot, tensor in enumerate(instance.slots)]
    return copy


def _check_draws(plan: Plan, gpus: int) -> None:
    """Raise SchedcastError if random numbers drawn in issue order would differ from those of the model.

    Every GPU has a generator of its own.
    """
    draws = [task for task in plan.tasks if task.body.random]
    if draws and gpus > 1:
        raise SchedcastError(f"{plan.strategy} draws random numbers on {gpus} GPUs, which one CUDA graph cannot; use --mode eager")
    if len({task.lag for task in draws}) > 1 or [task.body.draw for task in draws] != sorted(task.body.draw for task in draws):
        raise SchedcastError(f"{plan.strategy} draws random numbers in an order of its own, which a CUDA graph cannot; use --mode eager")


def _concatenate(*runs: Sequence[float]) -> tuple[float, ...]:
    """The ends of successive runs, each counted from its own start, as seconds from the start of the first run."""
    ends_s: list[float] = []
    for run in runs:
        before_s = ends_s[-1] if ends_s else 0.0
        ends_s += [before_s + end_s for end_s in run]
    return tuple(ends_s)
