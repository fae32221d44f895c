"""When a repeating schedule has reached its steady state, and its step time."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from math import inf
from typing import NamedTuple

# The step time of a schedule that does not repeat itself: the mean of a long run.
# If a stream runs ahead of others with which it shares SMs, bandwidth or a link, which tasks are concurrent differs from period to period,
# and when the stream is done with its last period, the others have the machine to themselves. All of that is part of a run of n iterations,
# which takes c + n · step seconds but for what differs. So the step is the difference of two runs' seconds divided by that of their
# iterations. Streams may change their pace after many iterations, such as when a lead is used up, so every longer run that can be afforded
# must agree with the first two that agree.


#: The step is known if runs of twice as many iterations, and of all longer ones, give the same one within this share.
CLOSE = 0.01
#: Periods of the shortest run, and of the longest one.
FEWEST, LONGEST = 8, 256
#: Most executions in all runs together: seconds of computing.
LONG_RUN_EXECUTIONS = 60_000


class LongRun(NamedTuple):
    """Seconds per iteration of a long run, and whether longer ones agree."""

    step_s: float
    agrees: bool


def long_run(seconds_of: Callable[[int], float], size: int, per_window: int, fewest: int) -> LongRun:
    """The step time of a schedule.

    `seconds_of(n)` simulates a run of n iterations. `size`: tasks in an iteration. `per_window`: iterations of a CUDA graph, or 1.
    `fewest`: iterations until everything that fills up is full, such as the queues of a host.

    >>> long_run(lambda iterations: 5.0 + 2.0 * iterations, size=10, per_window=1, fewest=1)  # 5 s to fill up, then 2 s an iteration
    LongRun(step_s=2.0, agrees=True)
    """
    iterations = -(-max(FEWEST, fewest) // per_window) * per_window
    run_s, executions, before_s, known_s = seconds_of(iterations), iterations * size, -1.0, None
    while True:
        longer_s = seconds_of(2 * iterations)
        executions += 2 * iterations * size
        step_s = (longer_s - run_s) / iterations
        if known_s is not None and abs(step_s - known_s) > CLOSE * step_s:
            known_s = None
        if known_s is None and abs(step_s - before_s) <= CLOSE * step_s:
            known_s = step_s
        if 4 * iterations > max(LONGEST, 4 * fewest) or executions + 4 * iterations * size > LONG_RUN_EXECUTIONS:
            return LongRun(step_s if known_s is None else known_s, known_s is not None)
        iterations, run_s, before_s = 2 * iterations, longer_s, step_s


#: Times are equal if they differ by at most this share of the simulated time. Allows for rounding only.
EQUAL = 1e-9
#: Windows examined before giving up: as many as contain this many executions of tasks, within these limits.
FEWEST_WINDOWS, MOST_WINDOWS, MOST_EXECUTIONS = 9, 32, 12_000


class Repeated(NamedTuple):
    """Every `windows` windows, everything happens again `seconds` later."""

    windows: int
    seconds: float


class PeriodWatch:
    """Records the makespan of an unrolled program after each period: the end of all periods so far."""

    #: Whether enough has been simulated.
    over: bool

    def __init__(self, horizon: int, steps: int, periods_per_window: int):
        """`horizon`: periods to simulate at most. `steps`: iterations in `window_s`."""
        self.horizon, self.steps = horizon, steps
        self.makespans: list[float] = []
        self._periods_per_window = periods_per_window

    def period_ended(self, unfinished: Sequence[int], ended_s: Sequence[float]) -> bool:
        """Record the complete periods. Returns whether the simulation can stop.

        `unfinished`: by period, how many lanes have tasks left in it. `ended_s`: by period, its last end (-inf if it holds no task).
        """
        while not self.over and len(self.makespans) < len(unfinished) and not unfinished[len(self.makespans)]:
            # Empty periods before the first task are complete when the first period with tasks is.
            before_s = self.makespans[-1] if self.makespans else next(end_s for end_s in ended_s if end_s > -inf)
            self.makespans.append(max(before_s, ended_s[len(self.makespans)]))
            self._judge()
        return self.over

    def _judge(self) -> None:
        """Decide whether the simulation is over."""
        raise NotImplementedError

    @property
    def lengths_s(self) -> list[float]:
        """Increase of the makespan per window."""
        ends = [0.0, *self.makespans[self._periods_per_window - 1 :: self._periods_per_window]]
        return [later - earlier for earlier, later in pairwise(ends)]


class SteadyState(PeriodWatch):
    """Simulates until the schedule repeats itself, which proves its steady state (`repetition`), or until there are too many windows.

    Then it is settled if the schedule nearly repeats itself. A window is one period; in graph mode it is the periods of one graph, because
    lengths inside a graph differ. Windows count if they begin after the largest lag.
    """

    #: How the schedule repeats itself exactly, and nearly: from the lengths of all windows and the first that counts. Set before the start.
    exactly: Callable[[Sequence[float], int], Repeated | None]
    nearly: Callable[[Sequence[float], int], Repeated | None]

    def __init__(self, largest_lag: int, periods_per_window: int, size: int):
        """`periods_per_window`: 1, or the iterations of a CUDA graph. `size`: tasks in a period."""
        self._first = -(-(largest_lag + 1) // periods_per_window)  # the first window that counts; never window 0
        self._most = max(FEWEST_WINDOWS, min(MOST_WINDOWS, MOST_EXECUTIONS // (size * periods_per_window)))
        # The lag's periods can be under way when the last window ends.
        super().__init__((self._first + self._most + 1) * periods_per_window + largest_lag + 1, periods_per_window, periods_per_window)
        self._repeated: Repeated | None = None
        self.over = False

    @property
    def settled(self) -> bool:
        """Whether the schedule repeats itself."""
        return self._repeated is not None

    def _judge(self) -> None:
        if len(self.makespans) % self._periods_per_window:
            return
        lengths = self.lengths_s
        if len(lengths) < self._first + 2:
            return
        last_chance = len(lengths) == self._first + self._most
        repeated = self.exactly(lengths, self._first) or (self.nearly(lengths, self._first) if last_chance else None)
        self._repeated, self.over = repeated, last_chance
        if repeated is not None:
            self.steps = repeated.windows * self._periods_per_window
            begin_s, end_s = self.window_s
            self.over |= abs(end_s - begin_s - repeated.seconds) <= 4 * EQUAL * end_s  # else a lane has a lead that it still loses

    @property
    def step_s(self) -> float:
        """Seconds per iteration in the steady state. Raises ValueError if that is not known: before the schedule repeats itself."""
        if self._repeated is None:
            raise ValueError("the schedule does not repeat itself yet, so its step time is not known")
        return self._repeated.seconds / self.steps

    @property
    def window_s(self) -> tuple[float, float]:
        """Begin and end of the last windows that repeat together."""
        return (self.makespans[-1 - self.steps], self.makespans[-1])


class FixedIterations(PeriodWatch):
    """Simulates a fixed number of iterations, prologue and drain included."""

    settled = True

    def __init__(self, iterations: int, periods: int):
        """`periods` as in `Unrolled.periods`."""
        super().__init__(periods, iterations, 1)
        self.over = False

    def period_ended(self, unfinished: Sequence[int], ended_s: Sequence[float]) -> bool:
        """Record the complete periods. Never stops the simulation: it ends by itself."""
        super().period_ended(unfinished, ended_s)
        return False

    def _judge(self) -> None:
        self.over = len(self.makespans) == self.horizon

    @property
    def step_s(self) -> float:
        """The whole run, divided by its iterations."""
        return self.makespans[-1] / self.steps

    @property
    def window_s(self) -> tuple[float, float]:
        """The whole run."""
        return (0.0, self.makespans[-1])
