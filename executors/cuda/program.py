"""Runs a plan on the GPUs of one process eagerly: the host issues task after task and runs ahead of the GPUs.

The inputs that a plan is fed with are in the GPUs' memories, or in pinned host memory if tasks fetch them from the host.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from executors.binding import Binding, Forms, Instance, fits, input_piece, with_strides
from executors.cuda.driver import STALLED, Driver, Event, GpuStalledError, Place, Stream, timing_event
from executors.cuda.instrumented import EagerMarks, Origin, repeat_period, run_instrumented
from executors.cuda.issue import CompiledPlan, Issuer, Lane, lane_priorities
from executors.measured import ChunkTimes, Measured, lengths
from executors.program import AT_FIRST, WARM_UP, Start
from executors.tensors import BoundPlan
from simulator.machine.machine import HOST
from simulator.plan.plan import Plan
from simulator.plan.task import Task
from traces.process import gc_paused

#: Tensors by value name.
Placed = Mapping[str, torch.Tensor]

#: Copies many tensors with few launches. A private function, like all foreach functions.
copy_all = torch._foreach_copy_


#: By device, tensors to copy and what to copy into them.
Pairs = dict[torch.device, list[tuple[torch.Tensor, torch.Tensor]]]


class Feeds:
    """The fed values of one program."""

    def __init__(self, binding: Binding, drivers: Sequence[Driver]):
        """`drivers`: of the GPUs of the plan."""
        values = self._values = binding.plan.values
        self._drivers, self._slot, self._device = drivers, binding.slot, binding.device
        self._fed = [(name, source, values[name].device == HOST) for name, source in binding.fed.items()]
        self.at_host = frozenset(name for name, _, at_host in self._fed if at_host)

    def place(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The fed values that come from the inputs in `tensors`, by value name. Values in host memory are copies."""
        whole: dict[tuple[str, torch.device], torch.Tensor] = {}
        placed = {}
        for name, source, at_host in self._fed:
            if source.value not in tensors:
                continue
            value = self._values[name]
            device = self._device(value.device)
            key = (source.value, device)
            if key not in whole:
                tensor = tensors[source.value].detach()
                whole[key] = self._pinned(tensor) if at_host else tensor.to(device)
            tensor = input_piece(whole[key], value)
            if not fits(tensor, value):  # a piece cut along another dimension than the first
                tensor = self._pinned(tensor) if at_host else with_strides(tensor, value.strides)
            placed[name] = tensor
        return placed

    def put(self, instance: Instance, placed: Placed) -> None:
        """Put one iteration's values into its instance."""
        for name, tensor in placed.items():
            instance.slots[self._slot[name]] = tensor

    def copies(self, placed: Placed) -> dict[str, torch.Tensor]:
        """Copies of the values, which `refill` can overwrite."""
        return {name: self._pinned(tensor) if name in self.at_host else tensor.clone() for name, tensor in placed.items()}

    def refill(
        self, targets: Sequence[Placed], sources: Sequence[Placed], wait: Callable[[], None], on_gpus: Callable[["Pairs"], None]
    ) -> None:
        """Copy the values of `sources` into those of `targets`, pair by pair.

        `on_gpus` copies those in memories of GPUs. Values in host memory are copied by the host, after `wait`, which returns when no task
        reads the targets any more.
        """
        pairs = [(name, tensor, source[name]) for target, source in zip(targets, sources, strict=True) for name, tensor in target.items()]
        on_gpu: Pairs = {}
        for name, target, source in pairs:
            if name not in self.at_host:
                on_gpu.setdefault(self._device(self._values[name].device), []).append((target, source))
        on_host = [(target, source) for name, target, source in pairs if name in self.at_host]
        if on_gpu:
            on_gpus(on_gpu)
        if on_host:
            wait()
        for target, source in on_host:
            target.copy_(source)

    def _pinned(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy in pinned memory. It has the same strides if the tensor is dense."""
        if tensor.device.type != "cpu":
            for driver in self._drivers:  # any stream may have written the tensor
                driver.synchronize()
        flat = self._drivers[0].host_tensor(tensor.numel() * tensor.element_size(), pinned=True).view(tensor.dtype)
        return flat.as_strided(tensor.shape, torch.empty_like(tensor, device="meta").stride()).copy_(tensor)


#: Periods of an instrumented run. The first WARM_UP are not typical.
INSTRUMENTED_PERIODS = WARM_UP + 5
#: A wait is abandoned after this many times the time per period of the longest previous wait, but not before `LEAST_WAIT_S`. The first
#: wait, which has no previous one, is abandoned after `FIRST_WAIT_S`. Both are checked when a wait is reported, which is after 60 s, 120 s
#: and so on.
WAIT_TIMES, LEAST_WAIT_S, FIRST_WAIT_S = 20, 60.0, 240.0
#: How many periods the host may run ahead of the GPU, if it must wait for the GPU before it frees tensors.
RUN_AHEAD = 16


def drivers_of(places: Mapping[str, Place]) -> tuple[Driver, ...]:
    """The drivers of all GPUs, in the order of the devices."""
    return tuple(dict.fromkeys(place.driver for place in places.values()))


@dataclass(frozen=True)
class Site:
    """Where and how a program runs: the place of each device, and the forms of canonical ops.

    `home`: among several GPUs, the stream that is the current one again after each wait, because other code expects the first GPU.
    """

    places: Mapping[str, Place]
    forms: Forms
    home: Stream | None = None

    def device(self, name: str) -> torch.device:
        """The torch device of a plan's device. All partitions of a GPU have the same one."""
        return torch.device("cpu") if name == HOST else self.places[name].driver.device

    def drivers(self, plan: Plan) -> tuple[Driver, ...]:
        """Those of the GPUs that the plan uses."""
        used = {self.places[name].driver for name in plan.devices}
        return tuple(driver for driver in drivers_of(self.places) if driver in used)

    def call_host(self, task: Task) -> None:
        """Let the current stream of the task's GPU call the host."""
        self.places[task.device].driver.call_host(task.body.duration_s)

    def streams(self, plan: Plan) -> dict[Lane, Stream]:
        """A stream for each lane, on the lane's place. If a lane's results go to another GPU, the stream is that GPU's.

        A GPU's allocator returns memory to the stream that was current when it handed it out. So it is handed out again only after the
        lane has been ordered after the last reader, as for any other lane (`simulator.engine.memory.release`).
        """
        places = {lane: self.places[lane[0]] for lane in lane_priorities(plan)}
        for task in plan.tasks:
            if (arrival := self._arrival(task)) is not None:
                places[task.lane] = arrival
        return {lane: places[lane].stream(priority) for lane, priority in lane_priorities(plan).items()}

    def companions(self, plan: Plan, streams: Mapping[Lane, Stream]) -> dict[str, Stream]:
        """By name of a task that copies from one GPU to another, a stream of the GPU that the lane's stream is not on.

        PyTorch copies on the current stream of the source, between waits of both GPUs' current streams for each other. A stream that only
        the lane's copies use makes these waits wait for nothing else.
        """
        opened: dict[tuple[Lane, Driver], Stream] = {}
        companions = {}
        for task in plan.tasks:
            if not self._crosses(task):
                continue
            for name in task.body.ends or ():
                place = self.places[name]
                if place.driver.device != streams[task.lane].device:
                    key = task.lane, place.driver
                    opened[key] = opened.get(key) or place.stream(task.priority)
                    companions[task.name] = opened[key]
        return companions

    def _crosses(self, task: Task) -> bool:
        """Whether the task copies from the memory of one GPU to that of another."""
        ends = task.body.ends if task.body.is_copy else None
        return ends is not None and HOST not in ends and self.places[ends[0]].driver is not self.places[ends[1]].driver

    def _arrival(self, task: Task) -> Place | None:
        """The place on another GPU in whose memory a task's results are; None if they are on its own, or if it has none."""
        return self.places[task.body.ends[1]] if self._crosses(task) and task.body.ends is not None and task.writes else None


class EagerProgram(BoundPlan):
    """A plan bound to tensors; see `Executable`."""

    def __init__(
        self,
        site: Site,
        plan: Plan,
        tensors: Mapping[str, torch.Tensor],
        seed: int,
        keep: tuple[str, ...],
        start: Start = AT_FIRST,
    ):
        super().__init__(Binding(plan, tensors, site.device, seed, site.forms, start.carried), start.iteration)
        self._drivers = site.drivers(plan)
        self.driver = self._drivers[0]
        self._compiled = CompiledPlan(plan, self.binding, {*keep, *plan.losses}, site.call_host)
        self._streams = site.streams(plan)
        self._companions = site.companions(plan, self._streams)
        self._home = site.home
        self._every_stream = list(dict.fromkeys((*self._streams.values(), *self._companions.values())))
        self._keep = tuple(name for name in keep if name in self.binding.slot)
        self._feeds = Feeds(self.binding, self._drivers)
        self._inputs = self._feeds.place(tensors)  # the job's own inputs
        #: The inputs of each iteration. No lane's order covers them, so they are retained until a wait, when no lane reads them any more.
        self._placed: dict[int, Placed] = {}
        self._unwaited = 0  # periods issued since the last wait
        self._longest_wait_s: float | None = None  # per period
        self._ends: dict[int, list[Event]] = {}  # events at the end of each period of the current run
        self._issuer = self._new_issuer()
        #: The largest of a value over all processes that have tasks of the plan, so that all of them make the same number of runs.
        self.max_over_ranks: Callable[[float], float] = lambda value: value
        self._reported: set[int] = set()  # iterations that still have an instance, and whose losses are in `losses`
        self._synchronize()  # the tensors were copied on other streams

    def _new_issuer(self, first: int = 0, iterations: int | None = None) -> Issuer:
        """See Issuer."""
        return Issuer(self._compiled, self.driver, self._streams, self._companions, first=first, iterations=iterations)

    def _synchronize(self, in_flight: Callable[[], str] | None = None) -> None:
        """Wait for every GPU of the plan."""
        for driver in self._drivers:
            driver.synchronize(in_flight)
        if self._home is not None:
            self.driver.use(self._home)

    def run(self, steps: int, inputs: list[Mapping[str, torch.Tensor]] | None = None) -> ChunkTimes:
        """Issue `steps` more periods back to back and wait for them. `inputs`: the feeds of each new iteration (default: the job's own).

        New feeds are copied to the GPU, or to pinned memory, before any task is issued.
        """
        ends_s = tuple(self._issue(steps, inputs)[1])
        return ChunkTimes(lengths(ends_s), ends_s=ends_s)

    def _issue(
        self, steps: int, inputs: list[Mapping[str, torch.Tensor]] | None = None, marks: EagerMarks | None = None
    ) -> tuple[Origin, list[float]]:
        """Run `steps` more periods. Returns their start, on idle lanes, and the seconds from it to the end of each period."""
        if inputs is not None:
            for i in range(steps):
                self._begin(self._period + i, {**self._inputs, **self._feeds.place(inputs[i])})
            self._wait()
        origin = Origin(self.driver, list(self._streams.values()))
        if marks is not None:
            marks.begin()
        ends = []
        with gc_paused():
            for period in range(self._period, self._period + steps):
                if inputs is None:
                    self._begin(period, self._inputs)
                self._issuer.period(period, self._instances, marks)
                ends.append(self._period_end())
                self._ends[period] = ends[-1]
                self._finish(period)
        self._period += steps
        self._unwaited += steps
        self._wait()
        self._ends.clear()
        return origin, _ends_s(origin, list(self._streams.values()), ends)

    def issue_s(self, periods: int) -> float:
        """Host seconds per period for issuing `periods` periods, starting with an idle GPU: the step time if the host is the limit."""
        self._wait()
        begin_s = self.driver.now_s()
        with gc_paused():
            for period in range(self._period, self._period + periods):
                self._begin(period, self._inputs)
                self._issuer.period(period, self._instances)
                self._finish(period)
        spent_s = self.driver.now_s() - begin_s
        self._period += periods
        self._unwaited += periods
        self._wait()
        return spent_s / periods

    def _begin(self, iteration: int, inputs: Placed) -> None:
        """Create the instance of an iteration, counted from the last drain, with its inputs."""
        instance = Instance(self._first_iteration + iteration, len(self.binding.slot), [])
        self._feeds.put(instance, inputs)
        self._instances[iteration], self._placed[iteration] = instance, inputs

    def _period_end(self) -> list[Event]:
        """A timing event at the end of every lane."""
        return [timing_event(self.driver, stream) for stream in self._streams.values()]

    def _wait(self) -> None:
        """Wait for what was issued. Raises GpuStalledError if that takes far longer than before."""
        begin_s = self.driver.now_s()
        self._synchronize(self._overdue(begin_s))
        if self._unwaited:
            wait_s = (self.driver.now_s() - begin_s) / self._unwaited
            self._longest_wait_s, self._unwaited = max(wait_s, self._longest_wait_s or 0.0), 0
        self._placed = {iteration: placed for iteration, placed in self._placed.items() if iteration in self._instances}

    def _overdue(self, begin_s: float) -> Callable[[], str]:
        """A function that says what is in flight in a wait since `begin_s`, and ends the wait once it has taken too long."""
        longest_s = self._longest_wait_s
        limit_s = FIRST_WAIT_S if longest_s is None else max(LEAST_WAIT_S, WAIT_TIMES * longest_s * max(1, self._unwaited))

        def in_flight() -> str:
            what, waited_s = self.in_flight(), self.driver.now_s() - begin_s
            if waited_s >= limit_s:
                raise GpuStalledError(
                    f"{STALLED} {what}: it has taken {waited_s:.0f} s, at most {limit_s:.0f} s were expected; this process cannot use the"
                    " GPU any more, so start again"
                )
            return what

        return in_flight

    def in_flight(self) -> str:
        """What the GPU has not finished, for a warning: by lane, its oldest period and the first task not known to have ended."""
        lanes = []
        for number, lane in enumerate(self._streams):
            period = next((period for period, ends in sorted(self._ends.items()) if not ends[number].query()), None)
            task = self._issuer.first_unreached(lane)
            if period is not None or task is not None:
                where = f"period {period}" if period is not None else "the last period"
                lanes.append(f"{lane[0]} stream {lane[1]} in {where}" + (f", at {task} or before" if task is not None else ""))
        return f"plan {self.plan.strategy} ({'; '.join(lanes) or 'all lanes done'})"

    def sync(self) -> ChunkTimes:
        self._wait()
        begin_s = self.driver.now_s()
        end = self._period + self._compiled.dependencies.largest_lag
        drain = self._new_issuer(self._period, self._period)
        unfinished = list(self._instances.values())  # no later period orders the lanes that share their memory: retain it until the wait
        for period in range(self._period, end):
            drain.period(period, self._instances)
            self._finish(period)
        self._wait()
        drain_s = self.driver.now_s() - begin_s
        del unfinished
        self._first_iteration += self._period
        self._period = 0
        self._instances.clear()
        self._placed.clear()
        self._reported.clear()
        self._issuer = self._new_issuer()
        return ChunkTimes((), ends_s=(drain_s,))

    def _finish(self, period: int) -> None:
        """Collect the losses that have been issued, and drop the iterations whose tensors are all unused."""
        lag, oldest = self._compiled.dependencies.largest_lag, self._compiled.releases.oldest
        # The order of lanes does not show when these storages are unused, so wait for the GPU, many periods later.
        if self._compiled.releases.never_released:
            oldest = lag + RUN_AHEAD
            for event in self._ends.pop(period - RUN_AHEAD, ()):
                self.driver.wait_for(event, self._overdue(self.driver.now_s()))
        for iteration in [i for i in self._instances if i <= period]:
            instance = self._instances[iteration]
            if iteration not in self._reported:
                losses = tuple(instance.slots[self.binding.slot[name]] for name in self.plan.losses)
                if all(loss is not None for loss in losses):
                    self.losses[instance.iteration] = losses
                    self._reported.add(iteration)
            if iteration + lag == period:
                self.kept = {name: instance.slots[self.binding.slot[name]] for name in self._keep}
            if iteration + max(lag, oldest) <= period:
                del self._instances[iteration]
                self._reported.discard(iteration)

    def trace(self) -> list[Measured]:
        """Start and end of every task in a typical period, repeated several times, from instrumented runs."""
        step_s = self.max_over_ranks(_typical_s(self._issue(INSTRUMENTED_PERIODS)[1]))

        def run_once(every: int, offset: int) -> tuple[float, dict[int, tuple[float, float]]]:
            marks, first = EagerMarks(self.driver, self._compiled.tasks, every, offset), self._period
            origin, ends = self._issue(INSTRUMENTED_PERIODS, marks=marks)
            begins = {first + i + 1: end for i, end in enumerate(ends) if i + 1 >= WARM_UP}
            return self.max_over_ranks(_typical_s(ends)), marks.within(origin, begins)

        task_times, self.tracing_overhead = run_instrumented(step_s, int(self.max_over_ranks(len(self._compiled.tasks))), run_once)
        return repeat_period(task_times, step_s, self._compiled.dependencies.largest_lag)


def _ends_s(origin: Origin, streams: Sequence[Stream], ends: list[list[Event]]) -> list[float]:
    """Seconds from `origin` to the end of each period: when its last lane ends, but not before the previous period ends.

    `ends`: by period, an event on each of the streams.
    """
    latest_s, ends_s = 0.0, []
    for events in ends:
        latest_s = max(latest_s, *(origin.seconds(event, stream) for event, stream in zip(events, streams, strict=True)))
        ends_s.append(latest_s)
    return ends_s


def _typical_s(ends_s: list[float]) -> float:
    """The median step length after the warm-up."""
    return statistics.median(lengths(ends_s)[WARM_UP - 1 :])
