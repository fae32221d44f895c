"""Calibrations of the CPU on the busy machine that runs the tests."""

from math import inf


def accept_other_work() -> None:
    """Let this process measure as few rounds as on an idle machine, for tests that check no times.

    Rounds beside other work count, and co-runs end after the fewest rounds.
    """
    from calibrate.cpu import co_runs, monitor

    monitor.LARGEST_STEAL = monitor.LARGEST_FOREIGN = inf
    co_runs.BUDGET_S = 0.0
