"""Host costs of a GPU's tasks, and costs of a graph's nodes.

The depth of a stream's queue: how many launches it takes before the host must wait for the GPU.
"""

import logging
import statistics
from collections.abc import Callable

from calibrate.cuda.bench import Bench, Issue, repeated
from calibrate.cuda.cadence import cadence_s, cross_cadence_s, launch_cadence_s, tiny_kernel
from calibrate.cuda.cold import flusher
from traces.documents.profile import Dispatch, Profile
from traces.errors import SchedcastError

#: The most launches that are tried.
MOST = 4096
#: A launch has waited if it takes `_TIMES` times the usual time, and at least `_BLOCKED_S`.
_TIMES, _BLOCKED_S = 20, 100e-6
#: The stream is kept busy by `_GRAPHS` long graphs, few because each takes a place in the queue. The usual time is the mean of `_FIRST`.
_GRAPHS, _FIRST = 8, 100


def queue_depth(bench: Bench) -> int | None:
    """The number of launches that a busy stream takes before one waits; None if none of `MOST` waited.

    The stream is kept busy for longer than it takes to issue `MOST` launches.
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
    driver.use(bench.stream)
    repeated(busy.replay)(_GRAPHS)
    for number in range(MOST):
        begin = driver.now_s()
        issue()
        if driver.now_s() - begin > max(_BLOCKED_S, _TIMES * usual_s):
            driver.synchronize()
            return number
    driver.synchronize()
    return None


#: Calls per sample: far below the queue's depth of about a thousand.
_CALLS = 200
_LAUNCHES = 50
log = logging.getLogger("schedcast")


def measure_host(bench: Bench, profile: Profile, executor_s: Callable[[float, float], float]) -> None:
    """Measure the profile's dispatch costs and priority levels.

    `executor_s` takes the host seconds of recording an event and of waiting for one, and returns the executor's own host seconds per task.

    The node gap is 0, since a key's times include the gap between two nodes of a stream. The cadence of tiny kernels is kept in the
    identity's extras.
    """
    driver = bench.driver
    node_s, cross_s = cadence_s(bench), cross_cadence_s(bench)
    tiny = tiny_kernel(driver)  # kept here, since the graph does not keep its tensor alive
    graph = bench.capture(tiny)
    record_s, wait_s = _record_s(bench), _wait_s(bench)
    callback_s, call_s = _calls_s(bench)
    profile.dispatch = Dispatch(
        dispatch_s=executor_s(record_s, wait_s),
        record_s=record_s,
        wait_s=wait_s,
        queue_depth=queue_depth(bench),
        graph_launch_s=_host_s(bench, graph.replay, _LAUNCHES),
        node_gap_s=0.0,
        cross_gap_s=max(0.0, cross_s - node_s),
        launch_gap_s=launch_cadence_s(bench) - node_s,
        callback_s=callback_s,
        call_s=call_s,
    )
    profile.identity.extras["node_cadence_s"] = node_s
    profile.priority_levels = driver.facts.priority_levels


def _record_s(bench: Bench) -> float:
    event = bench.driver.event()
    return _host_s(bench, lambda: event.record(bench.stream), _CALLS)


def _wait_s(bench: Bench) -> float:
    event, other = bench.driver.event(), bench.driver.stream()
    event.record(other)
    return _host_s(bench, lambda: bench.stream.wait_event(event), _CALLS)


def _calls_s(bench: Bench) -> tuple[float | None, float | None]:
    """Seconds for which a host call holds up its stream, and seconds that the host takes to issue it; None if streams cannot call the host.

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


def _host_s(bench: Bench, issue: Issue, calls: int) -> float:
    """Median host seconds per call, on idle streams."""
    bench.run(issue)
    return statistics.median(bench.host_s(issue, calls))
