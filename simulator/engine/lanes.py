"""Lanes: one SimPy process per stream. Each runs its tasks in issue order, period after period.

The task at the head of a stream starts when its dependencies have ended, its launch has arrived, and it has its resource: SMs, a link, or
only time. A lane whose head must wait for other lanes or for its launch parks, and `World` wakes it.

A lane has its own clock. A task that shares nothing ends at its start plus its seconds, whatever else runs. So the lane announces the end
immediately and continues with the next task: a run of such tasks needs no event. The lane waits for the simulation's clock before it asks
for a resource that other lanes share, and at the start of each period. Without merging (`World.merge`) it waits for the clock at the start
and the end of every task, and nothing is announced before it happens; the arithmetic is the same.
"""

from collections.abc import Generator, Mapping, Sequence
from math import inf

from simpy import Event

from simulator.engine.clock import Signal
from simulator.engine.hosts import EagerHost, GraphHost
from simulator.engine.kernels import Kernel, Shape
from simulator.engine.links import Transfer
from simulator.engine.recipes import Recipe
from simulator.engine.routes import Route
from simulator.engine.sms import Sms
from simulator.engine.world import DEPENDENCY, LANE, LAUNCH, LINK, SMS, START, World


class Lane:
    """One stream of one device."""

    __slots__ = (
        "_alone", "_cause", "_contended", "_graphs", "_host", "_kernel", "_last", "_name", "_now_s", "_signal", "_sms", "_spread",
        "_tasks", "_transfer", "_waited_for", "_world",
    )  # fmt: skip

    def __init__(
        self, world: World, name: tuple[str, int], tasks: list[int], contended: Mapping[str, Sms], host: EagerHost | GraphHost | None
    ):
        """`tasks`: their indices in issue order. `contended`: SMs that lanes share, by device. `host`: what issues the tasks, if any."""
        self._world, self._name, self._tasks, self._contended = world, name, tasks, contended
        self._sms = sms = contended.get(name[0])
        self._signal = Signal(world.env)
        self._kernel = Kernel(sms.pools[name[0]], self._signal) if sms else None
        #: The kernels of a collective, by device.
        self._spread: dict[str, Kernel] = {}
        self._transfer = Transfer(self._signal)
        self._host = host if isinstance(host, EagerHost) else None
        self._graphs = host if isinstance(host, GraphHost) else None
        self._alone = {index: world.recipes[index].alone for index in tasks}
        #: The lane's clock (s), at or ahead of the simulation's, and its last execution.
        self._now_s, self._last = 0.0, -1
        #: Why the current task did not start earlier, and the execution that it waited for last.
        self._cause, self._waited_for = START, -1

    def process(self) -> Generator[Event, None, None]:
        """Run every task of the lane until the simulation stops."""
        world, graphs = self._world, self._graphs
        for period in range(world.horizon):
            graph_started = None
            if graphs is not None and period >= graphs.open_until:
                yield graphs.gate()
                graph_started = (LAUNCH, graphs.opened_by)
                self._now_s = world.env.now
            elif self._now_s > world.env.now:
                yield self._signal.until(self._now_s)
            if self._now_s >= world.stop_s:
                return
            first = world.enter(period)
            indices = world.program.existing(period, self._tasks)
            if not indices:
                continue
            if not (yield from self._period(period, first, indices, graph_started)):
                return
            world.lane_ended(period, self._now_s)
            if graphs is not None:
                graphs.ended(len(indices), self._last, self._now_s)

    def _period(
        self, period: int, first: int, indices: Sequence[int], graph_started: tuple[int, int] | None
    ) -> Generator[Event, None, bool]:
        """Run the tasks `indices` of a period. Returns whether the simulation goes on."""
        world, host, graphs, signal, alone = self._world, self._host, self._graphs, self._signal, self._alone
        env, recipes, merge, park, announce = world.env, world.recipes, world.merge, world.park, world.announce
        waiting, earliest_s, awaited_s, waited_for = world.waiting, world.earliest_s, world.awaited_s, world.waited_for
        start_s, end_s, cause_of = world.start_s, world.end_s, world.cause
        successors = world.program.successors(period)
        # Least time between two tasks of the lane, and between a task and one that it unblocks on another lane (nodes of a CUDA graph). A
        # later graph waits for this one, not for its nodes.
        gap_s, cross_gap_s, gap_until = (
            (graphs.gap_s, graphs.cross_gap_s, graphs.open_until * world.program.size) if graphs is not None else (0.0, 0.0, inf)
        )
        launched = host is not None or graphs is not None
        now, last, news = self._now_s, self._last, -1  # `news`: the last execution that the host has not heard of
        for index in indices:
            number = first + index
            if waiting[number]:
                if host is not None:
                    if news >= 0:
                        host.ended(self._name, news)
                        news = -1
                    if waiting[number]:
                        host.expect(number)
                if waiting[number]:
                    yield park(number, signal)
            start = now
            if graph_started is not None:
                cause, awaited = graph_started
                graph_started = None
            else:
                cause, awaited = (LANE, last) if last >= 0 else (START, -1)
            if awaited_s[number] > start:
                start, cause, awaited = awaited_s[number], DEPENDENCY, world.awaited[number]
            if launched:
                ready = earliest_s[number]
                if gap_s and last >= 0 and end_s[last] + gap_s > ready:
                    ready = end_s[last] + gap_s
                if ready > start:
                    start = ready
                    if host is not None:
                        cause, awaited = LAUNCH, waited_for[number]
            if start >= world.stop_s:
                return False

            recipe = recipes[index]
            if merge and alone[index]:
                started, now = start, start + recipe.seconds
            else:
                if host is not None and news >= 0:
                    host.ended(self._name, news)
                    news = -1
                if start > env._now:
                    yield signal.until(start)
                    if start >= world.stop_s:
                        return False
                if alone[index]:
                    started, now = start, start + recipe.seconds
                    yield signal.until(now)
                else:
                    earliest_s[number] = start
                    if recipe.route is not None:
                        self._cause, self._waited_for = cause, awaited
                        started = yield from self._move(number, recipe, recipe.route)
                        cause, awaited = self._cause, self._waited_for
                    else:
                        _, kernel = self._queue(number, recipe)
                        yield signal
                        started = kernel.start_s
                        if kernel.granted_s > start:
                            cause, awaited = SMS, kernel.freed_by
                    now = env._now

            start_s[number], end_s[number], cause_of[number], waited_for[number] = started, now, cause, awaited
            last = number
            if successors[index]:
                announce(number, now, successors[index], 0.0 if recipe.crossed else cross_gap_s, gap_until)
            if host is not None:
                news = number
        if host is not None and news >= 0:
            host.ended(self._name, news)
        self._last, self._now_s = last, now
        return True

    def _queue(self, number: int, recipe: Recipe) -> tuple[Sms, Kernel]:
        """Queue the lane's kernel for the SMs of its device. It holds them, or waits for them, when `self._signal` fires."""
        sms, kernel, shape = self._sms, self._kernel, recipe.shape
        if sms is None or kernel is None or shape is None:
            raise ValueError(f"task {number} of {self._name} enters SMs that no lanes share")
        self._signal.awaited()
        sms.enter(kernel, number, recipe.priority, shape, recipe.seconds)
        return sms, kernel

    def _move(self, number: int, recipe: Recipe, route: Route) -> Generator[Event, None, float]:
        """Run a transfer: while occupying a core (CPU), or after a kernel that copies. Returns when it started."""
        env, transfer, signal, shape = self._world.env, self._transfer, self._signal, recipe.shape
        arrived = started = env.now
        held: list[tuple[Sms, Kernel]] = []
        if recipe.devices and shape is not None:
            held = self._enter(number, recipe, shape)
            for _, own in held:
                yield own.signal
            started = env.now
            if started > arrived:
                self._cause, self._waited_for = SMS, max(held, key=lambda each: each[1].granted_s)[1].freed_by
        elif shape is not None:
            sms, kernel = self._queue(number, recipe)
            yield signal
            started = env.now if shape.held else kernel.start_s
            if shape.held:
                held = [(sms, kernel)]
            if started > arrived:
                self._cause, self._waited_for = SMS, kernel.freed_by
        if recipe.seconds and (shape is None or shape.held):
            yield signal.until(env.now + recipe.seconds)
        if not route.alias:
            signal.awaited()
            queued = env.now
            self._world.links.enter(transfer, number, recipe.priority, route, recipe.moved_bytes)
            yield signal
            if (shape is None or recipe.devices) and not recipe.seconds:
                started = transfer.start_s
                if started > queued:
                    self._cause, self._waited_for = LINK, transfer.freed_by
        for sms, own in held:
            sms.leave(own)
        return started

    def _enter(self, number: int, recipe: Recipe, shape: Shape) -> list[tuple[Sms, Kernel]]:
        """Queue the kernels of a collective for the SMs of its devices."""
        spread = []
        for device in recipe.devices:
            sms = self._contended.get(device)
            if sms is not None:
                if device not in self._spread:
                    self._spread[device] = Kernel(sms.pools[device], Signal(self._world.env))
                kernel = self._spread[device]
                kernel.signal.awaited()
                sms.enter(kernel, number, recipe.priority, shape, recipe.seconds)
                spread.append((sms, kernel))
        return spread
