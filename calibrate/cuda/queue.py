"""The depth of a stream's queue: how many launches it takes before the host must wait for the GPU."""

from calibrate.cuda.bench import Bench, repeated
from calibrate.cuda.cadence import tiny_kernel
from calibrate.cuda.cold import flusher

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
