"""Calibrations of the CPU on the busy machine that runs the tests."""

from math import inf


def accept_other_work() -> None:
    """Let this process measure as few rounds as on an idle machine, for tests that check no times.

    Rounds beside other work count, no machine is too busy, and interference runs end after the fewest rounds.
    """
    from calibrate import testbeds
    from calibrate.cpu import contention, monitor
    from traces.documents import verdict

    verdict.BUSY = inf
    testbeds.LOOK_S = 0.0
    monitor.LARGEST_STEAL = monitor.LARGEST_FOREIGN = inf
    contention.BUDGET_S = 0.0
