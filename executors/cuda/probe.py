"""Finds the SMs that a stream's kernels run on, by a kernel whose blocks record the SM that they run on."""

import torch

from executors.cuda.driver import Driver, Stream
from executors.kernels.native.nvrtc import compiled

#: Length of the table of SMs, larger than the SM count of any GPU because the numbers of SMs may have gaps.
_ROOM = 1024
_THREADS = 1024
#: Blocks launched per SM of the whole GPU. At most two blocks of 1024 threads fit on an SM at a time, so this fills every SM.
_BLOCKS_PER_SM = 4
#: How long a block spins: about 20 us at 2 GHz, so that every SM gets a block before any SM gets a later one.
_SPIN_CYCLES = 40_000
_SOURCE = """
extern "C" __global__ void stepcast_sm_probe(int* seen, int room, int cycles)
{
    unsigned int sm;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
    long long begin = clock64();
    while (clock64() - begin < cycles) { }
    if (threadIdx.x == 0 && sm < room) { seen[sm] = 1; }
}
"""


class Probe:
    """The compiled probe kernel. Raises StepcastError if NVRTC cannot compile it."""

    def __init__(self):
        self._kernel = compiled(_SOURCE, "stepcast_sm_probe")

    def sm_ids(self, driver: Driver, stream: Stream, replayed: bool) -> frozenset[int]:
        """The SMs that the blocks of one launch on `stream` ran on. With `replayed`, the launch is part of a replayed graph."""
        with torch.cuda.stream(stream):
            seen = torch.zeros(_ROOM, dtype=torch.int32, device=driver.device)
            self._launch(driver, stream, seen)  # also loads the kernel, which a capture does not allow
            if replayed:
                with driver.capture(stream) as graph:
                    self._launch(driver, stream, seen)
                seen.zero_()
                graph.replay()
            driver.synchronize()
            return frozenset(seen.nonzero().flatten().tolist())

    def _launch(self, driver: Driver, stream: Stream, seen: torch.Tensor) -> None:
        grid = (driver.facts.sms * _BLOCKS_PER_SM, 1, 1)
        self._kernel(grid=grid, block=(_THREADS, 1, 1), args=[seen, _ROOM, _SPIN_CYCLES], stream=stream)
