"""A simulated GPU on CPU tensors, in virtual time. It times the work that a CUDA executor or calibration issues, and checks it for races.

    with FakeGpu() as gpu:  # a Driver; every aten op within the block is issued to it
        gpu.use(gpu.stream())
        ...

Leaving the block fails if streams raced. The simulation does not see reads that dispatch no op (`tolist`, `numpy`, printing), which on a
real GPU would wait for the stream. It treats all tensors as the GPU's, except those of `host_tensor`. A copy into one of these, from
another one or from a tensor that no op of the GPU has written, is done by the host, at once.
"""

from tests.fake_gpu.driver import FACTS, FakeGpu, FakeGpus
from tests.fake_gpu.errors import FakeGpuError
from tests.fake_gpu.graphs import FakeGraph
from tests.fake_gpu.races import Race
from tests.fake_gpu.streams import FakeEvent, FakeStream, KernelRun
from tests.fake_gpu.times import Times

__all__ = ["FACTS", "FakeEvent", "FakeGpu", "FakeGpuError", "FakeGpus", "FakeGraph", "FakeStream", "KernelRun", "Race", "Times"]
