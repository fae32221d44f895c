"""Copies between host and GPU, and between GPUs: times by size, and the line `latency + bytes / rate` through them."""

import statistics
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from scipy.optimize import nnls

from calibrate.cuda.bench import Bench, Effort, repeated
from calibrate.cuda.cold import flusher
from executors.cuda.driver import Driver, Graph
from traces.errors import StepcastError
from traces.profile import Profile, Transfer

#: 4 KB to 256 MB.
SIZES = tuple(4096 * 4**i for i in range(9))
#: Reads of twice the cache, in a graph, that keep the stream busy while the copies are queued, so that none waits for the host.
_BUSY = 40


def measure_transfers(bench: Bench, profile: Profile, device: str = "cuda:0", sizes: Sequence[int] = SIZES) -> dict[str, float]:
    """Put the four routes, with their points, into the profile; the worst relative error of each line."""
    errors = {}
    for pinned in (True, False):
        points = _points(bench, pinned, sizes)
        for name, route in ((f"host>{device}", points[0]), (f"{device}>host", points[1])):
            name += "" if pinned else " pageable"
            profile.transfers[name], errors[name] = fit_transfer(route)
    return errors


def measure_peers(driver: Driver, profile: Profile, sizes: Sequence[int] = SIZES, effort: Effort | None = None) -> dict[str, float]:
    """Put copies from every GPU of the driver's product to every other into the profile; the worst relative error of each line.

    Each is made by the stream of the GPU that it comes from, one at a time. `driver` is in use afterwards. Nothing where there is one GPU.
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
        driver.use(driver.stream())  # makes its GPU the current one
    return errors


def _to_peers(bench: Bench, targets: Sequence[Driver], sizes: Sequence[int]) -> Iterator[tuple[Driver, list[tuple[int, float]]]]:
    """Each target with its (bytes, median seconds)."""
    flush = flusher(bench.driver)  # the graph does not keep what it reads
    busy = bench.capture(lambda: repeated(flush)(_BUSY))
    here = torch.ones(max(sizes), dtype=torch.uint8, device=bench.driver.device)
    for target in targets:
        there = torch.empty(max(sizes), dtype=torch.uint8, device=target.device)
        target.synchronize()
        yield target, [(size, _copied_s(bench, busy, here[:size], there[:size])) for size in sizes]


def _copied_s(bench: Bench, busy: Graph, here: torch.Tensor, there: torch.Tensor) -> float:
    """Median seconds of one copy, queued behind other work."""
    bench.run(lambda: there.copy_(here, non_blocking=True))
    busy.replay()
    return statistics.median(bench.between([lambda: there.copy_(here, non_blocking=True)])[0])


def fit_transfer(points: Sequence[tuple[float, float]]) -> tuple[Transfer, float]:
    """The line through (bytes, seconds) with the least squares of relative errors, and the worst of these.

    Raises StepcastError where seconds do not grow with bytes.
    """
    sizes, seconds = np.array(points, dtype=float).T
    (latency_s, per_byte_s), _ = nnls(np.stack([1 / seconds, sizes / seconds], axis=1), np.ones(len(points)))
    if not per_byte_s:
        raise StepcastError(f"transfers take no longer the more bytes they have, so no rate can be fitted: {points}")
    worst = float(np.abs((latency_s + per_byte_s * sizes) / seconds - 1).max())
    return Transfer(latency_s=float(latency_s), bytes_per_s=float(1 / per_byte_s), points=[tuple(map(float, p)) for p in points]), worst


def _points(bench: Bench, pinned: bool, sizes: Sequence[int]) -> tuple[list[tuple[float, float]], list[tuple[float, float]]]:
    """(bytes, median seconds) to the GPU, and back."""
    driver = bench.driver
    there = torch.empty(max(sizes), dtype=torch.uint8, device=driver.device)
    flush = flusher(driver)
    busy = bench.capture(lambda: repeated(flush)(_BUSY))
    found: tuple[list, list] = ([], [])
    for size in sizes:
        here, part = driver.host_tensor(size, pinned), there[:size]
        copies = [
            lambda here=here, part=part: part.copy_(here, non_blocking=pinned),
            lambda here=here, part=part: here.copy_(part, non_blocking=pinned),
        ]
        for copy in copies:
            bench.run(copy)
        busy.replay()
        for points, seconds in zip(found, bench.between(copies), strict=True):
            points.append((size, statistics.median(seconds)))
    return found
