"""What the host spends on a GPU's tasks, and what a graph's nodes cost."""

import logging
import statistics
from collections.abc import Callable

from calibrate.cuda.bench import Bench, Issue, repeated
from calibrate.cuda.queue import queue_depth
from calibrate.cuda.tiny import cadence_s, cross_cadence_s, tiny_kernel
from traces.errors import StepcastError
from traces.profile import Dispatch, Profile

#: Calls per sample: far below the queue's thousand.
_CALLS = 200
_LAUNCHES = 50
log = logging.getLogger("stepcast")


def measure_host(bench: Bench, profile: Profile, executor_s: Callable[[float, float], float]) -> None:
    """Fill in the profile's dispatch and priority levels.

    `executor_s` gives the executor's own host seconds per task, from those of recording an event and of waiting for one.

    A key's times include the gap between two nodes of one stream, so the node gap is 0; the cadence of tiny kernels is kept in the
    identity's extras.
    """
    driver = bench.driver
    node_s, cross_s = cadence_s(bench), cross_cadence_s(bench)
    tiny = tiny_kernel(driver)  # the graph works on its tensor, and does not keep it
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
    """Seconds that a call of the host holds up its stream, and that issuing it takes the host; None where streams cannot call it.

    The former from graphs, as keys are timed, so that it also includes the gap to the next node.
    """

    def call() -> None:
        bench.driver.call_host(0.0)

    try:
        call_s = _host_s(bench, call, _LAUNCHES)
        return bench.slope_s(repeated(call), _LAUNCHES), call_s
    except (StepcastError, RuntimeError) as error:
        log.warning("calls of the host by streams are not measured: %s", error)
        return None, None


def _host_s(bench: Bench, issue: Issue, calls: int) -> float:
    """Host seconds per call on idle streams: median over rounds."""
    bench.run(issue)
    return statistics.median(bench.host_s(issue, calls))
