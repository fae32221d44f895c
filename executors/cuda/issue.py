"""Issues the periods of a plan to streams, one per lane: in plan order, with an event for every task that another lane waits for.

The same loop runs a plan eagerly and issues the work of a CUDA graph's capture.
"""

from collections.abc import Callable, Mapping, Sequence

from executors.binding import Binding, Instance
from executors.cuda.driver import Driver, Event, Stream
from executors.cuda.instrumented import EagerMarks, EndMarks
from executors.kernels.registry import handlers
from executors.program import RUN_PLAIN, failure
from simulator.engine.memory.release import Releases, drain_releases, releases
from simulator.plan.dependencies import Dependencies
from simulator.plan.plan import Plan
from simulator.plan.task import Task
from traces.errors import Code, SchedcastError

Lane = tuple[str, int]


def lane_priorities(plan: Plan) -> dict[Lane, int]:
    """The priority of each lane's tasks. Raises SchedcastError if a lane's tasks differ, because a CUDA stream has one priority."""
    priorities: dict[Lane, int] = {}
    for task in plan.tasks:
        priority = priorities.setdefault(task.lane, task.priority)
        if priority != task.priority:
            raise SchedcastError(
                f"stream {task.stream} of {task.device} has tasks of priorities {priority} and {task.priority} ({task.name}); "
                "a CUDA stream has one priority: plan them on two streams",
                Code.PLAN,
            )
    return priorities


class CompiledPlan:
    """A plan's tasks as functions, its dependencies, and when each slot of an instance may be emptied."""

    def __init__(self, plan: Plan, binding: Binding, keep: set[str], call_host: Callable[[Task], None]):
        """`keep`: values to retain beyond their last reader. `call_host`: runs a host task."""
        self.plan, self.binding = plan, binding
        self.tasks: tuple[Task, ...] = plan.tasks
        self.dependencies = Dependencies(plan)
        self.releases: Releases = releases(plan, self.dependencies)
        # The lane of a host task waits for the task's duration. The issuing thread does not wait.
        compile_by_kind = handlers() | {"host": lambda task, binding: lambda instance: call_host(task)}
        self.run: list[Callable[[Instance], None]] = [compile_by_kind[task.body.kind](task, binding) for task in self.tasks]
        self._slots = slots = binding.slots_by_storage(keep)
        #: `releases` with slots instead of storages: (slots, age) by task, and (slots, iteration) by (period, task).
        self._steady = [[(slots[name], age) for name, age in items if name in slots] for items in self.releases.steady]
        self._early = {at: [(slots[name], i) for name, i in items if name in slots] for at, items in self.releases.early.items()}

    def drop_draining(self, iterations: int) -> Callable[[Mapping[int, Instance], int, int], None]:
        """What `drop` does in the drain after so many iterations."""
        freed = drain_releases(self.plan, self.dependencies, iterations)

        def drop(instances: Mapping[int, Instance], period: int, index: int) -> None:
            for storage, iteration in freed.get((period, index), ()):
                _empty(instances.get(iteration), self._slots.get(storage, ()))

        return drop

    def drop(self, instances: Mapping[int, Instance], period: int, index: int) -> None:
        """Empty the slots that no task needs any more once task `index` of `period` has been issued."""
        first = self.releases.first
        for slots, age in self._steady[index]:
            if period - age >= first:
                _empty(instances.get(period - age), slots)
        for slots, iteration in self._early.get((period, index), ()):
            _empty(instances.get(iteration), slots)


def _empty(instance: Instance | None, slots: Sequence[int]) -> None:
    if instance is not None:
        for slot in slots:
            instance.slots[slot] = None


class Issuer:
    """Issues periods and stores the events between them.

    `companions`: by task name, a stream of another GPU that is current there while the task is issued, because it copies from or to there.
    `first`: the issuer's first period. All work issued before it has ended, or is waited for, before this issuer's work runs.
    `iterations`: how many there are in all, for an issuer that drains.
    """

    def __init__(
        self,
        compiled: CompiledPlan,
        driver: Driver,
        streams: Mapping[Lane, Stream],
        companions: Mapping[str, Stream],
        first: int = 0,
        iterations: int | None = None,
    ):
        self._compiled, self._driver, self._first, self._iterations = compiled, driver, first, iterations
        self._streams = [streams[task.lane] for task in compiled.tasks]
        self._companions = [companions.get(task.name) for task in compiled.tasks]
        dependencies = compiled.dependencies
        periods = range(dependencies.steady + 1) if iterations is None else range(first, iterations + dependencies.largest_lag)
        rows = [dependencies.waits(period, iterations) for period in periods]
        self._depth = 1 + max((edge.delta for row in rows for edges in row for edge in edges), default=0)
        #: Events by task and by period modulo depth, created when first recorded.
        self._events: list[list[Event | None]] = [[None] * self._depth for _ in compiled.tasks]
        self._recorded = {edge.index for row in rows for edges in row for edge in edges}
        self._awaited = {index for index, task in enumerate(compiled.tasks) if task.body.blocks_host}
        self._current: Stream | None = None
        self._drop = compiled.drop if iterations is None else compiled.drop_draining(iterations)

    def period(
        self, period: int, instances: Mapping[int, Instance], marks: EagerMarks | EndMarks | None = None, advice: str = RUN_PLAIN
    ) -> None:
        """Issue the tasks of one period. Raises TaskFailedError, with the `advice`, if a task fails."""
        compiled, driver = self._compiled, self._driver
        tasks, run, streams = compiled.tasks, compiled.run, self._streams
        row = compiled.dependencies.waits(period, self._iterations)
        position = period % self._depth
        self._current = None  # other code may have changed the current stream since the last period
        index = -1
        try:
            for index in compiled.dependencies.existing(period, self._iterations):
                stream, companion = streams[index], self._companions[index]
                if companion is not None:
                    driver.use(companion)
                if stream is not self._current or companion is not None:
                    driver.use(stream)
                    self._current = stream
                for edge in row[index]:
                    self._wait(stream, edge.index, period - edge.delta)
                if marks is not None:
                    marks.before(period, index, stream)
                run[index](instances[period - tasks[index].lag])
                if marks is not None:
                    marks.after(period, index, stream)
                if index in self._recorded:
                    self._record(index, position, stream)
                if index in self._awaited:
                    event = driver.event()
                    event.record(stream)
                    driver.wait_for(event)
                self._drop(instances, period, index)
        except Exception as error:
            raise failure(tasks[index], error, advice) from error

    def first_unreached(self, lane: Lane) -> str | None:
        """The name of the first of a lane's tasks whose event has not been reached; None if all have. Not every task has an event."""
        for task, events in zip(self._compiled.tasks, self._events, strict=True):
            if task.lane == lane and not all(event.query() for event in events if event is not None):
                return task.name
        return None

    def _wait(self, stream: Stream, index: int, period: int) -> None:
        if period >= self._first:
            stream.wait_event(self._events[index][period % self._depth])

    def _record(self, index: int, position: int, stream: Stream) -> None:
        event = self._events[index][position]
        if event is None:
            event = self._events[index][position] = self._driver.event()
        event.record(stream)


def join(driver: Driver, streams: Sequence[Stream], into: Stream) -> None:
    """Let `into` wait for all work issued to `streams`."""
    for stream in streams:
        if stream is not into:
            event = driver.event()
            event.record(stream)
            into.wait_event(event)


def fork(driver: Driver, stream: Stream, streams: Sequence[Stream]) -> None:
    """Let `streams` wait for all work issued to `stream`."""
    event = driver.event()
    event.record(stream)
    for other in streams:
        if other is not stream:
            other.wait_event(event)
