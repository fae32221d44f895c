"""Finds the SMs that a stream's kernels run on, by a kernel whose blocks record the SM that they run on."""

from collections.abc import Sequence

import torch

from executors.cuda.bindings import first_line
from executors.cuda.driver import Driver
from executors.cuda.issue import fork, join
from executors.kernels.nvrtc import compiled
from traces.errors import SchedcastError

#: Length of the table of SMs, larger than the SM count of any GPU because the numbers of SMs may have gaps.
_ROOM = 1024
_THREADS = 1024
#: Blocks launched per SM of the whole GPU. At most two blocks of 1024 threads fit on an SM at a time, so this fills every SM.
_BLOCKS_PER_SM = 4
#: How long a block spins: about 20 us at 2 GHz, so that every SM gets a block before any SM gets a later one.
_SPIN_CYCLES = 40_000
_SOURCE = """
extern "C" __global__ void schedcast_sm_probe(int* seen, int room, int cycles)
{
    unsigned int sm;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
    long long begin = clock64();
    while (clock64() - begin < cycles) { }
    if (threadIdx.x == 0 && sm < room) { seen[sm] = 1; }
}
"""


class Probe:
    """The compiled probe kernel. Raises SchedcastError if NVRTC cannot compile it."""

    def __init__(self):
        self._kernel = compiled(_SOURCE, "schedcast_sm_probe")

    def sm_ids(self, driver: Driver, stream: torch.cuda.Stream, replayed: bool) -> frozenset[int]:
        """The SMs that the blocks of one launch on `stream` ran on. With `replayed`, the launch is part of a replayed graph."""
        if replayed:
            return self.sm_ids_in_one_graph(driver, [stream])[0]
        seen = self._launched(driver, [stream])
        return _marked(seen[0])

    def sm_ids_in_one_graph(self, driver: Driver, streams: Sequence[torch.cuda.Stream]) -> list[frozenset[int]]:
        """The SMs of one launch on each stream, with all launches in one graph, which is captured from the first stream."""
        seen = self._launched(driver, streams)  # also loads the kernel, which a capture does not allow
        first = streams[0]
        with driver.capture(first) as graph:
            fork(driver, first, streams)
            for stream, table in zip(streams, seen, strict=True):
                self._launch(driver, stream, table)
            join(driver, streams, first)
        for table in seen:
            table.zero_()
        driver.synchronize()
        with torch.cuda.stream(first):
            graph.replay()
        driver.synchronize()
        return [_marked(table) for table in seen]

    def _launched(self, driver: Driver, streams: Sequence[torch.cuda.Stream]) -> list[torch.Tensor]:
        """The tables of one eager launch on each stream."""
        seen = [torch.zeros(_ROOM, dtype=torch.int32, device=driver.device) for _ in streams]
        driver.synchronize()
        for stream, table in zip(streams, seen, strict=True):
            self._launch(driver, stream, table)
        driver.synchronize()
        return seen

    def _launch(self, driver: Driver, stream: torch.cuda.Stream, seen: torch.Tensor) -> None:
        """Raises SchedcastError if the driver refuses the launch, for example because kernel and stream belong to different contexts."""
        grid = (driver.facts.sms * _BLOCKS_PER_SM, 1, 1)
        try:
            with torch.cuda.stream(stream):
                self._kernel(grid=grid, block=(_THREADS, 1, 1), args=[seen, _ROOM, _SPIN_CYCLES], stream=stream)
        except RuntimeError as error:
            raise SchedcastError(f"the kernel that finds a stream's SMs cannot be launched: {first_line(error)}") from error


def _marked(seen: torch.Tensor) -> frozenset[int]:
    return frozenset(seen.nonzero().flatten().tolist())
