"""The state of one simulation that its lanes and hosts share: what each execution waits for, when it ran, and which lanes are parked.

An end may be announced before the clock reaches it: a lane that shares nothing computes the ends of a whole run of tasks at once, and
`until_known_s` of whatever waits for them says when they are. So nothing here depends on the order in which ends are announced: of several
executions that something waited for, the one that ended last counts, and of simultaneous ends the one that is issued last.
"""

from array import array
from collections.abc import Sequence
from math import inf

from simulator.engine.clock import Clock, Signal
from simulator.engine.links import Links
from simulator.engine.recipes import Recipe
from simulator.engine.steady import PeriodWatch
from simulator.plan.dependencies import Dependencies, Edge

# The unrolled sequential program: every execution of a task has a number, and other executions that it waits for.
# Execution t is task `t % size` of period `t // size`. Numbers follow the sequential program, so they break ties.


#: Edges of each task of one period.
EdgesByTask = list[tuple[Edge, ...]]


class Unrolled:
    """Which executions there are, and which of them wait for each other. Periods of one kind share their tables."""

    def __init__(self, dependencies: Dependencies, iterations: int | None, launched: list[bool]):
        """`iterations` as in `plan.program`; None if the program does not end. `launched`: by task, whether it waits for a launch too."""
        self.tasks = dependencies.tasks
        self.size = len(self.tasks)
        self.iterations = iterations
        self._dependencies = dependencies
        self._launched = launched
        self._waits: dict[int, list[int]] = {}
        self._by_delta: dict[int, dict[int, list[tuple[int, int]]]] = {}
        self._successors: dict[tuple[int, ...], list[list[int]]] = {}
        self._no_edges: EdgesByTask = [()] * self.size
        #: Periods that hold tasks, prologue and drain included; None if the program does not end.
        self.periods = None if iterations is None else iterations + dependencies.largest_lag
        #: The largest number of periods between an execution and one that waits for it.
        self.reach = max((edge.delta for period in self._distinct_periods() for edges in self._row(period) for edge in edges), default=0)

    def _distinct_periods(self) -> list[int]:
        """Periods that show every kind of row: prologue, a steady one, drain."""
        steady = self._dependencies.steady
        if self.iterations is None or self.periods is None:
            return list(range(steady + 1))
        return [*range(min(self.iterations, steady + 1)), *range(self.iterations, self.periods)]

    def existing(self, period: int, indices: Sequence[int]) -> Sequence[int]:
        """Those of the tasks `indices` that run in this period."""
        return self._dependencies.existing(period, self.iterations, indices)

    def waits(self, period: int) -> list[int]:
        """By task of `period`, how many executions of other lanes, and launches, it waits for."""
        row = self._row(period)
        counts = self._waits.get(id(row))
        if counts is None:
            counts = self._waits[id(row)] = [len(edges) + launched for edges, launched in zip(row, self._launched, strict=True)]
        return counts

    def successors(self, period: int) -> list[list[int]]:
        """By task of `period`, how much further on in the numbering the executions are that wait for it."""
        rows = [self._row(later) for later in range(period, period + self.reach + 1)]
        key = tuple(map(id, rows))
        successors = self._successors.get(key)
        if successors is None:
            successors = self._successors[key] = [[] for _ in range(self.size)]
            for delta, row in enumerate(rows):
                for producer, consumer in self._edges_by_delta(row).get(delta, ()):
                    successors[producer].append(delta * self.size + consumer - producer)
        return successors

    def _row(self, period: int) -> EdgesByTask:
        if self.periods is not None and period >= self.periods:
            return self._no_edges
        return self._dependencies.waits(period, self.iterations)

    def _edges_by_delta(self, row: EdgesByTask) -> dict[int, list[tuple[int, int]]]:
        """(producer, consumer) of the row's edges, by the number of periods between them."""
        edges = self._by_delta.get(id(row))
        if edges is None:
            edges = self._by_delta[id(row)] = {}
            for consumer, waits in enumerate(row):
                for edge in waits:
                    edges.setdefault(edge.delta, []).append((edge.index, consumer))
        return edges


#: Codes of `traces.documents.timeline.Cause`, in the order of that enum.
DEPENDENCY, LANE, LAUNCH, LINK, SMS, START = range(6)

NAN = float("nan")


class World:
    """Flat tables by execution number, which grow period by period as lanes reach them.

    Lanes and hosts read the tables. Lanes write the rows of their own executions (`start_s`, `end_s`, `cause`, `waited_for`), and call
    `announce` and `lane_ended`; hosts call `launch`.
    """

    __slots__ = (
        "_ended_s", "_lanes", "_parked", "_unfinished", "awaited", "awaited_s", "cause", "earliest_s", "end_s", "env", "horizon", "links",
        "merge", "program", "recipes", "start_s", "stop_s", "waited_for", "waiting", "watch",
    )  # fmt: skip

    def __init__(
        self,
        env: Clock,
        program: Unrolled,
        links: Links,
        recipes: list[Recipe],
        lanes: list[list[int]],
        watch: PeriodWatch,
        merge: bool,
    ):
        """`lanes`: the tasks of each. `watch` decides when enough is simulated. `merge`: whether lanes run ahead of the clock."""
        self.env, self.program, self.links, self.recipes, self.merge = env, program, links, recipes, merge
        self._lanes, self.watch = lanes, watch
        #: Periods from here on are not simulated.
        self.horizon = watch.horizon
        #: How many executions of other lanes, and launches, each execution still waits for.
        self.waiting: list[int] = []
        #: The last end that each execution waits for on other lanes, if known (-1: none), and whose it is.
        self.awaited_s = array("d")
        self.awaited = array("q")
        #: The earliest start once nothing is waited for: the launch, or a gap between graph nodes. Then: when it asked for its resource.
        self.earliest_s = array("d")
        #: NaN until the execution's end is known.
        self.start_s = array("d")
        self.end_s = array("d")
        #: Why the execution did not start earlier (one of the codes above), and the execution that it waited for last (-1: none).
        self.cause = bytearray()
        self.waited_for = array("q")
        #: When enough has been simulated: what is ready at this time or later does not run.
        self.stop_s = inf
        self._unfinished: list[int] = []  # lanes of each period that have tasks left in it
        self._ended_s: list[float] = []  # the last known end in each period
        self._parked: dict[int, Signal] = {}

    def enter(self, period: int) -> int:
        """Make the tables reach `period` and everything that its executions unblock. Returns the number of the period's first execution."""
        program = self.program
        while len(self._unfinished) <= period + program.reach:
            self._grow(len(self._unfinished))
        return period * program.size

    def _grow(self, period: int) -> None:
        program = self.program
        size = program.size
        self.waiting.extend(program.waits(period))
        zeros, blank = array("d", bytes(8 * size)), array("d", [NAN]) * size
        nobody = array("q", [-1]) * size
        self.awaited_s.extend(array("d", [-1.0]) * size)
        self.awaited.extend(nobody)
        self.earliest_s.extend(zeros)
        self.start_s.extend(blank)
        self.end_s.extend(blank)
        self.cause.extend(bytes(size))
        self.waited_for.extend(nobody)
        self._unfinished.append(sum(bool(program.existing(period, tasks)) for tasks in self._lanes))
        self._ended_s.append(-inf)

    def park(self, number: int, signal: Signal) -> Signal:
        """Wait until execution `number` waits for nothing any more, and its launch has arrived."""
        self._parked[number] = signal
        return signal.awaited()

    @property
    def parked(self) -> list[int]:
        """Executions whose lanes are parked, in order."""
        return sorted(self._parked)

    def _unpark(self, number: int) -> None:
        self._parked.pop(number).at(max(self.awaited_s[number], self.earliest_s[number]))

    def launch(self, number: int, arrival_s: float, blocker: int) -> None:
        """The launch of an execution arrives at `arrival_s`. `blocker`: the execution that the host waited for last (-1: none)."""
        self.earliest_s[number], self.waited_for[number] = arrival_s, blocker
        waiting = self.waiting
        left = waiting[number] = waiting[number] - 1
        if not left and number in self._parked:
            self._unpark(number)

    def announce(self, number: int, end_s: float, successors: list[int], gap_s: float, gap_until: float) -> None:
        """Record that execution `number` ends at `end_s`, now or later: wake the lanes that waited only for it.

        `successors`: how much further on the executions are that wait for it. Those before `gap_until` start no sooner than `gap_s` later.
        """
        waiting, parked, awaited_s = self.waiting, self._parked, self.awaited_s
        for further in successors:
            later = number + further
            left = waiting[later] = waiting[later] - 1
            known_s = awaited_s[later]
            if end_s > known_s or (end_s == known_s and number > self.awaited[later]):
                awaited_s[later], self.awaited[later] = end_s, number
            if gap_s and later < gap_until:
                self.earliest_s[later] = max(self.earliest_s[later], end_s + gap_s)
            if not left and later in parked:
                self._unpark(later)

    def lane_ended(self, period: int, end_s: float) -> None:
        """The last execution of a lane in `period` ends at `end_s`, now or later."""
        unfinished, ended_s = self._unfinished, self._ended_s
        unfinished[period] -= 1
        ended_s[period] = max(ended_s[period], end_s)
        if not unfinished[period] and self.watch.period_ended(unfinished, ended_s):
            self.stop_s = self.watch.makespans[-1]

    def ran(self) -> list[int]:
        """The executions that belong to the simulation, in order of (start, issue): those of judged periods, and all that were ready before
        `stop_s`. Lanes may have computed more.
        """
        start_s, end_s, size = self.start_s, self.end_s, self.program.size
        judged = len(self.watch.makespans) * size
        ran = [number for number, end in enumerate(end_s) if end == end]
        if self.stop_s < inf:
            stop_s, earliest_s, alone = self.stop_s, self.earliest_s, [recipe.alone for recipe in self.recipes]
            ran = [n for n in ran if n < judged or (start_s[n] if alone[n % size] else earliest_s[n]) < stop_s]
        ran.sort(key=start_s.__getitem__)  # stable: executions that start at once stay in order of issue
        return ran
