"""Peak rates of a GPU: dense FLOP/s by precision, and memory bandwidth; and the kernel whose time shows a change of the clocks."""

import torch

from calibrate.cuda.bench import Bench, Effort, repeated
from executors.cuda.driver import Driver
from traces.documents.profile import Profile

#: Edge of the square matrices, and how many products make a sample (about a millisecond on a large GPU).
EDGE, COPIES = 2048, 8


class ReferenceKernel:
    """The reference kernel: products of two float32 matrices, captured in a graph.

    It is bound by compute. It is timed at calibration and between the steps of a validation, both times under sustained load.
    """

    def __init__(self, driver: Driver, edge: int = EDGE, effort: Effort | None = None):
        self._bench = Bench(driver, effort=effort)
        a, b, out = (torch.randn(edge, edge, device=driver.device) for _ in range(3))
        self._operands = (a, b, out)  # a graph does not keep its tensors alive

        def product() -> None:
            torch.mm(a, b, out=out)

        self._bench.run(product)
        self._graph = self._bench.capture(lambda: repeated(product)(COPIES))

    def sample(self, rounds: int = 5) -> list[float]:
        """Seconds per product, by round."""
        return [seconds / COPIES for seconds in self._bench.replays([self._graph], rounds, self._bench.effort.sustained_s)[0]]


#: Element types by precision; any other has float32.
_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp64": torch.float64}
#: The edge of the square matrices by precision; fp64 runs at half the rate or far less.
_EDGES = {"fp32": 8192, "tf32": 8192, "bf16": 8192, "fp64": 4096}
#: Bytes that are read, and written, to measure the bandwidth: far more than any cache.
_STREAMED_BYTES = 1 << 30
#: The share of the GPU's memory that either measurement may use.
_MEMORY_SHARE = 1 / 32
#: A rate is a ceiling, so it is the best of a few runs of a few copies, not a typical one.
_RATE_ROUNDS, _RATE_COPIES = 3, 2


def dtype_of(precision: str) -> torch.dtype:
    """The element type of products in a precision."""
    return _DTYPES.get(precision, torch.float32)


def measure_rates(bench: Bench, profile: Profile, precision: str) -> None:
    """Measure the profile's peak FLOP/s and bandwidth, and store memory and cache size. Restores `precision` for dense kernels."""
    facts = bench.driver.facts
    try:
        profile.peak_flops = {name: _peak_flops(bench, name) for name in _EDGES}
    finally:
        bench.driver.set_precision(precision)
    profile.bandwidth_bytes_per_s = _bandwidth(bench)
    profile.memory_bytes = facts.memory_bytes
    profile.cache_bytes = facts.cache_bytes


def _peak_flops(bench: Bench, precision: str) -> float:
    dtype, edge = dtype_of(precision), _EDGES[precision]
    while 3 * edge**2 * dtype.itemsize > bench.driver.facts.memory_bytes * _MEMORY_SHARE:
        edge //= 2
    bench.driver.set_precision(precision)
    a, b, out = (torch.randn(edge, edge, device=bench.driver.device).to(dtype) for _ in range(3))
    return 2 * edge**3 / _best_s(bench, lambda: torch.mm(a, b, out=out))


def _bandwidth(bench: Bench) -> float:
    """That of a kernel that computes: copies within the memory are slower (2.4 TB/s on an H100, where such kernels reach 2.8 to 3.2)."""
    size = min(_STREAMED_BYTES, int(bench.driver.facts.memory_bytes * _MEMORY_SHARE)) // 4
    source, target = torch.randn(size, device=bench.driver.device), torch.empty(size, device=bench.driver.device)
    return 2 * source.nbytes / _best_s(bench, lambda: torch.neg(source, out=target))


def _best_s(bench: Bench, issue) -> float:
    bench.run(issue)
    return min(s for s in bench.slopes([(repeated(issue), _RATE_COPIES)], _RATE_ROUNDS)[0] if s > 0)
