"""A GPU that does not finish what calibration issued: noticed, reported and never waited for again.

Kernels whose blocks wait for each other may never end beside others; see `executors.cuda.torch_driver`. Nothing can stop them, so no
other work can be measured in this process.
"""

from collections.abc import Iterable

from executors.cuda.driver import Driver
from traces.errors import SchedcastError

#: The first words of the reason why a key, or the co-runs of kernels, could not be measured. They are not tried again.
STALLED = "the GPU never finished"


class GpuStalledError(SchedcastError):
    """The GPU has not finished work that takes far less than a second."""


def wait(driver: Driver) -> None:
    """Wait for all issued work. Raises GpuStalledError if it takes as long as a wait that is reported."""
    driver.synchronize(_stalled)


def _stalled() -> str:
    raise GpuStalledError(f"{STALLED} what was measured last")


def stalled(reasons: Iterable[str]) -> bool:
    """Whether one of the reasons says that the GPU never finished."""
    return any(STALLED in reason for reason in reasons)
