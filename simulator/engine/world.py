"""The state of one simulation that its lanes and hosts share: what each execution waits for, when it ran, and which lanes are parked."""

from array import array
from collections.abc import Callable

from simpy import Environment, Event

from simulator.engine.links import Links
from simulator.engine.recipes import Recipe
from simulator.engine.unroll import Unrolled

#: Codes of `traces.timeline.Cause`, in the order of that enum.
DEPENDENCY, LANE, LAUNCH, LINK, SMS, START = range(6)

NAN = float("nan")


class World:
    """Flat tables by execution number, which grow period by period as lanes reach them.

    Lanes and hosts read the tables; they change them only by calling `launch` and `end`.
    """

    __slots__ = (
        "_parked", "_period_ended", "cause", "earliest_s", "end_s", "env", "horizon", "links", "program", "recipes", "start_s", "stopping",
        "unfinished", "waited_for", "waiting",
    )  # fmt: skip

    def __init__(
        self,
        env: Environment,
        program: Unrolled,
        links: Links,
        recipes: list[Recipe],
        horizon: int,
        period_ended: Callable[[list[int], float], bool],
    ):
        """Periods from `horizon` on are not simulated. `period_ended(unfinished, now_s)` returns whether the simulation can stop."""
        self.env, self.program, self.links, self.recipes, self.horizon = env, program, links, recipes, horizon
        #: How many executions of other lanes, and launches, each execution still waits for.
        self.waiting: list[int] = []
        #: The earliest start once nothing is waited for: the launch, or a gap between graph nodes.
        self.earliest_s = array("d")
        #: NaN until the execution has ended.
        self.start_s = array("d")
        self.end_s = array("d")
        #: Why the execution did not start earlier (one of the codes above), and the execution that it waited for last (-1: none).
        self.cause = bytearray()
        self.waited_for = array("q")
        #: Executions of each period that have not ended.
        self.unfinished: list[int] = []
        #: Whether enough has been simulated: lanes and hosts return at their next step.
        self.stopping = False
        self._period_ended = period_ended
        self._parked: dict[int, Event] = {}

    def enter(self, period: int) -> int:
        """Make the tables reach `period` and everything that its executions unblock. Returns the number of the period's first execution."""
        program = self.program
        while len(self.unfinished) <= period + program.reach:
            self._grow(len(self.unfinished))
        return period * program.size

    def _grow(self, period: int) -> None:
        program = self.program
        size = program.size
        self.waiting.extend(program.waits(period))
        self.earliest_s.extend(array("d", bytes(8 * size)))
        blank = array("d", [NAN]) * size
        self.start_s.extend(blank)
        self.end_s.extend(blank)
        self.cause.extend(bytes(size))
        self.waited_for.extend(array("q", [-1]) * size)
        self.unfinished.append(program.executions(period))

    def park(self, number: int) -> Event:
        """The event that execution `number` waits for nothing any more. Its value is (cause, execution waited for last)."""
        event = self._parked[number] = Event(self.env)
        return event

    @property
    def parked(self) -> list[int]:
        """Executions whose lanes are parked, in order."""
        return sorted(self._parked)

    def launch(self, number: int, arrival_s: float, blocker: int) -> None:
        """The launch of an execution arrives at `arrival_s`. `blocker`: the execution that the host waited for last (-1: none)."""
        self.earliest_s[number], self.waited_for[number] = arrival_s, blocker
        waiting = self.waiting
        waiting[number] -= 1
        if not waiting[number] and number in self._parked:
            self._parked.pop(number).succeed((LAUNCH, blocker))

    def end(
        self, number: int, start_s: float, end_s: float, cause: int, waited_for: int, successors: list[int], gap_s: float, gap_until: float
    ) -> None:
        """Execution `number` ends now: record it, and wake the lanes that waited for nothing else.

        `successors`: how much further on the executions are that wait for it. Those before `gap_until` start no sooner than `gap_s` later.
        """
        self.start_s[number], self.end_s[number] = start_s, end_s
        self.cause[number], self.waited_for[number] = cause, waited_for
        if successors:
            waiting, parked = self.waiting, self._parked
            for further in successors:
                later = number + further
                waiting[later] -= 1
                if gap_s and later < gap_until:
                    self.earliest_s[later] = max(self.earliest_s[later], end_s + gap_s)
                if not waiting[later] and later in parked:
                    parked.pop(later).succeed((DEPENDENCY, number))
        unfinished, period = self.unfinished, number // self.program.size
        unfinished[period] -= 1
        if not unfinished[period]:
            self.stopping = self._period_ended(unfinished, end_s)
