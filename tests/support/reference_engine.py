"""A second engine, written from the rules alone: slow, without SimPy, and without anything of `simulator.engine`.

It knows streams, lags, hosts that issue task by task, SMs with waves and priorities, cores, memory bandwidth, and links between two
devices. It knows no caches, collectives, CUDA graphs or fitted multipliers, and no workers that sleep: every task is cold. At every instant
all that ends, arrives or is issued happens first; then SMs and links are given to those that wait; then the next instant follows from the
rates.
"""

from dataclasses import dataclass, field, replace
from math import ceil, inf

from simulator.plan.dependencies import Dependencies
from simulator.plan.plan import Plan
from tests.support.random_runs import random_run

#: Instants nearer to each other than this share of the time are one, and so are wave borders.
_SAME = 1e-10


@dataclass(eq=False)
class _Run:
    """One execution of a task: `done` of `seconds` alone, or of so many bytes. `until_s`: when its overhead or latency is over."""

    number: int
    lane: tuple[str, int]
    task: object
    cost: object
    arrived_s: float = 0.0
    sms: int = 0
    done: float = 0.0
    rate: float = 0.0
    waves: int = 1
    state: str = "waiting"
    until_s: float = inf
    seconds: float = 0.0

    @property
    def order(self):
        return (self.task.priority, self.arrived_s, self.number)


@dataclass
class _Host:
    lane: object
    numbers: list[int]
    free_s: float = 0.0
    outstanding: dict = field(default_factory=dict)
    turned_to: tuple | None = None  # the period and lane of what it issued last
    awaited: int | None = None  # what must end before it issues more


class Reference:
    """One run of `iterations` iterations of a plan, prologue and drain included. `seconds` is how long it takes."""

    def __init__(self, plan: Plan, machine, costs, iterations: int):
        self.plan, self.machine, self.costs = plan, machine, costs
        self.tasks, self.size = plan.tasks, len(plan.tasks)
        periods = iterations + plan.largest_lag
        dependencies = Dependencies(plan)
        self.awaits: dict[int, set[int]] = {}
        self.events: dict[int, int] = {}
        rows = [dependencies.edges(period, iterations) for period in range(periods)]
        waits = [dependencies.waits(period, iterations) for period in range(periods)]
        exists = [n for n in range(periods * self.size) if 0 <= n // self.size - self.tasks[n % self.size].lag < iterations]
        for n in exists:
            period, index = divmod(n, self.size)
            self.awaits[n] = {(period - edge.delta) * self.size + edge.index for edge in rows[period][index]}
            self.events[n] = len(waits[period][index])
        self.recorded = {edge.index for edges in dependencies.waits(dependencies.steady) for edge in edges}
        self.lanes: dict[tuple[str, int], list[int]] = {}
        for n in exists:
            self.lanes.setdefault(self.tasks[n % self.size].lane, []).append(n)
        self.heads = dict.fromkeys(self.lanes, 0)
        self.running: dict[tuple[str, int], _Run] = {}
        self.ended: set[int] = set()
        self.issued: set[int] = set()
        self.arrival_s: dict[int, float] = {}
        self.hosts = [
            _Host(lane, [n for n in exists if self.tasks[n % self.size].device in lane.devices], outstanding={}) for lane in machine.hosts
        ]
        self.free = {device.name: device.sms for device in machine.devices}
        self.queue: dict[str, list[_Run]] = {device.name: [] for device in machine.devices}
        self.just_ended: dict[str, list[tuple[str, int]]] = {}
        self.on_link: list[_Run] = []
        self.now = 0.0
        self.seconds = 0.0
        self._play()

    # What a task is.
    def _device(self, task):
        return self.machine.device(task.device)

    def _launches(self, task, cost):
        if task.body.kind in ("host", "synchronize"):
            return int(task.body.kind == "host")
        return 0 if task.body.kind == "copy" and self._alias(task) else cost.launches

    def _alias(self, task):
        link = self._link(task)
        one = self._device_memory(task.body.source) == self._device_memory(task.body.target)
        return one if link is None else link.alias

    def _device_memory(self, name):
        return self.machine.device(name).memory

    def _play(self):
        left = sum(map(len, self.lanes.values()))
        while left:
            while self._end() or self._issue() or self._begin():
                pass
            self._place()
            self._move()
            if any(run.state == "overhead" and self._is(run.until_s) for run in self.running.values()):
                continue
            self._set_rates()
            left = sum(len(numbers) - self.heads[lane] for lane, numbers in self.lanes.items())
            if left:
                self._advance()
        self.seconds = self.now

    def _advance(self):
        times = [run.until_s for run in self.running.values()]
        for run in self.running.values():
            if run.state == "kernel" and run.rate:
                times.append(self.now + self._to_border(run) / run.rate)
            if run.state == "moving":
                times.append(self.now + (run.seconds - run.done) / run.rate)
        times += [s for s in self.arrival_s.values() if s > self.now]
        times += [host.free_s for host in self.hosts if host.free_s > self.now]
        later = min((s for s in times if s > self.now), default=inf)
        assert later < inf, "the reference is stuck"
        for run in self.running.values():
            if run.state in ("kernel", "moving"):
                run.done += run.rate * (later - self.now)
                if run.seconds - run.done <= _SAME * max(run.seconds, later * run.rate):
                    run.done = run.seconds
        self.now, self.just_ended = later, {}

    def _to_border(self, run):
        """Work until the next wave border."""
        wave = run.seconds / run.waves
        reached = run.done / wave
        return (int(reached + 1e-7) + 1) * wave - run.done

    def _is(self, s):
        return s <= self.now + _SAME * self.now

    # What happens at an instant.
    def _end(self):
        changed = False
        for lane, run in list(self.running.items()):
            if run.state == "overhead" and self._is(run.until_s):
                run.until_s = inf
                changed = True
                if run.task.body.kind == "copy" and not self._alias(run.task):
                    self._to_link(run)
                    continue
                self._finish(lane, run)
            elif run.state in ("kernel", "moving") and run.done >= run.seconds:
                changed = True
                if run.state == "moving":
                    self.on_link.remove(run)
                self._finish(lane, run)
        return changed

    def _finish(self, lane, run):
        if run.sms:
            self.free[run.task.device] += run.sms
            run.sms = 0
            self.just_ended.setdefault(run.task.device, []).append(lane)
        if run in self.queue[run.task.device]:
            self.queue[run.task.device].remove(run)
        del self.running[lane]
        self.heads[lane] += 1
        self.ended.add(run.number)

    def _issue(self):
        changed = False
        for host in self.hosts:
            while host.numbers and self._is(host.free_s) and (host.awaited is None or host.awaited in self.ended):
                number = host.numbers[0]
                task, cost = self.tasks[number % self.size], self.costs[number % self.size]
                launches = self._launches(task, cost)
                stream = host.outstanding.setdefault(task.lane, [])
                while stream and stream[0][0] in self.ended and sum(n for _, n in stream) + launches > host.lane.queue_depth:
                    stream.pop(0)
                if stream and sum(n for _, n in stream) + launches > host.lane.queue_depth:
                    break
                stream.append((number, launches))
                seconds = host.lane.dispatch_s * launches + host.lane.wait_s * self.events[number]
                seconds += host.lane.record_s if number % self.size in self.recorded else 0.0
                switches = int(host.turned_to != (number // self.size, task.lane))
                if launches and task.body.kind == "copy" and {task.body.source, task.body.target} <= set(host.lane.devices):
                    seconds += 2 * (host.lane.record_s + host.lane.wait_s)  # two GPUs' streams wait for each other, before it and after it
                    switches = 2
                seconds += host.lane.switch_s * switches
                host.turned_to = number // self.size, task.lane
                host.numbers.pop(0)
                host.free_s = max(host.free_s, self.now) + seconds
                self.arrival_s[number] = host.free_s
                host.awaited = number if task.body.kind == "synchronize" else None
                changed = True
        return changed

    def _begin(self):
        changed = False
        for lane, numbers in self.lanes.items():
            if lane in self.running or self.heads[lane] == len(numbers):
                continue
            number = numbers[self.heads[lane]]
            task, cost = self.tasks[number % self.size], self.costs[number % self.size]
            if not self.awaits[number] <= self.ended:
                continue
            if self.machine.hosts and not (number in self.arrival_s and self._is(self.arrival_s[number])):
                continue
            self.arrival_s.pop(number, None)
            changed = True
            run = self.running[lane] = _Run(number, lane, task, cost, self.now)
            self._enter(run)
        return changed

    def _enter(self, run):
        task, cost, device = run.task, run.cost, self._device(run.task)
        on_core, hosted = device.kind == "cpu", bool(self.machine.hosts)
        overhead_s = cost.overhead_s + (0.0 if hosted else device.task_overhead_s)
        if task.body.kind == "copy":
            run.seconds = overhead_s
            if on_core:
                run.state, run.waves = "for a core", 1
                self.queue[task.device].append(run)
            else:
                run.state, run.until_s = "overhead", self.now + overhead_s
            return
        seconds = cost.cold_s + overhead_s
        of_host = task.body.kind in ("host", "synchronize")
        if of_host:
            called_s = self.machine.hosts[0].callback_s if hosted and task.body.kind == "host" else 0.0
            seconds = task.body.duration_s + (called_s if hosted else overhead_s)
        if not seconds or (of_host and not on_core):
            run.state, run.until_s = "overhead", self.now + seconds
            return
        run.state, run.seconds = "kernel", seconds
        run.waves = 1 if on_core else max(1, ceil(cost.grid / (cost.blocks_per_sm * device.sms)))
        self.queue[task.device].append(run)

    # SMs.
    def _need(self, run):
        """SMs that the current wave can use, and SMs with which it reaches full speed."""
        device = self._device(run.task)
        if device.kind == "cpu":
            return 1, 1.0
        sms, cost = device.sms, run.cost
        left = max(1, cost.grid - (run.waves - 1) * cost.blocks_per_sm * sms)
        area = min(sms, left) if self._in_last_wave(run) else sms
        saturating = self.machine.memory(device.name).saturation_share * sms
        return area, min(float(area), max(cost.compute_share * area, saturating))

    def _in_last_wave(self, run):
        return run.done * run.waves / run.seconds >= run.waves - 1 - 1e-7

    def _place(self):
        for device, queue in self.queue.items():
            if self.machine.device(device).kind == "cpu":
                self._place_on_cores(device, queue)
            else:
                self._place_kernels(device, queue)

    def _place_kernels(self, device, queue):
        queue.sort(key=lambda run: run.order)
        if not queue:
            return
        runs = [run for run in self.running.values() if run.state == "kernel" and run.task.device == device and run.waves > 1]
        at_border = []
        for run in sorted(runs, key=lambda run: run.order, reverse=True):
            if not run.sms:
                continue
            if self._in_last_wave(run):
                surplus = run.sms - self._need(run)[0]
                if surplus > 0:
                    run.sms -= surplus
                    self.free[device] += surplus
            if run.done and abs(run.done * run.waves / run.seconds - round(run.done * run.waves / run.seconds)) <= 1e-7:
                at_border.append(run)
        while queue:
            first = queue[0]
            want = self._need(first)[0] - first.sms
            if want > 0:
                for run in at_border:
                    if run.task.priority > first.task.priority and want > self.free[device]:
                        given = min(run.sms, want - self.free[device])
                        run.sms -= given
                        self.free[device] += given
                granted = min(want, self.free[device])
                first.sms += granted
                self.free[device] -= granted
                if granted < want:
                    break
            if not self._in_last_wave(first):
                break
            queue.pop(0)
        queue[:] = [run for run in queue if not (self._in_last_wave(run) and run.sms >= self._need(run)[0])]

    def _place_on_cores(self, device, queue):
        workers = self.just_ended.get(device, [])
        queue.sort(key=lambda run: (run.task.priority, run.number))
        while queue and self.free[device]:
            urgent = [run for run in queue if run.task.priority == queue[0].task.priority]
            own = next((run for lane in workers for run in urgent if run.lane == lane), None)
            chosen = own or queue[0]
            queue.remove(chosen)
            self.free[device] -= 1
            chosen.sms = 1
            if workers:
                workers.remove(chosen.lane if own else workers[0])
            if chosen.task.body.kind == "copy":
                chosen.state, chosen.until_s = "overhead", self.now + chosen.seconds

    def _set_rates(self):
        memories = {device.memory for device in self.machine.devices}
        for memory in memories:
            runs = [r for r in self.running.values() if r.sms and self._device_memory(r.task.device) == memory]
            share = {id(r): min(1.0, r.sms / self._need(r)[1]) if r.state == "kernel" else 1.0 for r in runs}
            left, count = 1.0, len(runs)
            drawn = {id(r): min(1.0, r.cost.memory_share) * share[id(r)] for r in runs}
            for run in sorted(runs, key=lambda r: drawn[id(r)]):
                granted = min(drawn[id(run)], left / count)
                left, count = left - granted, count - 1
                if run.state == "kernel":
                    run.rate = share[id(run)] if granted >= drawn[id(run)] - 1e-12 else granted / min(1.0, run.cost.memory_share)
        for run in self.running.values():
            if run.state == "kernel" and not run.sms:
                run.rate = 0.0

    # Links.
    def _to_link(self, run):
        run.state, run.arrived_s = "for a link", self.now
        run.seconds, run.done = float(run.task.body.moved_bytes(run.task)), 0.0
        self.on_link.append(run)

    def _link(self, task):
        ends = {task.body.source, task.body.target}
        return next((link for link in self.machine.links if {link.source, link.target} == ends), None)

    def _move(self):
        """Every direction has one transfer at a time, which waits for the latency first. Both directions of a link may share its rate."""
        while True:
            for run in [r for r in self.on_link if r.state == "latency" and self._is(r.until_s)]:
                run.state, run.until_s = "moving", inf
            busy = {self._direction(r) for r in self.on_link if r.state in ("latency", "moving")}
            waiting = sorted((r for r in self.on_link if r.state == "for a link"), key=lambda run: run.order)
            started = False
            for run in waiting:
                if self._direction(run) not in busy:
                    busy.add(self._direction(run))
                    run.state, run.until_s, started = "latency", self.now + self._link(run.task).latency_s, True
            if not started:
                break
        moving = [r for r in self.on_link if r.state == "moving"]
        for run in moving:
            link = self._link(run.task)
            beside = sum(1 for other in moving if link.duplex is False or self._direction(other) == self._direction(run))
            run.rate = link.bandwidth_bytes_per_s / beside

    def _direction(self, run):
        return run.task.body.source, run.task.body.target


def random_small_run(seed: int, tasks: int = 24):
    """The plan, machine and costs of a random run (`random_runs`) without what the reference does not know; None if it has a collective."""
    run = random_run(seed, tasks)
    if any(task.body.kind == "collective" for task in run.plan.tasks):
        return None
    machine = replace(run.machine, devices=tuple(replace(device, wake_s=0.0) for device in run.machine.devices))
    return run.plan, machine, run.costs


def long_run_step_s(plan: Plan, machine, costs, iterations: int) -> float:
    """Seconds per iteration in the second and third part of a run of three times so many iterations."""
    short, whole = (Reference(plan, machine, costs, n).seconds for n in (iterations, 3 * iterations))
    return (whole - short) / (2 * iterations)
