"""Lanes: one SimPy process per stream. Each runs its tasks in issue order, period after period.

The head of a stream starts when what it depends on has ended, its launch has arrived, and it has what it runs on: SMs, a link, or nothing
but time. A lane whose head must wait parks; whoever releases the head last wakes it.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING

from simpy import Environment, Event

from simulator.engine.clock import delay_until
from simulator.engine.links import Links, Route, Transfer
from simulator.engine.sms import Kernel, Shape, Sms
from simulator.engine.unroll import Unrolled

if TYPE_CHECKING:
    from simulator.engine.hosts import EagerHost, GraphHost

#: Codes of `traces.timeline.Cause`, in the order of that enum.
DEPENDENCY, LANE, LAUNCH, LINK, SMS, START = range(6)


@dataclass(slots=True)
class Recipe:
    """How one task runs. Without `shape` and `route` it takes `seconds` whatever else runs: it shares nothing.

    With a `shape` it is a kernel of `seconds`; with a `route` a transfer of `moved_bytes` after `seconds` of overhead. With both, a core
    makes the transfer if the shape is held, and else the kernel comes first. `crossed`: no node of its graph, but an edge (an alias)
    that has paid for crossing lanes on the way in.
    """

    seconds: float
    priority: int = 0
    shape: Shape | None = None
    route: Route | None = None
    moved_bytes: float = 0.0
    crossed: bool = False


@dataclass(slots=True)
class World:
    """What the lanes of one simulation share. Periods from `horizon` on are not simulated; `period_ended` is called as each one ends."""

    env: Environment
    run: Unrolled
    links: Links
    recipes: list[Recipe]
    horizon: int
    period_ended: Callable[[float], None]
    parked: dict[int, "Lane"] = field(default_factory=dict)
    stopping: bool = False

    def park(self, lane: "Lane", number: int) -> Event:
        """The event that the lane waits for until execution `number` is released."""
        self.parked[number] = lane
        lane.event = Event(self.env)
        return lane.event

    def wake(self, number: int, cause: int, by: int) -> None:
        """Wake the lane that waits to run `number`, which waits for nothing any more."""
        lane = self.parked.pop(number)
        lane.cause, lane.by = cause, by
        lane.event.succeed()


class Lane:
    """One stream of one device. `tasks`: the indices of its tasks in issue order."""

    __slots__ = (
        "by", "cause", "cross_gap_s", "event", "gap_s", "graphs", "host", "kernel", "last", "name", "sms", "tasks", "transfer", "trigger",
        "world",
    )  # fmt: skip

    def __init__(self, world: World, name: tuple[str, int], tasks: list[int], sms: Sms | None):
        """`sms`: where its kernels run; None if no other lane shares them."""
        self.world, self.name, self.tasks, self.sms = world, name, tasks, sms
        self.kernel = Kernel(sms.pools[name[0]]) if sms else None
        self.transfer = Transfer()
        self.host: EagerHost | None = None
        self.graphs: GraphHost | None = None
        #: Least time between two of its tasks, and between a task and one that it releases on another lane (nodes of a CUDA graph).
        self.gap_s = self.cross_gap_s = 0.0
        self.cause, self.by = START, -1
        self.last = -1
        self.trigger = -1  # the execution whose end the host waits for

    def process(self) -> Iterator[Event]:
        """Run every task of the lane until the simulation stops."""
        world, tasks, graphs = self.world, self.tasks, self.graphs
        run = world.run
        for period in range(world.horizon):
            after_gate = None
            if graphs is not None and period >= graphs.open_until:
                yield graphs.gate(self)
                after_gate = (LAUNCH, graphs.opened_by)
            if world.stopping:
                return
            base = run.enter(period)
            indices = tasks if run.whole(period) else [index for index in tasks if run.exists(period, index)]
            yield from self._period(period, base, indices, after_gate)

    def _period(self, period: int, base: int, indices: list[int], after_gate: tuple[int, int] | None) -> Iterator[Event]:
        world, host, graphs = self.world, self.host, self.graphs
        run, env, parked, recipes = world.run, world.env, world.parked, world.recipes
        waiting, unfinished, earliest_s = run.waiting, run.unfinished, run.earliest_s
        start_s, end_s, causes, released_by = run.start_s, run.end_s, run.cause, run.released_by
        successors, timeout, cross_gap_s = run.successors(period), env.timeout, self.cross_gap_s
        border = graphs.open_until * run.size if graphs is not None else inf  # a later graph waits for this one, not for its nodes
        launched = host is not None or graphs is not None
        now = env.now
        for index in indices:
            number = base + index
            self.cause, self.by = after_gate or (LANE if self.last >= 0 else START, self.last)
            after_gate = None
            if waiting[number]:
                if host is not None:
                    host.wanted(number)
                yield world.park(self, number)
                now = env.now
            if launched:
                ready = earliest_s[number]
                if self.gap_s and self.last >= 0:
                    ready = max(ready, end_s[self.last] + self.gap_s)
                if ready > now:
                    if host is not None:
                        self.cause, self.by = LAUNCH, released_by[number]
                    yield timeout(delay_until(now, ready))
                    now = env.now
            if world.stopping:
                return

            started = now
            recipe = recipes[index]
            if recipe.route is not None:
                started = yield from self._transfer(number, recipe)
            elif recipe.shape is None:
                yield timeout(recipe.seconds)
            else:
                self.event = Event(env)
                self.sms.enter(self.kernel, number, recipe.priority, recipe.shape, recipe.seconds, self.event)
                yield self.event
                started = self.kernel.start_s
                if self.kernel.granted_s > now:
                    self.cause, self.by = SMS, self.kernel.freed_by

            now = env.now
            start_s[number], end_s[number] = started, now
            causes[number], released_by[number] = self.cause, self.by
            self.last = number
            gap_s = 0.0 if recipe.crossed else cross_gap_s
            for further in successors[index]:
                later = number + further
                waiting[later] -= 1
                if gap_s and later < border:
                    earliest_s[later] = max(earliest_s[later], now + gap_s)
                if not waiting[later] and later in parked:
                    world.wake(later, DEPENDENCY, number)
            unfinished[period] -= 1
            if not unfinished[period]:
                world.period_ended(now)
            if number == self.trigger:
                host.resume()
            if graphs is not None:
                graphs.ended(number)

    def _transfer(self, number: int, recipe: Recipe) -> Iterator[Event]:
        """Move bytes; on a CPU with a core held meanwhile, or after a kernel that moves them. Returns when it started."""
        env, kernel, transfer = self.world.env, self.kernel, self.transfer
        arrived = started = env.now
        if recipe.shape is not None:
            self.event = Event(env)
            self.sms.enter(kernel, number, recipe.priority, recipe.shape, recipe.seconds, self.event)
            yield self.event
            started = env.now if recipe.shape.held else kernel.start_s
            if started > arrived:
                self.cause, self.by = SMS, kernel.freed_by
        if recipe.seconds and (recipe.shape is None or recipe.shape.held):
            yield env.timeout(recipe.seconds)
        if not recipe.route.alias:
            self.event = Event(env)
            self.world.links.enter(transfer, number, recipe.priority, recipe.route, recipe.moved_bytes, self.event)
            yield self.event
            if recipe.shape is None and not recipe.seconds:
                started = transfer.start_s
                if started > arrived:
                    self.cause, self.by = LINK, transfer.freed_by
        if recipe.shape is not None and recipe.shape.held:
            self.sms.leave(kernel)
        return started
