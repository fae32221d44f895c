"""The time from one tiny kernel to the next: in a graph on one stream and across two, and eagerly with the host far ahead."""

import statistics
from functools import partial

from calibrate.cuda.bench import Bench, repeated
from calibrate.cuda.cadence import cadence_s, cross_cadence_s, tiny_kernel
from calibrate.cuda.cold import flusher
from calibrate.preflight.check import UNCERTAIN, WRONG, Check, CheckContext, Finding

#: Launches per sample, far below the thousand that a queue takes, and graphs of flushes that keep the stream busy meanwhile.
_LAUNCHES, _FLUSHES = 200, 20
#: A tiny kernel that follows another later than this is held up: by a debugger, a profiler, or a host that waits for every launch.
_LONGEST_S = 15e-6


def _run(context: CheckContext) -> Finding:
    bench = Bench(context.driver, effort=context.scale.effort)
    graph_s, cross_s = cadence_s(bench), cross_cadence_s(bench)
    context.figure("graph_s", graph_s)
    context.figure("graph_two_streams_s", cross_s)
    eager_s, issue_s = _eager(bench)
    context.figure("eager_s", eager_s)
    context.figure("issue_s", issue_s)
    faults = []
    if eager_s >= 0.9 * issue_s:
        faults.append((UNCERTAIN, f"the host was not ahead, so the eager gap is unknown: {issue_s * 1e6:.2f} us per launch"))
    for name, seconds in (("in a graph", graph_s), ("across two streams of a graph", cross_s), ("eagerly", eager_s)):
        if seconds > _LONGEST_S:
            faults.append((WRONG, f"find what holds up every kernel: {name}, a tiny one follows another after {seconds * 1e6:.1f} us"))
    shown = ", ".join(
        f"{seconds * 1e6:.2f} us {name}" for name, seconds in (("in a graph", graph_s), ("across streams", cross_s), ("eagerly", eager_s))
    )
    words = f"a tiny kernel follows another after {shown}: the eager gap is a fact of its own if it differs from the graph's"
    return Finding.of(faults, words)


def _eager(bench: Bench) -> tuple[float, float]:
    """Seconds from one eager kernel to the next while the stream is kept busy, and host seconds per launch."""
    issue, flush = tiny_kernel(bench.driver), flusher(bench.driver)
    for warm in (issue, flush):
        bench.run(warm)
    issue_s = statistics.median(bench.host_s(issue, _LAUNCHES))
    flush_s = bench.slope_s(repeated(flush), 4)
    busy = bench.capture(lambda: repeated(flush)(int(3 * _LAUNCHES * issue_s / flush_s) + _FLUSHES))
    bench.run(busy.replay)

    def launches(count: int) -> None:
        busy.replay()
        repeated(issue)(count)

    works = [partial(launches, count) for count in (_LAUNCHES, 2 * _LAUNCHES)]
    few, many = (statistics.median(times) for times in bench.between(works))
    return max(0.0, many - few) / _LAUNCHES, issue_s


CHECK = Check("cadence", "How long is it from one kernel to the next, in a graph and eagerly?", 60.0, _run)
