"""How many launches a stream takes before the host must wait for the GPU."""

from calibrate.cuda.bench import Bench, repeated
from calibrate.cuda.cold import flusher
from calibrate.cuda.tiny import tiny_kernel

#: More launches than this are not tried.
MOST = 4096
#: A launch that takes so many times the usual, and no less than `_BLOCKED_S`, has waited.
_TIMES, _BLOCKED_S = 20, 100e-6
#: Graphs take places in the queue as well, so a few long ones keep the stream busy.
_GRAPHS, _FIRST = 8, 100


def queue_depth(bench: Bench) -> int | None:
    """Launches behind work that keeps the stream busy for longer than issuing `MOST` of them takes; None where none of them waited."""
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
