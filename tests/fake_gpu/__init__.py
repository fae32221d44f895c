"""A simulated GPU on CPU tensors, in virtual time: what a CUDA executor or calibration does to it is timed and checked for races.

    with FakeGpu() as gpu:  # a Driver; every aten op until the end is issued to it
        gpu.use(gpu.stream())
        ...

Leaving the block fails if streams raced. What it cannot see: reads that dispatch no op (`tolist`, `numpy`, printing), which on a GPU would
wait for the stream, and whether a tensor was meant for host or device, except for those of `host_tensor`: what the host copies into one
of them from another, or from a tensor that is not the GPU's work, it does itself and at once.
"""

from tests.fake_gpu.driver import FACTS, FakeGpu
from tests.fake_gpu.errors import FakeGpuError
from tests.fake_gpu.graphs import FakeGraph
from tests.fake_gpu.races import Race
from tests.fake_gpu.streams import FakeEvent, FakeStream, Ran
from tests.fake_gpu.times import Times

__all__ = ["FACTS", "FakeEvent", "FakeGpu", "FakeGpuError", "FakeGraph", "FakeStream", "Race", "Ran", "Times"]
