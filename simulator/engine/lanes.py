"""Lanes: one SimPy process per stream. Each runs its tasks in issue order, period after period.

The task at the head of a stream starts when its dependencies have ended, its launch has arrived, and it has its resource: SMs, a link, or
nothing but time. A lane whose head must wait for other lanes or for its launch parks, and `World` wakes it.
"""

from collections.abc import Iterator
from math import inf

from simpy import Event

from simulator.engine.clock import delay_until
from simulator.engine.hosts import EagerHost, GraphHost
from simulator.engine.links import Transfer
from simulator.engine.recipes import Recipe
from simulator.engine.sms import Kernel, Sms
from simulator.engine.world import LANE, LAUNCH, LINK, SMS, START, World


class Lane:
    """One stream of one device."""

    __slots__ = (
        "_cause", "_cross_gap_s", "_gap_s", "_graphs", "_host", "_kernel", "_last", "_name", "_sms", "_tasks", "_transfer", "_waited_for",
        "_world",
    )  # fmt: skip

    def __init__(self, world: World, name: tuple[str, int], tasks: list[int], sms: Sms | None, host: EagerHost | GraphHost | None):
        """`tasks`: their indices in issue order. `sms`: None if no other lane shares them. `host`: what issues the tasks, if any."""
        self._world, self._name, self._tasks, self._sms = world, name, tasks, sms
        self._kernel = Kernel(sms.pools[name[0]]) if sms else None
        self._transfer = Transfer()
        self._host = host if isinstance(host, EagerHost) else None
        self._graphs = host if isinstance(host, GraphHost) else None
        #: Least time between two of its tasks, and between a task and one that it unblocks on another lane (nodes of a CUDA graph).
        self._gap_s = self._graphs.gap_s if self._graphs else 0.0
        self._cross_gap_s = self._graphs.cross_gap_s if self._graphs else 0.0
        #: Why the current task did not start earlier, and the execution that it waited for last.
        self._cause, self._waited_for = START, -1
        self._last = -1

    def process(self) -> Iterator[Event]:
        """Run every task of the lane until the simulation stops."""
        world, graphs = self._world, self._graphs
        for period in range(world.horizon):
            graph_started = None
            if graphs is not None and period >= graphs.open_until:
                yield graphs.gate()
                graph_started = (LAUNCH, graphs.opened_by)
            if world.stopping:
                return
            first = world.enter(period)
            yield from self._period(period, first, world.program.existing(period, self._tasks), graph_started)

    def _period(self, period: int, first: int, indices: list[int], graph_started: tuple[int, int] | None) -> Iterator[Event]:
        world, host, graphs, kernel = self._world, self._host, self._graphs, self._kernel
        env, recipes = world.env, world.recipes
        waiting, earliest_s, end_s, waited_for = world.waiting, world.earliest_s, world.end_s, world.waited_for
        successors, timeout, cross_gap_s = world.program.successors(period), env.timeout, self._cross_gap_s
        # A later graph waits for this one, not for its nodes.
        gap_until = graphs.open_until * world.program.size if graphs is not None else inf
        launched = host is not None or graphs is not None
        now = env.now
        for index in indices:
            number = first + index
            self._cause, self._waited_for = graph_started or (LANE if self._last >= 0 else START, self._last)
            graph_started = None
            if waiting[number]:
                if host is not None:
                    host.expect(number)
                self._cause, self._waited_for = yield world.park(number)
                now = env.now
            if launched:
                ready = earliest_s[number]
                if self._gap_s and self._last >= 0:
                    ready = max(ready, end_s[self._last] + self._gap_s)
                if ready > now:
                    if host is not None:
                        self._cause, self._waited_for = LAUNCH, waited_for[number]
                    yield timeout(delay_until(now, ready))
                    now = env.now
            if world.stopping:
                return

            started = now
            recipe = recipes[index]
            if recipe.route is not None:
                started = yield from self._move(number, recipe)
            elif recipe.shape is None:
                yield timeout(recipe.seconds)
            else:
                event = Event(env)
                self._sms.enter(kernel, number, recipe.priority, recipe.shape, recipe.seconds, event)
                yield event
                started = kernel.start_s
                if kernel.granted_s > now:
                    self._cause, self._waited_for = SMS, kernel.freed_by

            now = env.now
            self._last = number
            gap_s = 0.0 if recipe.crossed else cross_gap_s
            world.end(number, started, now, self._cause, self._waited_for, successors[index], gap_s, gap_until)
            if host is not None:
                host.ended(self._name, number)
            elif graphs is not None:
                graphs.ended(number)

    def _move(self, number: int, recipe: Recipe) -> Iterator[Event]:
        """Run a transfer: with a core held meanwhile (CPU), or after a kernel that copies. Returns when it started."""
        env, kernel, transfer = self._world.env, self._kernel, self._transfer
        arrived = started = env.now
        if recipe.shape is not None:
            event = Event(env)
            self._sms.enter(kernel, number, recipe.priority, recipe.shape, recipe.seconds, event)
            yield event
            started = env.now if recipe.shape.held else kernel.start_s
            if started > arrived:
                self._cause, self._waited_for = SMS, kernel.freed_by
        if recipe.seconds and (recipe.shape is None or recipe.shape.held):
            yield env.timeout(recipe.seconds)
        if not recipe.route.alias:
            event = Event(env)
            self._world.links.enter(transfer, number, recipe.priority, recipe.route, recipe.moved_bytes, event)
            yield event
            if recipe.shape is None and not recipe.seconds:
                started = transfer.start_s
                if started > arrived:
                    self._cause, self._waited_for = LINK, transfer.freed_by
        if recipe.shape is not None and recipe.shape.held:
            self._sms.leave(kernel)
        return started
