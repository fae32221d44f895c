"""Who gets SMs and bandwidth: kernels of all devices that share one memory.

*SMs* are given whole. A kernel of w = grid / (blocks per SM · SMs) waves needs min(SMs, ceil(w · SMs)) of them, in its last wave only what
the remaining blocks fill. Waiting kernels of a device stand in order of (priority, arrival, issue); only the first receives SMs, as they
fall free, and it leaves the queue when its last wave is fully placed (the leftover rule of Amert et al., RTSS 2017). While a more urgent
kernel waits, a running one gives up what that one needs at its own next wave border, and keeps its rank: blocks are never preempted.

*Cores* are SMs too, one per task, but their workers choose for themselves: one that ends a task takes the most urgent ready one at once, of
equally urgent ones that of its own stream and else the first in issue order; a task for which none is at hand wakes a worker that sleeps.

*Bandwidth* is shared max-min fairly over the demands of all devices of the memory. With x SMs and the bandwidth share y a kernel runs at
1 / max(1, x_need / x, m / y) of its solo speed. Rates change only at events, so alone a kernel takes its solo time to the bit.
"""

from bisect import insort
from collections.abc import Mapping
from math import inf
from typing import NamedTuple

from simpy import Environment, Event

from simulator.costs.cost import Cost
from simulator.engine.clock import Allocator, Timer, delay_until

#: How far from a wave border, in waves, counts as on it: rounding only.
_ON_BORDER = 1e-9


class Shape(NamedTuple):
    """What a kernel asks of SMs and memory.

    `x_need`, `x_last`: SMs with which it reaches full speed, in all waves but the last and in the last. `held` kernels have no end of
    their own: they keep their SMs until `Sms.leave`. `calls`: of ops, by a CPU's worker.
    """

    waves: int
    need: int
    last_need: int
    x_need: float
    x_last: float
    memory_share: float
    group: str
    held: bool = False
    calls: int = 1


def shape_of(cost: Cost, sms: int, saturation_share: float) -> Shape:
    """The shape of a kernel of this cost on a device of `sms` SMs."""
    per_wave = cost.blocks_per_sm * sms
    waves = max(1, -(-cost.grid // per_wave))
    fill = max(1, -(-cost.grid // cost.blocks_per_sm))  # ceil(w · SMs), in integers
    need, last_need = min(sms, fill), fill - (waves - 1) * sms

    def x_need(area: int) -> float:
        return min(float(area), max(cost.compute_share * area, saturation_share * sms))

    share, group = min(1.0, cost.memory_share), cost.group or cost.op_class
    return Shape(waves, need, last_need, x_need(need), x_need(last_need), share, group, calls=cost.calls)


class Kernel:
    """The kernel that a lane runs or waits to run. A lane runs one at a time, so it has one such object for good."""

    __slots__ = (
        "anchor_s", "arrived", "border", "done", "ending", "event", "factor", "freed_by", "goal", "granted_s", "last", "next_border",
        "next_s", "number", "order", "pool", "priority", "queued", "rate", "seconds", "shape", "sms", "start_s",
    )  # fmt: skip

    def __init__(self, pool: "Pool"):
        """`pool`: the SMs of its device."""
        self.pool = pool

    def __lt__(self, other: "Kernel") -> bool:
        return self.order < other.order

    def progress(self, now_s: float) -> float:
        """Solo seconds of work done."""
        done = self.done + (now_s - self.anchor_s) * self.rate
        return done if done < self.seconds else self.seconds


class Pool:
    """The SMs of one device and the kernels that wait for some; the cores of a CPU have workers.

    `wake_s`: how long a task waits for a worker that sleeps; None: SMs of a GPU. `meeting_s`: what it costs a worker to get the
    interpreter back after an op while another worker of the same `process` calls ops too.
    """

    __slots__ = ("awake", "awake_s", "free", "freed_by", "meeting_s", "process", "queue", "wake_s")

    def __init__(self, sms: int, wake_s: float | None = None, meeting_s: float = 0.0, process: str = ""):
        """All SMs are free."""
        self.free, self.wake_s, self.meeting_s, self.process = sms, wake_s, meeting_s, process
        self.queue: list[Kernel] = []
        self.freed_by = -1  # the execution that last gave SMs up
        self.awake: list[Kernel] = []  # of the lanes whose tasks ended at `awake_s`, and whose cores look for another
        self.awake_s = -1.0


class Sms(Allocator):
    """The SMs of the devices on one memory, and the memory's bandwidth. `multipliers`: slow-down of one group of tasks beside another."""

    def __init__(self, env: Environment, pools: Mapping[str, Pool], multipliers: Mapping[tuple[str, str], float] | None = None):
        """`pools`: by device."""
        super().__init__(env)
        self.pools = dict(pools)
        self._all_pools = tuple(self.pools.values())
        self._multipliers = multipliers
        self._meeting = any(pool.meeting_s for pool in self._all_pools)
        self._running: list[Kernel] = []  # kernels with SMs, in order of first grant
        self._timer: Event | None = None
        self._timer_s = inf
        self._moved = False  # whether SMs have changed hands, or a last wave has begun, since rates were set

    def enter(self, kernel: Kernel, number: int, priority: int, shape: Shape, seconds: float, event: Event) -> None:
        """Queue `kernel` as execution `number`. `event` succeeds at its end (held shapes: when it has its SMs)."""
        kernel.number, kernel.priority, kernel.shape, kernel.seconds, kernel.event = number, priority, shape, seconds, event
        now = self._env.now
        kernel.order = (priority, now if kernel.pool.wake_s is None else 0.0, number)
        kernel.sms, kernel.rate, kernel.done, kernel.anchor_s, kernel.start_s = 0, 0.0, 0.0, now, -1.0
        kernel.last, kernel.queued, kernel.ending, kernel.freed_by = shape.waves == 1, True, False, -1
        kernel.border, kernel.arrived = 0, False  # the last wave border known to be reached; whether that was just now
        kernel.goal = shape.last_need if kernel.last else shape.need
        insort(kernel.pool.queue, kernel)
        self._request_allocation()

    def leave(self, kernel: Kernel) -> None:
        """Take a kernel's SMs back."""
        pool = kernel.pool
        pool.free += kernel.sms
        pool.freed_by = kernel.number
        if pool.wake_s is not None:
            if pool.awake_s != self._env.now:
                pool.awake, pool.awake_s = [], self._env.now
            pool.awake.append(kernel)
        kernel.sms = 0
        self._moved = True
        self._running.remove(kernel)
        if kernel.queued:
            kernel.queued = False
            pool.queue.remove(kernel)
        self._request_allocation()

    def _allocate(self, now: float) -> None:
        for pool in self._all_pools:
            if pool.queue and pool.wake_s is None:
                self._place(pool, now)
            elif pool.queue:
                self._place_on_cores(pool, now)
        if self._moved:
            self._moved = False
            self._share(now)
        self._arm(now)

    def _place(self, pool: Pool, now: float) -> None:
        queue = pool.queue
        at_border = self._turn(pool, now)
        while queue:
            first = queue[0]
            want = first.goal - first.sms
            if want > 0:
                for kernel in at_border:
                    if want > pool.free and kernel.priority > first.priority and kernel.sms:
                        self._give_up(kernel, min(kernel.sms, want - pool.free))
                got = want if want < pool.free else pool.free
                if got:
                    self._grant(first, got, now)
            if first.goal > first.sms or not first.last:
                break
            del queue[0]
            first.queued = False
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

    def _turn(self, pool: Pool, now: float) -> list[Kernel]:
        """Kernels on a wave border, the least urgent first. One that has begun its last wave frees what that does not need."""
        found = []
        for kernel in reversed(pool.queue):
            if kernel.last or not kernel.sms:
                continue
            waves = kernel.shape.waves
            reached = kernel.progress(now) * waves / kernel.seconds
            nearest = round(reached)
            on_border = kernel.arrived or (nearest >= 1 and abs(reached - nearest) <= _ON_BORDER)
            kernel.arrived = False
            if max(reached, kernel.border) >= waves - 1 - _ON_BORDER:
                kernel.last, kernel.goal, self._moved = True, kernel.shape.last_need, True
                if kernel.sms > kernel.goal:
                    self._give_up(kernel, kernel.sms - kernel.goal)
            if on_border:
                found.append(kernel)
        return found

    def _give_up(self, kernel: Kernel, sms: int) -> None:
        kernel.sms -= sms
        kernel.pool.free += sms
        kernel.pool.freed_by = kernel.number
        self._moved = True
        if not kernel.sms:
            self._running.remove(kernel)
            self._set_rate(kernel, 0.0, self._env.now)

    def _grant(self, kernel: Kernel, sms: int, now: float) -> None:
        if not kernel.sms:
            self._running.append(kernel)
        kernel.sms += sms
        kernel.pool.free -= sms
        self._moved = True
        if kernel.start_s < 0.0:
            kernel.start_s = kernel.granted_s = now
            kernel.freed_by = kernel.pool.freed_by
            if kernel.shape.held:
                kernel.event.succeed()

    @staticmethod
    def _set_rate(kernel: Kernel, rate: float, now: float) -> None:
        if rate != kernel.rate:  # an unchanged rate keeps its anchor, and so the end time to the bit
            kernel.done = kernel.progress(now)
            kernel.anchor_s = now
            kernel.rate = rate

    def _share(self, now: float) -> None:
        """Rates from SMs held and max-min fair bandwidth."""
        running = self._running
        total = 0.0
        for kernel in running:
            shape = kernel.shape
            full = shape.x_last if kernel.last else shape.x_need
            kernel.factor = factor = kernel.sms / full if kernel.sms < full else 1.0
            total += shape.memory_share * factor
        if total > 1.0 + 1e-12:
            left, waiting = 1.0, len(running)
            for kernel in sorted(running, key=_demand):
                demand = _demand(kernel)
                granted = min(demand, left / waiting)
                left -= granted
                waiting -= 1
                if granted < demand:
                    kernel.factor = granted / kernel.shape.memory_share
        if len(running) > 1:
            if self._multipliers:
                self._multiply(self._multipliers)
            if self._meeting:
                self._meet()
        for kernel in running:
            if kernel.factor != kernel.rate:
                self._set_rate(kernel, kernel.factor, now)

    def _multiply(self, multipliers: Mapping[tuple[str, str], float]) -> None:
        """Each co-runner adds the excess over 1 of its pair's multiplier to a kernel's slow-down."""
        for kernel in self._running:
            mine = kernel.shape.group
            excess = sum(multipliers.get((mine, other.shape.group), 1.0) - 1.0 for other in self._running if other is not kernel)
            kernel.factor /= max(1.0 + excess, 1e-6)

    def _meet(self) -> None:
        """Workers of a process share one interpreter: of two kernels, calls meet as often as the one with fewer makes them."""
        per_s = [(kernel, kernel.shape.calls / kernel.seconds) for kernel in self._running if not kernel.shape.held]
        for kernel, mine in per_s:
            met = sum(min(mine, other) for beside, other in per_s if beside is not kernel and beside.pool.process == kernel.pool.process)
            kernel.factor /= 1.0 + met * kernel.pool.meeting_s

    def _arm(self, now: float) -> None:
        soonest = inf
        for kernel in self._running:
            kernel.next_s = moment = self._next(kernel, now)
            if moment < soonest:
                soonest = moment
        if soonest != self._timer_s:
            self._timer_s = soonest
            self._timer = Timer(self._env, delay_until(now, soonest), self._tick) if soonest < inf else None

    def _next(self, kernel: Kernel, now: float) -> float:
        """When it ends, or reaches a wave border that matters: one that another kernel waits for, or the last if it lacks SMs."""
        shape, queue = kernel.shape, kernel.pool.queue
        if shape.held:
            return inf
        kernel.ending = kernel.last or (len(queue) == 1 and kernel.sms == shape.need)
        if kernel.ending:
            return kernel.anchor_s + (kernel.seconds - kernel.done) / kernel.rate
        first, border = queue[0], shape.waves - 1
        if first.priority < kernel.priority and first.goal > first.sms:
            reached = int(kernel.progress(now) * shape.waves / kernel.seconds + _ON_BORDER)
            border = min(border, max(reached, kernel.border) + 1)
        kernel.next_border = border
        return kernel.anchor_s + (kernel.seconds * border / shape.waves - kernel.done) / kernel.rate

    def _tick(self, timer: Event) -> None:
        if timer is not self._timer:
            return  # rates have changed since it was set
        now = self._env.now
        self._timer, self._timer_s = None, inf
        for kernel in [k for k in self._running if k.next_s <= now]:
            if kernel.ending:
                self.leave(kernel)
                kernel.event.succeed()
            else:  # said rather than computed from the time, which may be too coarse for a short wave
                kernel.border, kernel.arrived = kernel.next_border, True
        if self._pending or self._env.peek() <= now:
            self._request_allocation()
        else:
            self._run_allocation(timer)  # nothing else happens at this instant


def _demand(kernel: Kernel) -> float:
    return kernel.shape.memory_share * kernel.factor
