"""The step time of a schedule that does not repeat itself: the mean of a long run.

If a stream runs ahead of others with which it shares SMs, bandwidth or a link, what happens beside what differs from period to period, and
when the stream is done with its last period, the others have the machine to themselves. All of that is part of a run of n iterations, which
takes c + n · step seconds but for what differs. So the step is the difference of two runs' seconds divided by that of their iterations.
"""

from collections.abc import Callable
from typing import NamedTuple

#: The step is known if a run of twice as many iterations gives the same one within this share.
CLOSE = 0.01
#: Periods of the shortest run, and of the longest one.
FEWEST, LONGEST = 8, 256
#: Most executions in all runs together: seconds of computing.
MOST_EXECUTIONS = 60_000


class LongRun(NamedTuple):
    """Seconds per iteration of a long run, and whether longer ones agree."""

    step_s: float
    agrees: bool


def long_run(seconds_of: Callable[[int], float], size: int, per_window: int, fewest: int) -> LongRun:
    """The step time of a schedule.

    `seconds_of(n)` simulates a run of n iterations. `size`: tasks in an iteration. `per_window`: iterations of a CUDA graph, or 1.
    `fewest`: iterations until everything that fills up is full, such as the queues of a host.
    """
    iterations = -(-max(FEWEST, fewest) // per_window) * per_window
    run_s, executions, before_s = seconds_of(iterations), iterations * size, -1.0
    while True:
        longer_s = seconds_of(2 * iterations)
        executions += 2 * iterations * size
        step_s = (longer_s - run_s) / iterations
        agrees = abs(step_s - before_s) <= CLOSE * step_s
        too_long = 4 * iterations > max(LONGEST, 4 * fewest) or executions + 4 * iterations * size > MOST_EXECUTIONS
        if agrees or too_long:
            return LongRun(step_s, agrees)
        iterations, run_s, before_s = 2 * iterations, longer_s, step_s
