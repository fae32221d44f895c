"""Graphs of tiny kernels on one stream and across two: what a node and a crossing between streams cost."""

from collections.abc import Callable

import torch

from calibrate.cuda.bench import Bench, Issue, repeated
from executors.cuda.driver import Driver

_NODES = 100


def tiny_kernel(driver: Driver) -> Issue:
    """A function that launches a kernel of one block, whose numbers stay normal however often it runs."""
    tensor = torch.ones(32, device=driver.device)

    def issue() -> None:
        tensor.neg_()

    return issue


def cadence_s(bench: Bench) -> float:
    """Seconds from one tiny kernel to the next, on one stream of a graph: median."""
    return bench.slope_s(repeated(tiny_kernel(bench.driver)), _NODES)


def cross_cadence_s(bench: Bench) -> float:
    """The same where the kernels alternate between two streams, each waiting for the one before: median."""
    return bench.slope_s(_ping_pong(bench), _NODES // 2) / 2


def _ping_pong(bench: Bench) -> Callable[[int], None]:
    driver, here, there = bench.driver, bench.stream, bench.driver.stream()
    issue = tiny_kernel(driver)

    def hop(source, target) -> None:
        driver.use(source)
        issue()
        event = driver.event()
        event.record(source)
        target.wait_event(event)

    def rallies(count: int) -> None:
        for _ in range(count):
            hop(here, there)
            hop(there, here)
        driver.use(here)

    return rallies
