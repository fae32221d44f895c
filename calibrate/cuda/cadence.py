"""The cadence of tiny kernels in a graph: the cost of a node on one stream, and of a dependency between two streams."""

from collections.abc import Callable

import torch

from calibrate.cuda.bench import Bench, Issue, repeated
from executors.cuda.driver import Driver

_NODES = 100


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
