"""SMs and bandwidth: how the kernels of all devices on one memory share them.

*SMs* are given whole. A kernel of grid / (blocks per SM · SMs) waves needs all of them, and in its last wave, or its only one, an SM for
each of the remaining blocks while there are enough: the hardware deals blocks to SMs in turn (`kernels.shape_of`). The waiting kernels of
a device are ordered by (priority, arrival, issue). Only the first receives SMs as they become free, and it leaves the queue when its last
wave is fully placed (the leftover rule of Amert et al., RTSS 2017). While a more urgent kernel waits, a running kernel gives up the SMs
that it needs at its own next wave border, and keeps its place in the queue: blocks are never preempted.

*Computing units* are shared max-min fairly too, on devices that say what an SM holds: there the blocks of kernels that leave places free
share SMs, and "SMs" count places (`kernels.shape_of`).

*Cores* are SMs too, one per task, but CPU workers choose their tasks. A worker that ends a task takes the most urgent ready task at once;
among equally urgent tasks it takes that of its own stream, else the first in issue order. A task that finds no such worker wakes a
sleeping one.

*Bandwidth* is shared max-min fairly over the demands of all devices of the memory. With x SMs and the bandwidth share y, a kernel runs at
1 / max(1, x_need / x, m / y) of its solo speed. Rates change only at events, so a kernel alone takes its solo time to the bit.

The factors by which running kernels of one memory are slower than alone: `Kernel.factor` of each, 1 at full speed.
"""

from bisect import insort
from collections.abc import Callable, Mapping, Sequence
from math import inf
from operator import attrgetter, itemgetter

from simpy import Event

from simulator.engine.clock import Allocator, Clock, Signal
from simulator.engine.kernels import Kernel, Pool, Shape

_demand = attrgetter("demand")


def share_bandwidth(running: Sequence[Kernel]) -> None:
    """Set the factors that follow from the kernels' SMs and from max-min fair shares of the bandwidth.

    >>> kernels = [Kernel(Pool(2), Signal(Clock()), sms=1, full=1.0, memory_share=share) for share in (0.25, 0.5, 1.0)]
    >>> share_bandwidth(kernels)
    >>> [kernel.factor for kernel in kernels]  # the first has what it demands, the others half each of what it leaves
    [1.0, 0.75, 0.375]
    """
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


def share_compute(running: Sequence[Kernel]) -> None:
    """Slow down the kernels of a device that together demand more than it computes, to max-min fair shares of it."""
    by_pool: dict[Pool, list[Kernel]] = {}
    for kernel in running:
        if kernel.shape.compute_share:
            by_pool.setdefault(kernel.pool, []).append(kernel)
    for kernels in by_pool.values():
        demands = sorted(((kernel.shape.compute_share * kernel.factor, kernel) for kernel in kernels), key=itemgetter(0))
        left, waiting = 1.0, len(demands)
        for demand, kernel in demands:
            granted = min(demand, left / waiting)
            left, waiting = left - granted, waiting - 1
            if granted < demand:
                kernel.factor *= granted / demand


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


_order = attrgetter("order")

#: A kernel within this many waves of a wave border is on it. Allows for rounding only.
_ON_BORDER = 1e-9


class Sms(Allocator):
    """The SMs of the devices on one memory, and the memory's bandwidth."""

    def __init__(self, env: Clock, pools: Mapping[str, Pool], multipliers: Mapping[tuple[str, str], float] | None = None):
        """`pools` by device. `multipliers`: slow-down of a kernel of the first group while one of the second group runs."""
        super().__init__(env)
        self.pools = dict(pools)
        self._all_pools = tuple(self.pools.values())
        self._multipliers = multipliers
        self._shares_interpreter = any(pool.interpreter_s for pool in self._all_pools)
        self._running: list[Kernel] = []  # kernels with SMs, in order of first grant
        self._on_tick: list[Callable[[Event], None]] = [self._tick]
        self._timer = Signal(env)  # comes at `_timer_s`; at other times it is stale
        self._timer.callbacks = self._on_tick
        self._timer_s = inf
        self._changed = False  # whether a kernel's SMs or its needs have changed since rates were set

    def enter(self, kernel: Kernel, number: int, priority: int, shape: Shape, seconds: float) -> None:
        """Queue `kernel` as execution `number`. Its signal comes when it ends; if its shape is `held`, when it gets its SMs."""
        now, pool, waves = self._env._now, kernel.pool, shape.waves
        kernel.number, kernel.priority, kernel.shape, kernel.seconds = number, priority, shape, seconds
        kernel.order = (priority, now if pool.wake_s is None else 0.0, number)
        kernel.sms, kernel.rate, kernel.done, kernel.anchor_s, kernel.start_s = 0, 0.0, 0.0, now, -1.0
        kernel.queued, kernel.ending = True, False
        kernel.border, kernel.at_border = 0, False  # the last wave border that `_tick` has seen, and whether it was just now
        kernel.waves, kernel.memory_share, kernel.held = waves, shape.memory_share, shape.held
        kernel.last = last = waves == 1
        kernel.goal, kernel.full = (shape.last_need, shape.x_last) if last else (shape.need, shape.x_need)
        queue = pool.queue
        if queue and kernel.order < queue[-1].order:
            insort(queue, kernel, key=_order)
        else:
            queue.append(kernel)
        if len(queue) > 2 and queue[0] is not kernel and pool.wake_s is None:
            return  # the first in the queue waits for SMs, and goes on doing so
        if not self._pending:
            events = self._env._queue
            if events and events[0][0] <= now:
                self._request_allocation()
            else:
                self._allocate(now)  # nothing else happens at this instant

    def leave(self, kernel: Kernel) -> None:
        """Free a kernel's SMs."""
        self._free(kernel, self._env._now)
        self._request_allocation()

    def _free(self, kernel: Kernel, now: float) -> None:
        pool = kernel.pool
        pool.free += kernel.sms
        pool.freed_by = kernel.number
        if pool.wake_s is not None:
            if pool.awake_s != now:
                pool.awake, pool.awake_s = [], now
            pool.awake.append(kernel)
        kernel.sms = 0
        self._changed = True
        self._running.remove(kernel)
        if kernel.queued:
            kernel.queued = False
            pool.queue.remove(kernel)

    def _allocate(self, now: float) -> None:
        for pool in self._all_pools:
            if pool.queue and pool.wake_s is None:
                self._place(pool, now)
            elif pool.queue:
                self._place_on_cores(pool, now)
        if self._changed:
            self._changed = False
            running = self._running
            share_bandwidth(running)
            if len(running) > 1:
                share_compute(running)
                if self._multipliers:
                    slow_down(running, self._multipliers)
                if self._shares_interpreter:
                    share_interpreter(running)
        self._set_rates(now)

    def _place(self, pool: Pool, now: float) -> None:
        queue = pool.queue
        at_border = self._at_wave_border(pool, now)
        while queue:
            first = queue[0]
            want = first.goal - first.sms
            if want > 0:
                for kernel in at_border:
                    if want > pool.free and kernel.priority > first.priority and kernel.sms:
                        self._give_up(kernel, min(kernel.sms, want - pool.free))
                if pool.free:
                    self._grant(first, want if want < pool.free else pool.free, now)
                    if first.goal > first.sms:
                        break
                else:
                    break
            if not first.last:
                break
            del queue[0]
            first.queued = False
        if len(queue) > 1:
            for kernel in queue[1:]:
                if kernel.last and kernel.sms >= kernel.goal:
                    kernel.queued = False
                    queue.remove(kernel)

    def _place_on_cores(self, pool: Pool, now: float) -> None:
        awake = pool.awake if pool.awake_s == now else []
        queue = pool.queue
        while queue and pool.free:
            first = queue[0]
            own = next((k for k in awake if k.queued and k.priority == first.priority), None)
            chosen = own or first
            queue.remove(chosen)
            chosen.queued = False
            self._grant(chosen, 1, now)
            if awake:
                awake.remove(own or awake[0])
            elif pool.wake_s:
                chosen.start_s = now + pool.wake_s
                chosen.seconds += pool.wake_s

    def _at_wave_border(self, pool: Pool, now: float) -> Sequence[Kernel]:
        """Running kernels on a wave border that others are more urgent than, the least urgent first.

        A kernel that begins its last wave frees its surplus SMs.
        """
        growing: list[Kernel] = []
        for kernel in self._running:
            if not kernel.last and kernel.pool is pool:
                growing.append(kernel)  # noqa: PERF401 - a comprehension takes a call
        if not growing:
            return growing
        if len(growing) > 1:
            growing.sort(key=_order, reverse=True)
        kernels: list[Kernel] = []
        most_urgent = pool.queue[0].priority
        for kernel in growing:
            seconds, waves = kernel.seconds, kernel.waves
            done = kernel.done + (now - kernel.anchor_s) * kernel.rate  # `Kernel.progress`
            reached = (done if done < seconds else seconds) * waves / seconds
            on_border, kernel.at_border = kernel.at_border, False
            if reached >= waves - 1 - _ON_BORDER or kernel.border >= waves - 1:
                shape = kernel.shape
                kernel.last, kernel.goal, kernel.full, self._changed = True, shape.last_need, shape.x_last, True
                if kernel.sms > kernel.goal:
                    self._give_up(kernel, kernel.sms - kernel.goal)
            if kernel.priority > most_urgent:
                nearest = round(reached)
                if on_border or (nearest >= 1 and abs(reached - nearest) <= _ON_BORDER):
                    kernels.append(kernel)
        return kernels

    def _give_up(self, kernel: Kernel, sms: int) -> None:
        kernel.sms -= sms
        kernel.pool.free += sms
        kernel.pool.freed_by = kernel.number
        self._changed = True
        if not kernel.sms:
            self._running.remove(kernel)
            self._set_rate(kernel, 0.0, self._env.now)

    def _grant(self, kernel: Kernel, sms: int, now: float) -> None:
        if not kernel.sms:
            self._running.append(kernel)
        kernel.sms += sms
        kernel.pool.free -= sms
        self._changed = True
        if kernel.start_s < 0.0:
            kernel.start_s = kernel.granted_s = now
            kernel.freed_by = kernel.pool.freed_by
            if kernel.held:
                kernel.signal.at(now)

    @staticmethod
    def _set_rate(kernel: Kernel, rate: float, now: float) -> None:
        if rate != kernel.rate:  # an unchanged rate keeps its reference time, and so the exact end time
            kernel.done = kernel.progress(now)
            kernel.anchor_s = now
            kernel.rate = rate

    def _set_rates(self, now: float) -> None:
        """Set rates to the factors, and the timer to when the first kernel ends or reaches a wave border that matters."""
        soonest = inf
        for kernel in self._running:
            rate = kernel.factor
            if rate != kernel.rate:  # `_set_rate`
                seconds = kernel.seconds
                done = kernel.done + (now - kernel.anchor_s) * kernel.rate
                kernel.done = done = done if done < seconds else seconds
                kernel.anchor_s, kernel.rate = now, rate
                if kernel.last and not kernel.held:
                    kernel.ending = True
                    kernel.next_s = next_s = now + (seconds - done) / rate
                else:
                    kernel.next_s = next_s = self._next(kernel, now)
            elif kernel.last and kernel.ending:
                next_s = kernel.next_s  # at an unchanged rate it ends when it would have ended
            else:
                kernel.next_s = next_s = self._next(kernel, now)
            if next_s < soonest:
                soonest = next_s
        if soonest < now:
            soonest = now  # by rounding
        if soonest != self._timer_s:
            self._timer_s = soonest
            if soonest < inf:
                self._env.at(soonest, self._timer)

    def _next(self, kernel: Kernel, now: float) -> float:
        """When the kernel ends or reaches a wave border that matters: the next one while a more urgent kernel waits, else the last."""
        queue, waves = kernel.pool.queue, kernel.waves
        if kernel.held:
            return inf
        kernel.ending = kernel.last or (len(queue) == 1 and kernel.sms == kernel.shape.need)
        if kernel.ending:
            return kernel.anchor_s + (kernel.seconds - kernel.done) / kernel.rate
        first, border = queue[0], waves - 1
        if first.priority < kernel.priority and first.goal > first.sms:
            reached = int(kernel.progress(now) * waves / kernel.seconds + _ON_BORDER)
            border = min(border, max(reached, kernel.border) + 1)
        kernel.next_border = border
        return kernel.anchor_s + (kernel.seconds * border / waves - kernel.done) / kernel.rate

    def _tick(self, timer: Event) -> None:
        timer.callbacks = self._on_tick
        env = self._env
        now = env._now
        if now != self._timer_s:
            return  # rates have changed since the timer was set
        self._timer_s = inf
        ended = []
        for kernel in self._running:
            if kernel.next_s <= now:
                if kernel.ending:
                    ended.append(kernel)
                else:  # noted here, because the resolution of `now` may be too coarse to compute it for a short wave
                    kernel.border, kernel.at_border = kernel.next_border, True
        if ended:
            scheduled, self._pending = self._pending, True  # lanes that go on at once may ask for SMs: there is one allocation for all
            for kernel in ended:
                self._free(kernel, now)
            for kernel in ended:
                kernel.signal.fire()
            self._pending = scheduled
        if not self._pending:
            events = env._queue
            if events and events[0][0] <= now:
                self._request_allocation()
            else:
                self._allocate(now)  # nothing else happens at this instant
