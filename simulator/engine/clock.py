"""Timers of the simulation, and the order of what happens at one instant.

SimPy orders events by (time, priority, order of scheduling). Here, at one instant, first come all ends, launches and wake-ups (`NORMAL`);
only when none is left, waiting kernels are placed and waiting transfers started (`PLACEMENT`), among them by their own documented order.
So what gets a resource never depends on which of two simultaneous ends was noticed first.
"""

from collections.abc import Callable

from simpy import Environment, Event
from simpy.events import NORMAL

#: After everything else of the same instant.
PLACEMENT = NORMAL + 1


class Timer(Event):
    """Calls `action(timer)` after `delay_s`. Waiting on it works as with any event."""

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


class Settling:
    """Something that gives out what it has once at each instant, when nothing else happens at it any more."""

    def __init__(self, env: Environment):
        """Nothing waits yet."""
        self._env, self._settling = env, False

    def _soon(self) -> None:
        """Settle at this instant, after everything else."""
        if not self._settling:
            self._settling = True
            Timer(self._env, 0.0, self._settle, PLACEMENT)

    def _settle(self, _: Event) -> None:
        self._settling = False
        self._give(self._env.now)

    def _give(self, now: float) -> None:
        """Give out what there is."""
        raise NotImplementedError
