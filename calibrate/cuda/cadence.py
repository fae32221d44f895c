"""The cadence of tiny kernels: of a graph's nodes on one stream, of dependencies between two streams, and of launched kernels."""

import statistics
from collections.abc import Callable

import torch

from calibrate.cuda.bench import Bench, Issue, per_copy, repeated
from calibrate.cuda.cold import flusher
from calibrate.cuda.stall import wait
from executors.cuda.driver import Driver

_NODES = 100
#: Launches whose cadence is measured. The stream is busy meanwhile, for `_TIMES_AHEAD` times as long as the host needs to issue them.
_LAUNCHES, _TIMES_AHEAD = 20, 2


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
    """Median seconds from one tiny kernel to the next, if they alternate between two streams and each waits for the one before."""
    return bench.slope_s(_ping_pong(bench), _NODES // 2) / 2


def launch_cadence_s(bench: Bench) -> float:
    """Median seconds from one tiny kernel to the next, on one stream without a graph. The host has issued them before the first begins."""
    driver, issue, flush = bench.driver, tiny_kernel(bench.driver), flusher(bench.driver)
    bench.run(issue)
    host_s = statistics.median(bench.host_s(issue, _LAUNCHES))
    flush_s = bench.slope_s(repeated(flush), bench.effort.fewest_copies)
    busy = bench.capture(lambda: repeated(flush)(int(2 * _LAUNCHES * _TIMES_AHEAD * host_s / max(flush_s, 1e-9)) + 1))
    driver.use(bench.stream)
    counts = _LAUNCHES, 2 * _LAUNCHES
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
    return statistics.median(per_copy(times[_LAUNCHES], times[2 * _LAUNCHES], _LAUNCHES))


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
