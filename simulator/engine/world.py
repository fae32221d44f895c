"""The state of one simulation that its lanes and hosts share: what each execution waits for, when it ran, and which lanes are parked.

An end may be announced before the clock reaches it: a lane that shares nothing computes the ends of a whole run of tasks at once, and
`until_known_s` of whatever waits for them says when they are. So nothing here depends on the order in which ends are announced: of several
executions that something waited for, the one that ended last counts, and of simultaneous ends the one that is issued last.
"""

from array import array
from math import inf

from simulator.engine.clock import Clock, Signal
from simulator.engine.links import Links
from simulator.engine.recipes import Recipe
from simulator.engine.steady import PeriodWatch
from simulator.engine.unroll import Unrolled

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
        #: The last end that each execution waits for on other lanes, as far as known (-1: none), and whose it is.
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
        self._ended_s: list[float] = []  # the last end in each period, as far as known
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
        """Execution `number` ends at `end_s`, now or later: wake the lanes that waited for nothing else.

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
