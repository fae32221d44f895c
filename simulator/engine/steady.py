"""When a repeating schedule has reached its steady state, and its step time."""

from collections.abc import Sequence
from itertools import pairwise
from math import inf

#: Two successive windows agree if their lengths differ by at most this share.
AGREE = 1e-3
#: Windows looked at before giving up. Then the step is the mean of the last `MEAN_OF`, and is reported as not settled.
MOST_WINDOWS, MEAN_OF = 12, 4


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
    """Simulates until two successive windows agree in length.

    A window is one period; in graph mode it is the periods of one graph, because lengths inside a graph differ. Windows count if they begin
    after the largest lag.
    """

    def __init__(self, largest_lag: int, periods_per_window: int):
        """`periods_per_window`: 1, or the iterations of a CUDA graph."""
        self._first = -(-(largest_lag + 1) // periods_per_window)  # the first window that counts; never window 0
        # The lag's periods can be under way when the last window ends.
        super().__init__((self._first + MOST_WINDOWS + 1) * periods_per_window + largest_lag + 1, periods_per_window, periods_per_window)
        self.settled = False
        self.over = False

    def _judge(self) -> None:
        lengths = self.lengths_s
        counted = len(lengths) - self._first
        if len(self.makespans) % self.steps or counted < 2:
            return
        before, last = lengths[-2:]
        self.settled = abs(last - before) <= AGREE * max(last, before)
        self.over = self.settled or counted == MOST_WINDOWS

    @property
    def step_s(self) -> float:
        """Seconds per iteration in the steady state."""
        lengths = self.lengths_s[-1:] if self.settled else self.lengths_s[-MEAN_OF:]
        return sum(lengths) / len(lengths) / self.steps

    @property
    def window_s(self) -> tuple[float, float]:
        """Begin and end of the last window."""
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
