"""Disturbances of a CPU measurement: time that other processes and the hypervisor take from its cores, and preemptions of a thread.

The cores are those that this process may use. In a container only what its system shows is known: other containers' work on these cores
counts if the whole machine's times are visible.
"""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import psutil

from executors.cpu.cores import available_cores, cpu_s

if sys.platform != "win32":
    import resource

LARGEST_STEAL = 0.05
LARGEST_FOREIGN = 0.03


@dataclass(frozen=True)
class Disturbance:
    """Shares of the cores' time taken by the hypervisor (`steal`) and by other processes (`foreign`)."""

    steal: float
    foreign: float

    @property
    def busy_share(self) -> float:
        """The share of the cores' time that others took, of both kinds."""
        return min(1.0, self.steal + self.foreign)

    @property
    def rejected(self) -> bool:
        return self.steal > LARGEST_STEAL or self.foreign > LARGEST_FOREIGN


@dataclass(frozen=True)
class CoreTimes:
    """CPU seconds so far of all cores together: stolen, busy (without stolen), and busy with what is being measured; and the time now."""

    steal_s: float
    busy_s: float
    own_s: float
    now_s: float
    cores: int

    def until(self, later: "CoreTimes") -> Disturbance:
        """What others took of the cores from this time until `later`."""
        capacity_s = max(1e-9, (later.now_s - self.now_s) * self.cores)
        foreign_s = (later.busy_s - self.busy_s) - (later.own_s - self.own_s)
        return Disturbance(*(max(0.0, share_s) / capacity_s for share_s in (later.steal_s - self.steal_s, foreign_s)))


class CpuMonitor:
    """Measures the disturbance between its creation and `stop`."""

    def __init__(self, own_s: Callable[[], float] | None = None):
        """`own_s` returns the CPU seconds so far of what is being measured (default: of this process and its children)."""
        self._own_s = own_s or cpu_s
        self._start = core_times(self._own_s)

    def stop(self) -> Disturbance:
        return self._start.until(core_times(self._own_s))


def core_times(own_s: Callable[[], float] = cpu_s) -> CoreTimes:
    """The times of the cores that this process may use, now."""
    cores = psutil.cpu_times(percpu=True)
    cores = [cores[number] for number in available_cores() if number < len(cores)] or cores
    steal_s = sum(getattr(core, "steal", 0.0) for core in cores)
    waiting_s = sum(core.idle + getattr(core, "iowait", 0.0) for core in cores)
    # Guests' time is in user and nice too.
    total_s = sum(sum(core) - getattr(core, "guest", 0.0) - getattr(core, "guest_nice", 0.0) for core in cores)
    return CoreTimes(steal_s, total_s - waiting_s - steal_s, own_s(), time.monotonic(), len(cores))


def undisturbed_s(call: Callable[[], None]) -> float:
    """Seconds that `call` takes this thread: wall time, or CPU time if another thread preempted this one meanwhile."""
    preemptions, begin, begin_cpu = _preemptions(), time.perf_counter_ns(), time.thread_time_ns()
    call()
    end_cpu, end = time.thread_time_ns(), time.perf_counter_ns()
    return (end - begin if _preemptions() == preemptions else end_cpu - begin_cpu) * 1e-9


def _preemptions() -> int:
    """How often this thread has lost its core without waiting for anything; 0 if the system does not count it."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw if sys.platform == "linux" else 0
