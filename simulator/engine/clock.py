"""Timers of the simulation, and the order of events at one instant.

SimPy orders events by (time, priority, order of scheduling). Here, all ends, launches and wake-ups of an instant come first (`NORMAL`).
When none is left, waiting kernels are placed and waiting transfers started (`PLACEMENT`), in an order of their own that `sms` and `links`
document. So who gets a resource never depends on which of two simultaneous ends is processed first.
"""

from collections.abc import Callable

from simpy import Environment, Event
from simpy.events import NORMAL

#: After everything else at the same instant.
PLACEMENT = NORMAL + 1


class Timer(Event):
    """Calls `action(timer)` after `delay_s`. Processes can wait for it as for any event."""

    def __init__(self, env: Environment, delay_s: float, action: Callable[[Event], None], priority: int = NORMAL):
        """`priority`: `NORMAL` or `PLACEMENT`."""
        self.env = env
        self.callbacks = [action]
        self._ok = True
        self._value = None
        env.schedule(self, priority, delay_s)


def delay_until(now_s: float, when_s: float) -> float:
    """The delay that ends at exactly `when_s` when added to `now_s`, so that a time computed beforehand is met to the bit."""
    delay = when_s - now_s
    if delay <= 0.0:
        return 0.0
    return delay + (when_s - (now_s + delay))


class Allocator:
    """Something that allocates a resource once per instant, after all other events of the instant."""

    def __init__(self, env: Environment):
        """No allocation is pending."""
        self._env, self._pending = env, False

    def _request_allocation(self) -> None:
        """Allocate at this instant, after everything else."""
        if not self._pending:
            self._pending = True
            Timer(self._env, 0.0, self._run_allocation, PLACEMENT)

    def _run_allocation(self, _: Event) -> None:
        self._pending = False
        self._allocate(self._env.now)

    def _allocate(self, now: float) -> None:
        """Give the resource to those that wait for it."""
        raise NotImplementedError
