"""Which SMs a stream's kernels run on: a kernel whose every block notes the SM it finds itself on."""

import torch

from executors.cuda.driver import Driver, Stream
from executors.kernels.native.nvrtc import compiled

#: Numbers of SMs may have holes, so there is room for more than any GPU has SMs.
_ROOM = 1024
_THREADS = 1024
#: Blocks per SM of the whole GPU: at most two of 1024 threads fit on one at a time, so all SMs are filled, some more than once.
_BLOCKS_PER_SM = 4
#: About 20 us at 2 GHz: no SM takes a second block before every other has one.
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
    """The compiled kernel. Making one raises StepcastError where NVRTC cannot compile it."""

    def __init__(self):
        self._kernel = compiled(_SOURCE, "stepcast_sm_probe")

    def sm_ids(self, driver: Driver, stream: Stream, replayed: bool) -> frozenset[int]:
        """The SMs that the blocks of one launch on `stream` ran on; of a launch in a graph's replay if `replayed`."""
        with torch.cuda.stream(stream):
            seen = torch.zeros(_ROOM, dtype=torch.int32, device=driver.device)
            self._launch(driver, stream, seen)  # also loads the kernel, which a capture could not
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
