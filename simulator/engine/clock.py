"""The simulation's clock: timers and signals of exact times, and the order of events at one instant.

SimPy orders events by (time, priority, order of scheduling). Here, all ends, launches and wake-ups of an instant come first (`NORMAL`).
When none is left, waiting kernels are placed and waiting transfers started (`PLACEMENT`), in the order that `sms` and `links` document. So
who gets a resource never depends on which of two simultaneous ends is processed first.
"""

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

from simpy import Environment, Event
from simpy.events import NORMAL

#: After everything else at the same instant.
PLACEMENT = NORMAL + 1


#: The callbacks of an event that was processed, or that nobody awaits. SimPy's annotations know only those that have some.
_NONE: Any = None


class Clock(Environment):
    """A SimPy environment that also takes events at given times, so that a time computed beforehand is met to the bit."""

    def at(self, when_s: float, event: Event, priority: int = NORMAL) -> None:
        """Let `event` happen at `when_s`, or now if that has passed."""
        now = self._now
        heappush(self._queue, (when_s if when_s > now else now, priority, next(self._eid), event))  # type: ignore[misc]  # no two numbers are equal

    def run_to_end(self) -> None:
        """Process all events, as `Environment.run` does, but without a call per event. Raises the first exception of a process."""
        queue = self._queue
        while queue:
            self._now, _, _, event = heappop(queue)
            callbacks, event.callbacks = event.callbacks, _NONE
            for callback in callbacks:
                callback(event)
            if not event._ok:
                raise event._value


class Timer(Event):
    """Calls `action(timer)` at `when_s`."""

    _ok = True
    _value = None

    def __init__(self, env: Clock, when_s: float, action: Callable[[Event], None], priority: int = NORMAL):
        """`priority`: `NORMAL` or `PLACEMENT`."""
        self.env, self.callbacks = env, [action]
        env.at(when_s, self, priority)


class Signal(Event):
    """What one process waits for, again and again: `yield signal.awaited()`. Then `fire` or `at` ends the wait. Nothing is created."""

    env: Clock

    def __init__(self, env: Clock):
        """Nobody waits yet."""
        self.env = env
        self.callbacks = _NONE
        self._ok = True
        self._value = None

    def awaited(self) -> "Signal":
        """Get ready for the next wait."""
        self.callbacks = []
        return self

    def at(self, when_s: float) -> None:
        """End the wait at `when_s`, or now if that has passed, after the events of that instant that are scheduled already."""
        self.env.at(when_s, self)

    def until(self, when_s: float) -> "Signal":
        """Wait until `when_s`."""
        self.callbacks = []
        self.env.at(when_s, self)
        return self

    def fire(self) -> None:
        """End the wait at once: the process goes on before this call returns. Only for callers that are not processes."""
        callbacks, self.callbacks = self.callbacks, _NONE
        for callback in callbacks:
            callback(self)


class Allocator:
    """Something that allocates a resource once per instant, after all other events of the instant."""

    def __init__(self, env: Clock):
        """No allocation is pending."""
        self._env, self._pending = env, False

    def _request_allocation(self) -> None:
        """Allocate at this instant, after everything else."""
        if not self._pending:
            self._pending = True
            Timer(self._env, self._env.now, self._run_allocation, PLACEMENT)

    def _run_allocation(self, _: Event) -> None:
        self._pending = False
        self._allocate(self._env._now)

    def _allocate(self, now: float) -> None:
        """Give the resource to those that wait for it."""
        raise NotImplementedError
