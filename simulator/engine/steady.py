"""When a repeating schedule has settled, and its step time."""

from itertools import pairwise

from simulator.engine.unroll import Unrolled

#: Two successive rounds agree within this share.
AGREE = 1e-3
#: Rounds looked at before giving up; then the step is the mean of the last `MEAN_OF`, reported as not settled.
MOST_ROUNDS, MEAN_OF = 12, 4


class Rounds:
    """Watches the running makespan (the end of all periods up to p) of an unrolled program.

    A round is one period; in graph mode the periods of one graph, since lengths inside a graph differ. Rounds count once they begin
    after the largest lag.
    """

    def __init__(self, largest_lag: int, periods_per_round: int):
        """`periods_per_round`: 1, or the iterations of a CUDA graph."""
        self._first = -(-(largest_lag + 1) // periods_per_round)  # the first round that counts; never round 0
        #: Iterations in `window_s`.
        self.steps = periods_per_round
        #: Periods that can be under way when the last round ends.
        self.horizon = (self._first + MOST_ROUNDS + 1) * periods_per_round + largest_lag + 1
        self.makespans: list[float] = []
        self.settled = False
        self.over = False

    def watch(self, run: Unrolled, now_s: float) -> bool:
        """Note the periods that are complete by now. Returns whether enough was seen."""
        while not self.over and len(self.makespans) < len(run.unfinished) and not run.unfinished[len(self.makespans)]:
            self.makespans.append(now_s)
            self._judge()
        return self.over

    def _judge(self) -> None:
        lengths = self.lengths_s
        counted = len(lengths) - self._first
        if len(self.makespans) % self.steps or counted < 2:
            return
        before, last = lengths[-2:]
        self.settled = abs(last - before) <= AGREE * max(last, before)
        self.over = self.settled or counted == MOST_ROUNDS

    @property
    def lengths_s(self) -> list[float]:
        """Increase of the running makespan per round."""
        ends = [0.0, *self.makespans[self.steps - 1 :: self.steps]]
        return [later - earlier for earlier, later in pairwise(ends)]

    @property
    def step_s(self) -> float:
        """Seconds per iteration in the steady state."""
        lengths = self.lengths_s[-1:] if self.settled else self.lengths_s[-MEAN_OF:]
        return sum(lengths) / len(lengths) / self.steps

    @property
    def window_s(self) -> tuple[float, float]:
        """The last round."""
        return (self.makespans[-1 - self.steps], self.makespans[-1])


class Whole:
    """The counterpart of `Rounds` for a fixed number of iterations, prologue and drain included."""

    def __init__(self, iterations: int, periods: int):
        """`periods` as in `Unrolled.periods`."""
        self.horizon = periods
        self.settled = True
        self.makespans: list[float] = []
        self.steps = iterations

    def watch(self, run: Unrolled, now_s: float) -> bool:
        """Note the periods that are complete by now. Never enough before the end."""
        while not self.over and len(self.makespans) < len(run.unfinished) and not run.unfinished[len(self.makespans)]:
            self.makespans.append(now_s)
        return False

    @property
    def over(self) -> bool:
        """Whether everything has ended."""
        return len(self.makespans) == self.horizon

    @property
    def lengths_s(self) -> list[float]:
        """Increase of the running makespan per period."""
        return [later - earlier for earlier, later in pairwise([0.0, *self.makespans])]

    @property
    def step_s(self) -> float:
        """The whole run, divided by its iterations."""
        return self.makespans[-1] / self.steps

    @property
    def window_s(self) -> tuple[float, float]:
        """The whole run."""
        return (0.0, self.makespans[-1])
