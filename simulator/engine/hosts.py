"""Host lanes: how launches reach the streams of GPUs.

The host time that a task takes in eager mode:

- `dispatch_s + issue_s` if its cost has an `issue_s` (a calibrated machine, whose `dispatch_s` is the executor's own time per task);
- else `dispatch_s` per launch (presets: a typical eager op);
- nothing if it has no launch (aliases);
- `dispatch_s + call_s` for a host task, which is one call;
- the `issue_s` of its cost for a task that the host itself runs (`Body.on_host`);
- nothing for a task that the host waits for (`Body.blocks_host`), but it issues no other before that has ended;
- for each tensor of a copy from one of its GPUs to another, in addition twice `record_s` and `wait_s`: both streams of such a copy wait for
  each other before and after it.

In addition, it takes `record_s` once if a task of another lane waits for it, `wait_s` for each event of the same host that it waits for,
and `switch_s` if the host's previous task is of another lane, or twice for a copy between two of its GPUs. Another host is another process;
a library's kernel waits for what that host issues. The first task of a period always takes `switch_s`, as it does in the executor.

Eager: the host issues tasks in plan order, one after another, and blocks while a stream has `queue_depth` launches outstanding. Nothing
else delays the host, so it runs ahead of the simulation's clock as long as the ends it needs are known, and the lanes resume it. Arrival
times are exact.
Graph: one launch per `graph_iterations` periods, which takes `graph_launch_s`, `graph_node_s` per node and `graph_branch_s` per lane with
nodes but the first; a graph starts when it is launched and the graph before it has ended.
"""

from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence, Set
from math import inf

from simpy import Event

from simulator.engine.clock import Signal
from simulator.engine.costs.cost import Cost
from simulator.engine.recipes import peer_copies
from simulator.engine.world import World
from simulator.machine.machine import HostLane
from simulator.plan.dependencies import Dependencies
from simulator.plan.task import Resource, Task

#: The name of a lane, and the indices of its tasks.
Streams = Mapping[tuple[str, int], list[int]]


class IssueTimes:
    """What the host spends on each task, as the module says."""

    def __init__(
        self,
        host: HostLane,
        dependencies: Dependencies,
        launches: Sequence[int],
        issue_s: Mapping[int, float | None],
        iterations: int | None,
    ):
        """`launches` by task index; `issue_s` by index of the host's tasks (None: unknown)."""
        tasks = dependencies.tasks
        self._host, self._dependencies, self._iterations = host, dependencies, iterations
        self._copies = {index: copies for index in issue_s if launches[index] and (copies := peer_copies(tasks[index], host))}
        self._issue = {
            index: self._issued_s(tasks[index], launches[index], seconds, self._copies.get(index, 0))
            + (host.record_s if index in dependencies.recorded else 0.0)
            for index, seconds in issue_s.items()
        }
        self._indices = sorted(self._issue)
        self._by_row: dict[int, dict[int, float]] = {}

    def _issued_s(self, task: Task, launches: int, op_s: float | None, copies: int) -> float:
        """Seconds without the events that other tasks wait for. `copies`: to another GPU."""
        if task.body.on_host:
            return op_s or 0.0
        if not copies:
            return issue_seconds(self._host, launches, op_s)
        barriers_s = 2 * copies * (self._host.record_s + self._host.wait_s)
        return issue_seconds(self._host, launches, None if op_s is None else op_s * copies) + barriers_s

    @property
    def steady_s(self) -> float:
        """Seconds for all tasks of a period that has them all."""
        return sum(self.in_period(self._dependencies.steady).values())

    def in_period(self, period: int) -> dict[int, float]:
        """Seconds by task index."""
        row = self._dependencies.waits(period, self._iterations)
        if id(row) not in self._by_row:
            seconds = {
                index: issue + self._host.wait_s * sum(edge.index in self._issue for edge in row[index])
                for index, issue in self._issue.items()
            }
            current = None
            for index in self._dependencies.existing(period, self._iterations, self._indices):
                lane, copies = self._dependencies.tasks[index].lane, index in self._copies
                seconds[index] += self._host.switch_s * (2 if copies else lane != current)
                current = lane
            self._by_row[id(row)] = seconds
        return self._by_row[id(row)]


def issue_seconds(host: HostLane, launches: int, op_s: float | None) -> float:
    """The host time to issue a task, without events. `op_s`: the `issue_s` of its cost."""
    return host.dispatch_s * launches if op_s is None or not launches else host.dispatch_s + op_s


def called_s(host: HostLane, task: Task, cost: Cost) -> float | None:
    """The host time of a task in addition to `dispatch_s`: a call of the host, or the `issue_s` of its cost."""
    return host.call_s if task.body.resource is Resource.HOST and not task.body.on_host else cost.issue_s


class EagerHost:
    """Issues the tasks of its streams one by one."""

    def __init__(
        self, world: World, queue_depth: int, streams: Streams, times: IssueTimes, launches: list[int], awaited: Set[int] = frozenset()
    ):
        """`streams`: those that it feeds. `launches` by task index. `awaited`: indices of the tasks that it waits for."""
        self._world, self.depth, self._times, self._launches, self._awaited = world, queue_depth, times, launches, awaited
        self._streams = list(streams)
        self._stream_of = {index: number for number, indices in enumerate(streams.values()) for index in indices}
        #: By stream: issued executions that may not have ended, and the sum of their launches.
        self._issued: list[deque[int]] = [deque() for _ in streams]
        self._outstanding = [0] * len(streams)
        #: The stream whose full queue, or awaited task, blocks the host, and its execution whose end resumes it (inf: not blocked).
        self._full: tuple[str, int] | None = None
        self._resume_at = inf
        #: Periods in which it had to wait for room in a queue.
        self.blocked: set[int] = set()
        self._next = 0  # the first execution not issued
        self._expected = -1  # the furthest execution that a lane waits for
        self._issuing = self._issue()
        self.most_launches = max(sum(launches[index] for index in indices) for indices in streams.values())

    @property
    def issue_s(self) -> float:
        """What issuing all tasks of a period takes, in seconds."""
        return self._times.steady_s

    def expect(self, number: int) -> None:
        """A lane has nothing to run before `number` is issued: from now on issue as soon as there is room."""
        if number >= self._next:
            self._expected = max(self._expected, number)
            self.resume()

    def ended(self, stream: tuple[str, int], number: int) -> None:
        """The ends of the executions of a stream are known up to this one: issue more if the host is blocked by one of them."""
        if number >= self._resume_at and stream == self._full:
            self.resume()

    def resume(self) -> None:
        """Issue as much as the known ends allow."""
        self._resume_at = inf
        next(self._issuing, None)

    def _issue(self) -> Iterator[None]:
        """Issue everything that is simulated; yields when blocked. `clock` is the host's own time, ahead of the simulation's."""
        world, launches, launch, depth = self._world, self._launches, self._world.launch, self.depth
        size, end_s = world.program.size, world.end_s
        stream_of, outstanding, indices = self._stream_of, self._outstanding, sorted(self._stream_of)
        clock, blocker = 0.0, -1
        for period in range(world.horizon):
            first = world.enter(period)
            seconds = self._times.in_period(period)
            for index in world.program.existing(period, indices):
                number = first + index
                stream = stream_of[index]
                issued = self._issued[stream]
                while issued and outstanding[stream] + launches[index] > depth:
                    ended = end_s[issued[0]]
                    if ended != ended:  # NaN: not known yet
                        self._block(self._streams[stream], issued, number)
                        yield
                        continue
                    if ended > clock:
                        clock, blocker = ended, issued[0]
                        self.blocked.add(period)
                    outstanding[stream] -= launches[issued.popleft() % size]
                if clock >= world.stop_s:
                    return
                clock += seconds[index]
                issued.append(number)
                outstanding[stream] += launches[index]
                self._next = number + 1
                launch(number, clock, blocker)
                if index in self._awaited:
                    while end_s[number] != end_s[number]:  # NaN: not known yet
                        self._full, self._resume_at = self._streams[stream], number
                        yield
                    if end_s[number] > clock:
                        clock, blocker = end_s[number], number

    def _block(self, stream: tuple[str, int], issued: deque[int], number: int) -> None:
        """Wait for room in a stream. While no lane waits for a launch, wait until half the queue has ended and issue many tasks at once."""
        starving = self._expected >= number
        self._full, self._resume_at = stream, issued[0] if starving else issued[len(issued) // 2]


class GraphHost:
    """Launches graphs of `graph_iterations` periods, one at a time."""

    def __init__(self, world: World, host: HostLane, streams: Streams):
        """`streams`: those that its graphs run on."""
        self._world, self._host = world, host
        self._tasks = [index for indices in streams.values() for index in indices]
        nodes = list(filter(None, (sum(world.recipes[index].launches for index in indices) for indices in streams.values())))
        self._launch_s = (
            host.graph_launch_s + host.graph_node_s * sum(nodes) * host.graph_iterations + host.graph_branch_s * max(0, len(nodes) - 1)
        )
        self._waiting: list[Event] = []
        self._signal = Signal(world.env)
        self._unfinished = 0  # executions of the running graph whose ends are not known
        self._graph_ended: Event | None = None
        self._last, self._last_end_s = -1, 0.0  # the execution that ended last, and when
        #: Least time between two nodes of one lane, and of two lanes.
        self.gap_s, self.cross_gap_s = host.node_gap_s, host.cross_gap_s
        #: The first period whose graph has not started, and the last execution of the graph before it.
        self.open_until = 0
        self.opened_by = -1

    def gate(self) -> Event:
        """The event at which the next graph starts."""
        event = Event(self._world.env)
        self._waiting.append(event)
        return event

    def ended(self, executions: int, last: int, end_s: float) -> None:
        """Record that `executions` executions of a lane in the running graph, the last of which is `last`, end by `end_s`, now or later."""
        self._unfinished -= executions
        self._last_end_s, self._last = max((self._last_end_s, self._last), (end_s, last))
        if not self._unfinished and self._graph_ended is not None:
            self._graph_ended.succeed()
            self._graph_ended = None

    def process(self) -> Generator[Event, None, None]:
        """Launch graph after graph; the host launches a graph while the graph before it runs."""
        world, per_graph = self._world, self._host.graph_iterations
        env, program = world.env, world.program
        for first in range(0, world.horizon, per_graph):
            yield env.timeout(self._launch_s)
            if self._unfinished:
                self._graph_ended = Event(env)
                yield self._graph_ended
            if self._last_end_s > env.now:
                yield self._signal.until(self._last_end_s)
            periods = range(first, min(first + per_graph, world.horizon))
            self._unfinished = sum(len(program.existing(period, self._tasks)) for period in periods)
            self.open_until, self.opened_by = first + per_graph, self._last
            waiting, self._waiting = self._waiting, []
            for event in waiting:
                event.succeed()
