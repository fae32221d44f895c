"""Looks at what other processes take of the machine before a measurement, and waits until they have ended."""

import time
from collections.abc import Callable

from calibrate.cpu.monitor import CpuMonitor
from calibrate.testbed import Monitor, Progress, Testbed, no_progress
from traces.documents.verdict import is_busy

#: Seconds of one look.
LOOK_S = 0.5


def monitor_of(testbed: Testbed) -> Callable[[], Monitor]:
    """What watches the device of a testbed that is not open yet."""
    return testbed.monitor if testbed.identity.kind == "gpu" else CpuMonitor


def wait_until_quiet(
    monitor: Callable[[], Monitor],
    wait_s: float = 0.0,
    progress: Progress = no_progress,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> float | None:
    """Wait up to `wait_s` seconds until other processes leave the machine alone; with 0, only look.

    Returns the share of the machine that they took at last, None if nobody knows.
    """
    begin = clock()
    while True:
        look = monitor()
        sleep(LOOK_S)
        share, waited_s = look.stop().busy_share, clock() - begin
        if not is_busy(share) or waited_s >= wait_s:
            return share
        progress(int(waited_s), int(wait_s), f"others take {100 * share:.0f} % of the machine")
