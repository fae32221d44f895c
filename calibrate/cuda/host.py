"""Host costs of a GPU's tasks: launches, events, graphs, the stream's queue, the executor's own loop, and what the profiler adds.

A tiny op that follows another of its kind finds its code in the core's caches; in a step it does not. This costs the same for every op, so
it is measured on a model of many different tiny ops: the time of a period less the time of its ops alone. CUPTI, which the profiler uses,
slows every launch down as long as it is attached to the process.
"""

import logging
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import cast
from weakref import WeakKeyDictionary

import torch

from calibrate.cuda.bench import Bench, Effort, Issue, flusher, per_copy, repeated, wait
from calibrate.cuda.sampler import CudaSampler
from calibrate.tiny_model import loop_plan, tiny_job, tiny_plan
from executors.cuda.backend import CudaBackend
from executors.cuda.driver import Driver, Graph, Stream
from executors.cuda.issue import fork, join
from executors.cuda.program import EagerProgram
from executors.tensors import job_tensors
from simulator.engine.hosts import IssueTimes
from simulator.machine.machine import HOST, Device, HostLane, Link, Machine, Memory
from simulator.model.job import Job
from simulator.plan.dependencies import Dependencies
from simulator.plan.keys import cost_key
from simulator.plan.plan import Plan
from traces.documents.profile import Dispatch, Profile
from traces.errors import SchedcastError

#: On a shared host, Python may run at half its speed for a tenth of a second: the median of many short chunks skips that.
_WARM_UP, _PERIODS, _CHUNKS = 10, 4, 25


@dataclass(frozen=True)
class TinyOps:
    """A machine with the GPU, the plan of many tiny ops that the executor runs, and the host seconds to issue each op alone, by cost key.

    `loop_job` and `loop` are a job of such ops, and its plan as PyTorch's own loop.
    """

    machine: Machine
    job: Job
    plan: Plan
    loop_job: Job
    loop: Plan
    issue_s: Mapping[str, float]

    @staticmethod
    def measure(driver: Driver, effort: Effort | None = None) -> "TinyOps":
        """Time the issue of every op."""
        machine = plain_machine(driver)
        loop_job, loop = loop_plan(machine)
        job = tiny_job()
        plan = tiny_plan(job, machine)
        return TinyOps(machine, job, plan, loop_job, loop, CudaSampler(driver, effort=effort).issue_s([plan, loop], machine))


def dispatch_s(driver: Driver, tiny: TinyOps, host: HostLane) -> float:
    """Host seconds per task in addition to its op and `host`'s times for events and changes of the lane; at least 0."""
    plan, job = tiny.plan, tiny.job
    issue_s = {index: tiny.issue_s.get(cost_key(task, tiny.machine), 0.0) for index, task in enumerate(plan.tasks)}
    launches, dependencies = [task.body.launches for task in plan.tasks], Dependencies(plan)
    known = IssueTimes(host, dependencies, launches, issue_s, None)
    program = cast(EagerProgram, CudaBackend(tiny.machine, driver).load(plan, job_tensors(job, job.build(), job.graph())))
    program.run(_WARM_UP)
    periods = [program.issue_s(_PERIODS) for _ in range(_CHUNKS)]
    return max(0.0, statistics.median(periods) - known.steady_s) / len(plan.tasks)


def plain_machine(driver: Driver, partitions: int = 1) -> Machine:
    """The GPU or its partitions, with only the properties that an executor needs. Raises SchedcastError if the GPU cannot be split."""
    facts = driver.facts
    names, sms = ["cuda:0"], facts.sms
    if partitions > 1:
        names, sms = [f"cuda:0/{index}" for index in range(partitions)], driver.partitions(partitions)[0].sms
    devices = tuple(Device(name, "gpu", sms, {"fp32": 1.0}, "memory", priority_levels=facts.priority_levels) for name in names)
    memory = Memory("memory", facts.memory_bytes, 1.0, facts.cache_bytes)
    links = tuple(Link(*ends, 0.0, 1.0) for name in names for ends in ((HOST, name), (name, HOST)))
    whole = plain_machine(driver) if partitions > 1 else None
    return Machine(facts.name, devices, (memory,), (HostLane("host", tuple(names), 0.0),), links, whole=whole)


_NODES = 100
#: Launches whose cadence is measured. The stream is busy meanwhile, for `_TIMES_AHEAD` times as long as the host needs to issue them.
_IN_A_ROW, _TIMES_AHEAD = 20, 2


def tiny_kernel(driver: Driver) -> Issue:
    """A function that launches a kernel of one block. Its numbers stay normal however often it runs."""
    tensor = torch.ones(32, device=driver.device)

    def issue() -> None:
        tensor.neg_()

    return issue


def cadence_s(bench: Bench) -> float:
    """Median seconds from one tiny kernel to the next, on one stream of a graph."""
    return bench.slope_s(repeated(tiny_kernel(bench.driver)), _NODES)


def cross_cadence_s(bench: Bench) -> float:
    """Median seconds from one tiny kernel to the next, if they alternate between two streams and each waits for the previous one."""
    return bench.slope_s(_ping_pong(bench), _NODES // 2) / 2


def launch_cadence_s(bench: Bench, issue: Issue) -> float:
    """Median seconds from one launch of `issue` to the next, on one stream. The host has issued them before the first begins."""
    driver, flush = bench.driver, flusher(bench.driver)
    bench.run(issue)
    host_s = statistics.median(bench.host_s(issue, _IN_A_ROW))
    flush_s = bench.slope_s(repeated(flush), bench.effort.fewest_copies)
    busy = bench.capture(lambda: repeated(flush)(int(2 * _IN_A_ROW * _TIMES_AHEAD * host_s / max(flush_s, 1e-9)) + 1))
    driver.use(bench.stream)
    counts = _IN_A_ROW, 2 * _IN_A_ROW
    times: dict[int, list[float]] = {count: [] for count in counts}
    for _ in range(bench.effort.rounds):
        for count in counts:
            first, last = driver.event(timing=True), driver.event(timing=True)
            busy.replay()
            first.record(bench.stream)
            repeated(issue)(count)
            last.record(bench.stream)
            wait(driver)
            times[count].append(first.elapsed_time(last) * 1e-3)
    return statistics.median(per_copy(times[_IN_A_ROW], times[2 * _IN_A_ROW], _IN_A_ROW))


def _ping_pong(bench: Bench) -> Callable[[int], None]:
    driver, first, second = bench.driver, bench.stream, bench.driver.stream()
    issue = tiny_kernel(driver)

    def hop(source, target) -> None:
        driver.use(source)
        issue()
        event = driver.event()
        event.record(source)
        target.wait_event(event)

    def round_trips(count: int) -> None:
        for _ in range(count):
            hop(first, second)
            hop(second, first)
        driver.use(first)

    return round_trips


#: The most launches that are tried.
MOST = 4096
#: A launch has waited if it takes `_TIMES` times the usual time, and at least `_BLOCKED_S`.
_TIMES, _BLOCKED_S = 20, 100e-6
#: The stream is kept busy by `_GRAPHS` long graphs, few because each takes a place in the queue. The usual time is the mean of `_FIRST`.
_GRAPHS, _FIRST = 8, 100
#: How often the queue is filled.
_FILLS = 3


def queue_depth(bench: Bench) -> int | None:
    """The number of launches that a busy stream takes before one waits; None if none of `MOST` waited.

    The stream is kept busy for longer than it takes to issue `MOST` launches. One launch that is delayed for another reason looks like a
    full queue, and a host that falls behind never fills one: the median of several fills is robust against both.
    """
    driver, issue, flush = bench.driver, tiny_kernel(bench.driver), flusher(bench.driver)
    for warm in (issue, flush):
        bench.run(warm)
    flush_s = bench.slope_s(repeated(flush), _GRAPHS)
    driver.use(bench.stream)
    begin = driver.now_s()
    repeated(issue)(_FIRST)
    usual_s = (driver.now_s() - begin) / _FIRST
    busy = bench.capture(lambda: repeated(flush)(int(1.5 * MOST * usual_s / (_GRAPHS * flush_s)) + 1))
    bench.run(busy.replay)
    fills = sorted(_launches_taken(bench, busy, issue, max(_BLOCKED_S, _TIMES * usual_s)) for _ in range(_FILLS))
    depth = fills[_FILLS // 2]
    return depth if depth < MOST else None


def _launches_taken(bench: Bench, busy: Graph, issue: Issue, blocked_s: float) -> int:
    """How many launches a stream that `busy` occupies takes before one takes longer than `blocked_s`; `MOST` if none does."""
    driver = bench.driver
    driver.use(bench.stream)
    repeated(busy.replay)(_GRAPHS)
    taken = MOST
    for number in range(MOST):
        begin = driver.now_s()
        issue()
        if driver.now_s() - begin > blocked_s:
            taken = number
            break
    wait(driver)
    return taken


#: A large graph has about `_MANY` times as many nodes as the effort's most copies. A graph has one branch or `_BRANCHES`.
_MANY, _BRANCHES = 10, 4
#: Launches of a graph per sample: few, because a host that is far ahead of a large graph may have to wait for it.
_GRAPHS_AHEAD = 2
#: By (nodes, branches) of a graph, the host seconds to launch it.
Launches = dict[tuple[int, int], float]


def graph_launches(bench: Bench) -> Launches:
    """Median host seconds to launch graphs of tiny kernels: few and many, on one branch and on several."""
    streams = [bench.stream, *(bench.driver.stream() for _ in range(_BRANCHES - 1))]
    many = _BRANCHES * max(2, _MANY * bench.effort.most_copies // _BRANCHES)
    seconds = {}
    for nodes, branches in ((1, 1), (_BRANCHES, _BRANCHES), (many, 1), (many, _BRANCHES)):
        issue = _on_branches(bench, streams[:branches], nodes // branches)  # retained here, since the graph does not keep its tensors alive
        bench.run(issue)
        seconds[nodes, branches] = _host_s(bench, bench.capture(issue).replay, _GRAPHS_AHEAD)
    return seconds


def _on_branches(bench: Bench, branches: Sequence[Stream], each: int) -> Issue:
    """A function that issues `each` tiny kernels to each of the branches, which leave the bench's stream and return to it."""
    driver, kernels = bench.driver, [repeated(tiny_kernel(bench.driver)) for _ in branches]

    def issue() -> None:
        fork(driver, bench.stream, branches)
        for branch, kernel in zip(branches, kernels, strict=True):
            driver.use(branch)
            kernel(each)
        join(driver, branches, bench.stream)
        driver.use(bench.stream)

    return issue


def launch_law(launches: Launches) -> dict[str, float]:
    """The figures of `Dispatch` that say how long a launch takes, at least 0 each: from one node, and many on one branch and on all."""
    nodes, branches = max(launches)
    node_s = max(0.0, (launches[nodes, 1] - launches[1, 1]) / (nodes - 1))
    branch_s = max(0.0, (launches[nodes, branches] - launches[nodes, 1]) / (branches - 1))
    return {"graph_launch_s": max(0.0, launches[1, 1] - node_s), "graph_node_s": node_s, "graph_branch_s": branch_s}


def measure_launches(bench: Bench, profile: Profile) -> None:
    """Measure the host time to launch a graph, as it grows with nodes and branches."""
    profile.dispatch = profile.dispatch.model_copy(update=launch_law(graph_launches(bench)))


#: Calls per sample: far below the queue's depth of about a thousand.
_CALLS = 200
_LAUNCHES = 50
log = logging.getLogger("schedcast")


def measure_host(bench: Bench, profile: Profile, executor_s: Callable[[HostLane], float]) -> None:
    """Measure the profile's dispatch costs, but for launches of graphs, and priority levels.

    `executor_s` takes a host lane with the times of events and changes of the lane, and returns the executor's own host seconds per task.

    The node gap is 0, since a key's times include the gap between two nodes of a stream. The cadence of tiny kernels is stored in the
    identity's extras.
    """
    driver = bench.driver
    node_s, cross_s = cadence_s(bench), cross_cadence_s(bench)
    event = driver.event()
    record_s = _host_s(bench, lambda: event.record(bench.stream), _CALLS)
    host = HostLane("host", (), 0.0, record_s=record_s, wait_s=_wait_s(bench), switch_s=switch_s(bench))
    callback_s, call_s = _calls_s(bench)
    profile.dispatch = Dispatch(
        dispatch_s=executor_s(host),
        record_s=host.record_s,
        wait_s=host.wait_s,
        switch_s=host.switch_s,
        queue_depth=queue_depth(bench),
        node_gap_s=0.0,
        cross_gap_s=max(0.0, cross_s - node_s),
        launch_gap_s=launch_cadence_s(bench, tiny_kernel(driver)) - node_s,
        callback_s=callback_s,
        call_s=call_s,
    )
    profile.identity.extras["node_cadence_s"] = node_s
    profile.priority_levels = driver.facts.priority_levels


def _wait_s(bench: Bench) -> float:
    event, other = bench.driver.event(), bench.driver.stream()
    event.record(other)
    return _host_s(bench, lambda: bench.stream.wait_event(event), _CALLS)


def switch_s(bench: Bench) -> float:
    """Host seconds by which tiny kernels on two streams in turn take longer than on one, per change of the stream; at least 0."""
    driver, lanes = bench.driver, (bench.stream, bench.driver.stream())
    kernels = [tiny_kernel(driver) for _ in lanes]

    def in_turn() -> None:
        for lane, kernel in zip(lanes, kernels, strict=True):
            driver.use(lane)
            kernel()

    def on_one() -> None:
        for _, kernel in zip(lanes, kernels, strict=True):
            kernel()

    in_turn_s, on_one_s = (_host_s(bench, work, _CALLS // len(lanes)) for work in (in_turn, on_one))
    driver.use(bench.stream)
    return max(0.0, in_turn_s - on_one_s) / len(lanes)


def _calls_s(bench: Bench) -> tuple[float | None, float | None]:
    """Seconds for which a host call blocks its stream, and seconds that the host takes to issue it; None if streams cannot call the host.

    The first is measured in graphs, as keys are, so it includes the gap to the next node.
    """

    def call() -> None:
        bench.driver.call_host(0.0)

    try:
        call_s = _host_s(bench, call, _LAUNCHES)
        return bench.slope_s(repeated(call), _LAUNCHES), call_s
    except (SchedcastError, RuntimeError) as error:
        log.warning("host calls on streams are not measured: %s", error)
        return None, None


class HostYardstick:
    """How fast the host launches kernels, against the fastest launches that this yardstick has seen.

    On a shared host Python runs at half its speed at times, which lengthens every step that waits for the host.
    """

    def __init__(self, driver: Driver, effort: Effort | None = None):
        self._bench, self._kernel, self._least_s = Bench(driver, effort=effort), tiny_kernel(driver), inf

    def slowdown(self) -> float:
        """How many times as long as the fastest launches of all calls so far those of this call take, 1 or more."""
        launch_s = _host_s(self._bench, self._kernel, _CALLS)
        self._least_s = min(self._least_s, launch_s)
        return launch_s / self._least_s


def _host_s(bench: Bench, issue: Issue, calls: int) -> float:
    """Median host seconds per call, on idle streams."""
    bench.run(issue)
    return statistics.median(bench.host_s(issue, calls))


#: Names of the two times among the extras of a profile's identity.
BEFORE, AFTER = "launch_before_profiler_s", "launch_after_profiler_s"
#: The largest relative difference that is not reported.
LARGEST = 0.10
#: By GPU, seconds of a launch before this process's first profiler session.
_before: WeakKeyDictionary[Driver, float] = WeakKeyDictionary()


def before_profiler(bench: Bench) -> float:
    """Host seconds of a launch before the first profiler session. Measured at the first call, which must come before that session."""
    if bench.driver not in _before:
        _before[bench.driver] = _host_s(bench, tiny_kernel(bench.driver), _CALLS)
    return _before[bench.driver]


def after_profiler(bench: Bench, profile: Profile) -> None:
    """Measure a launch again, and store both times in the profile. If they differ, a note and a warning say so."""
    before_s, after_s = before_profiler(bench), _host_s(bench, tiny_kernel(bench.driver), _CALLS)
    profile.identity.extras |= {BEFORE: before_s, AFTER: after_s}
    if abs(after_s - before_s) > LARGEST * before_s:
        note = (
            f"a launch takes the host {after_s * 1e6:.3g} us after a profiler session and {before_s * 1e6:.3g} us before: "
            "eager step times of this process are not those of a process without a profiler; what was measured is kept, so run it again"
        )
        profile.notes = list(dict.fromkeys([*profile.notes, note]))
        log.warning("%s", note)
