"""The factors by which running kernels of one memory are slower than alone: `Kernel.factor` of each, 1 at full speed."""

from collections.abc import Mapping, Sequence
from operator import attrgetter

from simulator.engine.kernels import Kernel

_demand = attrgetter("demand")


def share_bandwidth(running: Sequence[Kernel]) -> None:
    """Set the factors that follow from the kernels' SMs and from max-min fair shares of the bandwidth."""
    if len(running) == 1:  # it demands at most the whole bandwidth
        kernel = running[0]
        kernel.factor = kernel.sms / kernel.full if kernel.sms < kernel.full else 1.0
        return
    total = 0.0
    for kernel in running:
        sms, full = kernel.sms, kernel.full
        kernel.factor = factor = sms / full if sms < full else 1.0
        kernel.demand = demand = kernel.memory_share * factor
        total += demand
    if total > 1.0 + 1e-12:
        left, waiting = 1.0, len(running)
        for kernel in sorted(running, key=_demand):
            demand = kernel.demand
            granted = left / waiting
            if demand < granted:
                granted = demand
            left -= granted
            waiting -= 1
            if granted < demand:
                kernel.factor = granted / kernel.memory_share


def slow_down(running: Sequence[Kernel], multipliers: Mapping[tuple[str, str], float]) -> None:
    """Each co-runner adds the excess over 1 of its pair's multiplier to a kernel's slow-down."""
    for kernel in running:
        mine = kernel.shape.group
        excess = sum(multipliers.get((mine, other.shape.group), 1.0) - 1.0 for other in running if other is not kernel)
        kernel.factor /= max(1.0 + excess, 1e-6)


def share_interpreter(running: Sequence[Kernel]) -> None:
    """Slow down workers of a process, which share one interpreter: two kernels collide at the lower of their call rates."""
    rates = [(kernel, kernel.shape.calls / kernel.seconds) for kernel in running if not kernel.shape.held]
    for kernel, calls_per_s in rates:
        process = kernel.pool.process
        collisions_per_s = sum(min(calls_per_s, rate) for other, rate in rates if other is not kernel and other.pool.process == process)
        kernel.factor /= 1.0 + collisions_per_s * kernel.pool.interpreter_s
