"""Disturbances of a CPU measurement: steal time and other processes' CPU time from /proc/stat, and preemptions of a thread."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

try:
    import resource
except ImportError:  # Windows
    resource = None

LARGEST_STEAL = 0.05
LARGEST_FOREIGN = 0.03


@dataclass(frozen=True)
class Disturbance:
    """Shares of all cores' time taken by the hypervisor (`steal`) and by other processes (`foreign`)."""

    steal: float
    foreign: float

    @property
    def rejected(self) -> bool:
        """Whether what was measured meanwhile should be repeated."""
        return self.steal > LARGEST_STEAL or self.foreign > LARGEST_FOREIGN


class CpuMonitor:
    """Measures the disturbance between its creation and `stop`."""

    def __init__(self, own_s: Callable[[], float] | None = None):
        """`own_s` returns the CPU seconds so far of what is being measured (default: of this process)."""
        self._own_s = own_s or cpu_s
        self._start = _read(self._own_s)

    def stop(self) -> Disturbance:
        """The disturbance since the start. Its shares are 0 on systems without /proc/stat."""
        if self._start is None:
            return Disturbance(0.0, 0.0)
        (steal_0, busy_0, own_0, wall_0), (steal_1, busy_1, own_1, wall_1) = self._start, _read(self._own_s)
        capacity = max(1e-9, (wall_1 - wall_0) * (os.cpu_count() or 1))
        foreign = (busy_1 - busy_0) - (own_1 - own_0)
        return Disturbance(max(0.0, steal_1 - steal_0) / capacity, max(0.0, foreign) / capacity)


def cpu_s() -> float:
    """CPU seconds of this process so far."""
    own = os.times()
    return own.user + own.system


def _read(own_s: Callable[[], float]) -> tuple[float, float, float, float] | None:
    """CPU seconds so far (stolen, busy without stolen, own) and the current time; None without /proc/stat."""
    try:
        fields = Path("/proc/stat").read_text().splitlines()[0].split()[1:]
    except OSError:
        return None
    tick = os.sysconf("SC_CLK_TCK")
    user, nice, system, _idle, _iowait, irq, softirq, steal = (int(f) / tick for f in fields[:8])
    return steal, user + nice + system + irq + softirq, own_s(), time.monotonic()


def undisturbed_s(call: Callable[[], None]) -> float:
    """Seconds that `call` takes this thread: wall time, or CPU time if another thread preempted this one meanwhile."""
    preemptions, begin, begin_cpu = _preemptions(), time.perf_counter_ns(), time.thread_time_ns()
    call()
    end_cpu, end = time.thread_time_ns(), time.perf_counter_ns()
    return (end - begin if _preemptions() == preemptions else end_cpu - begin_cpu) * 1e-9


def _preemptions() -> int:
    """How often this thread has lost its core without waiting for anything; 0 if the system does not count it."""
    who = getattr(resource, "RUSAGE_THREAD", None)
    return 0 if who is None else resource.getrusage(who).ru_nivcsw
