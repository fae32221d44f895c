"""The times of the simulated GPU. They depend only on the constructor's arguments."""

import random
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from tests.fake_gpu.memory import Memory


@dataclass(frozen=True)
class Times:
    """Seconds and rates. Ops are named without overload: `aten.mm`."""

    op_s: float = 8e-6  # host, per op
    op_s_by_name: Mapping[str, float] = field(default_factory=dict)
    view_s: float = 1e-6  # host, per op without a kernel
    record_s: float = 1e-6
    wait_s: float = 1e-6
    switch_s: float = 0.0  # host, per choice of a stream
    replay_s: float = 10e-6  # host, per launch of a graph
    graph_node_s: float = 0.0  # in addition per node
    graph_branch_s: float = 0.0  # in addition per stream with nodes but the first
    call_s: float = 3e-6  # host, per issued call of the host by a stream
    after_profiler: float = 1.0  # multiplies op_s after the first profiler session
    queue_depth: int = 1000  # kernels outstanding per stream before the host blocks

    least_s: float = 2e-6  # the part of a kernel that no number of SMs shortens
    bytes_per_s: float = 2e12
    factors: Mapping[str, float] = field(default_factory=dict)  # multiplies the rest of a kernel, by op
    kernel_s: Callable[[str, float], float] | None = None  # (op, bytes) -> seconds on all SMs, instead of the three above
    warm_factor: float = 1.0  # the weight of a byte that is read from the cache
    rewrite_factor: float = 1.0  # the weight of a byte that replaces a write which is still in the cache
    noise: float = 0.0  # relative standard deviation; every kernel draws its own, from `noise_seed`
    noise_seed: int = 0

    hot: Collection[str] = ()  # ops that draw more power than the GPU may for long
    cap_after_s: float = 10e-3  # so much more time in hot kernels than in all else, and the power cap lowers the clock
    capped_factor: float = 1.0  # multiplies a hot kernel at that clock

    callback_s: float = 12e-6  # how long a stream that calls the host stops in addition to the call's duration

    pinned_bytes_per_s: float = 50e9
    pageable_bytes_per_s: float = 10e9
    host_bytes_per_s: float = 20e9  # copies by the host within its memory
    peer_latency_s: float = 5e-6  # of a copy from one GPU to another
    peer_bytes_per_s: float = 100e9

    beside: Mapping[str, float] = field(
        default_factory=dict
    )  # multiplies a kernel in a graph with several streams, by op or its `Work.kind`

    gap_s: float = 1e-6  # from the end of a graph's node to the start of the next
    launch_gap_s: float = 0.0  # from the end of a kernel to the start of the next that was launched while it ran
    cross_gap_s: float = 1.5e-6  # in addition if the next node is on another stream


class KernelTimes:
    """Times kernels in the order in which they run. Keeps the state of the cache, of the noise generator and of the power cap."""

    def __init__(self, times: Times, cache_bytes: int):
        self.times, self.cache_bytes = times, cache_bytes
        self.random = random.Random(times.noise_seed)
        self.traffic = 0
        self.touched: dict[int, int] = {}  # by block of memory, the traffic at its last touch
        self.written: dict[int, int] = {}  # likewise, at its last write
        self.heat_s = self.hot_until_s = 0.0

    def seconds(
        self, op: str, reads: list[tuple[Memory, int]], writes: list[tuple[Memory, int]], share: float, link: str | None, at_s: float
    ) -> float:
        """The seconds of one kernel on `share` of the SMs from `at_s` on, or of one copy over the `link`. Operands are (memory, bytes)."""
        times = self.times
        if times.warm_factor == times.rewrite_factor == 1.0:  # then the state of the cache does not matter
            counted = sum([size for _, size in reads]) + sum([size for _, size in writes])
        else:
            counted = self._counted(reads, writes)
        if link is not None:
            rate, least_s = {
                "pinned": (times.pinned_bytes_per_s, times.least_s),
                "pageable": (times.pageable_bytes_per_s, times.least_s),
                "peer": (times.peer_bytes_per_s, times.peer_latency_s),
            }[link]
            seconds = least_s + max(size for _, size in writes) / rate
        else:
            if times.kernel_s is not None:
                seconds = times.kernel_s(op, counted)
            else:
                seconds = times.least_s + counted / times.bytes_per_s * times.factors.get(op, 1.0)
            seconds += max(0.0, seconds - times.least_s) * (1.0 / share - 1.0)
        if times.noise:
            seconds *= max(0.1, self.random.gauss(1.0, times.noise))
        return self._heated(seconds, at_s) if op in times.hot else seconds

    def _heated(self, seconds: float, at_s: float) -> float:
        """The seconds of a hot kernel that starts at `at_s`. The GPU has cooled since the last one, and heats up."""
        limit_s = self.times.cap_after_s
        heat_s = max(0.0, self.heat_s - max(0.0, at_s - self.hot_until_s))
        seconds *= self.times.capped_factor if heat_s >= limit_s else 1.0
        self.heat_s, self.hot_until_s = min(2 * limit_s, heat_s + seconds), at_s + seconds
        return seconds

    def _counted(self, reads: list[tuple[Memory, int]], writes: list[tuple[Memory, int]]) -> float:
        """The bytes of a kernel, those in the cache with their weight. The kernel's operands are in the cache afterwards."""
        times = self.times
        counted = sum(size * (times.warm_factor if self._cached(self.touched, memory, size) else 1.0) for memory, size in reads)
        counted += sum(size * (times.rewrite_factor if self._cached(self.written, memory, size) else 1.0) for memory, size in writes)
        for memory, size in (*reads, *writes):
            self.traffic += size
            self.touched[memory.block] = self.traffic
        self.written.update((memory.block, self.traffic) for memory, _ in writes)
        return counted

    def _cached(self, lasts: dict[int, int], memory: Memory, size: int) -> bool:
        last = lasts.get(memory.block)
        return last is not None and self.traffic - last + size <= self.cache_bytes
