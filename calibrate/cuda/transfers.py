"""Copies between host and GPU, and between GPUs: times by size, and the line `latency + bytes / rate` fitted to them."""

import statistics
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from scipy.optimize import nnls

from calibrate.cuda.bench import Bench, Effort, flusher, repeated
from executors.cuda.driver import Driver, Graph
from traces.documents.profile import Profile, Transfer
from traces.errors import SchedcastError

#: 4 KB to 256 MB.
SIZES = tuple(4096 * 4**i for i in range(9))
#: Reads of twice the cache, in a graph, which keep the stream busy while copies are queued, so that no copy waits for the host.
_BUSY = 40


def measure_transfers(bench: Bench, profile: Profile, device: str = "cuda:0", sizes: Sequence[int] = SIZES) -> dict[str, float]:
    """Measure the routes between host and `device` (both ways, pinned and pageable), and store their lines and points in the profile.

    Returns the worst relative error of each line.
    """
    errors = {}
    for pinned in (True, False):
        points = _points(bench, pinned, sizes)
        for name, route in ((f"host>{device}", points[0]), (f"{device}>host", points[1])):
            name += "" if pinned else " pageable"
            profile.transfers[name], errors[name] = fit_transfer(route)
    return errors


def measure_peers(driver: Driver, profile: Profile, sizes: Sequence[int] = SIZES, effort: Effort | None = None) -> dict[str, float]:
    """Measure copies from every GPU of the driver's model to every other, and store their lines and points in the profile.

    Returns the worst relative error of each line. The source GPU's stream makes the copies, one at a time. Afterwards `driver` is the one
    in use. Does nothing if there is only one GPU.
    """
    peers = driver.peers()
    gpus = (driver, *peers) if peers else ()
    errors = {}
    try:
        for source in gpus:
            for target, points in _to_peers(Bench(source, effort=effort), [gpu for gpu in gpus if gpu is not source], sizes):
                name = f"cuda:{source.device.index}>cuda:{target.device.index}"
                profile.transfers[name], errors[name] = fit_transfer(points)
    finally:
        driver.use(driver.stream())  # makes this driver's GPU the current one again
    return errors


def _to_peers(bench: Bench, targets: Sequence[Driver], sizes: Sequence[int]) -> Iterator[tuple[Driver, list[tuple[int, float]]]]:
    """For each target, (bytes, median seconds) of copies to it."""
    flush = flusher(bench.driver)  # retained here, since the graph does not keep its tensors alive
    busy = bench.capture(lambda: repeated(flush)(_BUSY))
    source = torch.ones(max(sizes), dtype=torch.uint8, device=bench.driver.device)
    for target in targets:
        received = torch.empty(max(sizes), dtype=torch.uint8, device=target.device)
        target.synchronize()
        yield target, [(size, _copy_s(bench, busy, source[:size], received[:size])) for size in sizes]


def _copy_s(bench: Bench, busy: Graph, source: torch.Tensor, target: torch.Tensor) -> float:
    """Median seconds of one copy that is queued behind other work."""
    bench.run(lambda: target.copy_(source, non_blocking=True))
    busy.replay()
    return statistics.median(bench.between([lambda: target.copy_(source, non_blocking=True)])[0])


def fit_transfer(points: Sequence[tuple[float, float]]) -> tuple[Transfer, float]:
    """The line through points of (bytes, seconds) with the least squared relative errors, and its worst relative error.

    Raises SchedcastError if seconds do not grow with bytes.
    """
    sizes, seconds = np.array(points, dtype=float).T
    (latency_s, per_byte_s), _ = nnls(np.stack([1 / seconds, sizes / seconds], axis=1), np.ones(len(points)))
    if not per_byte_s:
        raise SchedcastError(f"no transfer rate can be fitted: larger transfers take no longer than small ones: {points}")
    worst = float(np.abs((latency_s + per_byte_s * sizes) / seconds - 1).max())
    return Transfer(latency_s=float(latency_s), bytes_per_s=float(1 / per_byte_s), points=[(float(n), float(s)) for n, s in points]), worst


def _points(bench: Bench, pinned: bool, sizes: Sequence[int]) -> tuple[list[tuple[float, float]], list[tuple[float, float]]]:
    """Points of (bytes, median seconds) of copies to the GPU, and of copies back."""
    driver = bench.driver
    on_gpu = torch.empty(max(sizes), dtype=torch.uint8, device=driver.device)
    flush = flusher(driver)
    busy = bench.capture(lambda: repeated(flush)(_BUSY))
    routes: tuple[list, list] = ([], [])
    for size in sizes:
        host, device = driver.host_tensor(size, pinned), on_gpu[:size]
        copies = [
            lambda host=host, device=device: device.copy_(host, non_blocking=pinned),
            lambda host=host, device=device: host.copy_(device, non_blocking=pinned),
        ]
        for copy in copies:
            bench.run(copy)
        busy.replay()
        for points, seconds in zip(routes, bench.between(copies), strict=True):
            points.append((size, statistics.median(seconds)))
    return routes
