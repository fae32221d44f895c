"""Host lanes: how launches reach the streams of GPUs.

What a task takes of the host, eager: `dispatch_s + issue_s` where its cost has an `issue_s` (a calibrated machine, whose `dispatch_s` is
the executor's own time per task), else `dispatch_s` per launch (presets: a typical eager op); nothing without a launch (aliases);
`dispatch_s + call_s` for a host task, which is one call. Then `record_s` once if a task of another lane waits for it, and `wait_s` for each
event that it waits for itself.

Eager: the host issues tasks in plan order, one after another, and blocks when a stream has `queue_depth` launches outstanding. Nothing else
in the simulation acts on it, so its process runs ahead of the clock as far as the ends it needs are known; arrival times are exact.
Graph: one launch per `graph_iterations` periods; a graph starts when it is launched and the graph before it has ended.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence, Set

from simpy import Event

from simulator.engine.lanes import LAUNCH, Lane, World
from simulator.machine.machine import HostLane
from simulator.plan.dependencies import Dependencies


class IssueTimes:
    """What the host spends on each task, as told above."""

    def __init__(
        self,
        host: HostLane,
        dependencies: Dependencies,
        launches: Sequence[int],
        issue_s: Mapping[int, float | None],
        recorded: Set[int],
        iterations: int | None,
    ):
        """`launches` by task index, `issue_s` (None: not known) by index of its tasks; `recorded`: those that other lanes wait for."""
        self._host, self._dependencies, self._iterations = host, dependencies, iterations
        self._issue = {
            index: _issue_s(host, launches[index], seconds) + (host.record_s if index in recorded else 0.0)
            for index, seconds in issue_s.items()
        }
        self._by_row: dict[int, dict[int, float]] = {}

    def of(self, period: int) -> dict[int, float]:
        """Seconds by task index."""
        row = self._dependencies.waits(period, self._iterations)
        if id(row) not in self._by_row:
            self._by_row[id(row)] = {index: issue + self._host.wait_s * len(row[index]) for index, issue in self._issue.items()}
        return self._by_row[id(row)]


def recorded_tasks(dependencies: Dependencies) -> frozenset[int]:
    """Indices of the tasks whose end another lane waits for."""
    return frozenset(edge.index for edges in dependencies.waits(dependencies.steady) for edge in edges)


def _issue_s(host: HostLane, launches: int, op_s: float | None) -> float:
    return host.dispatch_s * launches if op_s is None or not launches else host.dispatch_s + op_s


class EagerHost:
    """Issues the tasks of its devices one by one."""

    def __init__(self, world: World, queue_depth: int, lanes: list[Lane], times: IssueTimes, launches: list[int]):
        """`lanes`: the streams it feeds."""
        self._world, self._depth, self._times, self._launches = world, queue_depth, times, launches
        self._lane_of = {index: lane for lane in lanes for index in lane.tasks}
        self._out: dict[tuple[str, int], deque[int]] = {lane.name: deque() for lane in lanes}
        self._outstanding = {lane.name: 0 for lane in lanes}
        self._blocked: Event | None = None
        self._next = 0  # the first execution not issued
        self._wanted = -1  # the furthest execution that a lane waits for
        for lane in lanes:
            lane.host = self

    def wanted(self, number: int) -> None:
        """A lane has nothing to run before `number` is issued: from now on watch for room at once."""
        if number >= self._next:
            self._wanted = max(self._wanted, number)
            self.resume()

    def resume(self) -> None:
        """Go on issuing if blocked: a task that was waited for has ended."""
        if self._blocked is not None and not self._blocked.triggered:
            self._blocked.succeed()

    def process(self) -> Iterator[Event]:
        """Issue all that the simulation runs; `clock` is the host's own time, ahead of the simulation's."""
        world, launches = self._world, self._launches
        run, parked = world.run, world.parked
        indices = sorted(self._lane_of)
        clock, blocker = 0.0, -1
        for period in range(world.horizon):
            base = run.enter(period)
            seconds = self._times.of(period)
            for index in indices if run.whole(period) else [i for i in indices if run.exists(period, i)]:
                number = base + index
                lane = self._lane_of[index]
                out = self._out[lane.name]
                while out and self._outstanding[lane.name] + launches[index] > self._depth:
                    ended = run.end_s[out[0]]
                    if ended != ended:  # not yet
                        yield self._block(lane, out, number)
                        if world.stopping:
                            return
                        continue
                    if ended > clock:
                        clock, blocker = ended, out[0]
                    self._outstanding[lane.name] -= launches[out.popleft() % run.size]
                clock += seconds[index]
                out.append(number)
                self._outstanding[lane.name] += launches[index]
                self._next = number + 1
                run.earliest_s[number], run.released_by[number] = clock, blocker
                run.waiting[number] -= 1
                if not run.waiting[number] and number in parked:
                    world.wake(number, LAUNCH, blocker)

    def _block(self, lane: Lane, out: deque[int], number: int) -> Event:
        """Wait for room. While no lane starves, wait until half the queue has ended and issue many at once, at times computed then."""
        starving = self._wanted >= number
        lane.trigger = out[0] if starving else out[len(out) // 2]
        self._blocked = Event(self._world.env)
        return self._blocked


class GraphHost:
    """Launches graphs of `graph_iterations` periods, one at a time."""

    def __init__(self, world: World, host: HostLane, lanes: list[Lane]):
        """`lanes`: the streams that its graphs run on."""
        self._world, self._host = world, host
        self._tasks = [index for lane in lanes for index in lane.tasks]
        self._waiting: list[Lane] = []
        self._left = 0  # executions of the running graph that have not ended
        self._ended: Event | None = None
        self._last = -1
        #: The first period whose graph has not started, and the last execution of the graph before it.
        self.open_until = 0
        self.opened_by = -1
        for lane in lanes:
            lane.graphs, lane.gap_s, lane.cross_gap_s = self, host.node_gap_s, host.cross_gap_s

    def gate(self, lane: Lane) -> Event:
        """The event at which the next graph starts."""
        self._waiting.append(lane)
        lane.event = Event(self._world.env)
        return lane.event

    def ended(self, number: int) -> None:
        """An execution of the running graph has ended."""
        self._left -= 1
        self._last = number
        if not self._left and self._ended is not None:
            self._ended.succeed()
            self._ended = None

    def process(self) -> Iterator[Event]:
        """Launch graph after graph; a launch overlaps the graph before it."""
        world, per_graph = self._world, self._host.graph_iterations
        run, env = world.run, world.env
        for first in range(0, world.horizon, per_graph):
            yield env.timeout(self._host.graph_launch_s)
            if self._left:
                self._ended = Event(env)
                yield self._ended
            periods = range(first, min(first + per_graph, world.horizon))
            self._left = sum(run.exists(period, index) for period in periods for index in self._tasks)
            self.open_until, self.opened_by = first + per_graph, self._last
            waiting, self._waiting = self._waiting, []
            for lane in waiting:
                lane.event.succeed()
