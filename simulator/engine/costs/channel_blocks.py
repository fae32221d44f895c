"""How long PyTorch's own batch norm takes, whose kernels have a block of threads for each channel.

cuDNN normalizes float32 and fp16, but not bf16 with channels first (`_batch_norm_impl_index` in PyTorch's ATen/native/Normalization.cpp).
There, PyTorch's own kernels run. A block of 512 threads goes through its channel in rounds, by tf pixels of 512 / tf images, where tf is
the least of 32, 64, ... 512 that an image fills. A thread needs the number that it has loaded before it loads the next one, so that a
round takes the latency of the memory or of the cache, and longer if other blocks compute on the SM, which holds four of them:

    t = waves · (rounds · (round + crowd · blocks of an SM) + block) / clock, where
    rounds = passes · ⌈images / (512 / tf)⌉ · ⌈pixels / tf⌉, and waves = ⌈channels / (4 · SMs)⌉.

Forward makes one pass, then another kernel normalizes element by element. Backward makes two passes in one kernel.

>>> int(Channels(images=64.0, channels=64.0, pixels=112.0 * 112.0, passes=1).rounds)  # one image at a time, in 25 rounds
1600
"""

from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict

from simulator.engine.costs.site import Number, Site

_N = TypeVar("_N", float, np.ndarray)

#: Threads of a block, and what an SM holds (2,048 threads).
_THREADS, _RESIDENT = 512, 4
#: Numbers of threads that a row of pixels may get.
_ROWS = np.array([32, 64, 128, 256, 512])


class Channels(NamedTuple, Generic[_N]):
    """`images` of so many `channels` with `pixels` each, normalized by channel in so many `passes`: 1 forward, 2 backward."""

    images: _N
    channels: _N
    pixels: _N
    passes: int

    @property
    def rounds(self) -> Any:
        """Loads of a thread, one after the other."""
        row = _ROWS[np.minimum(np.searchsorted(_ROWS, self.pixels), len(_ROWS) - 1)]
        return self.passes * np.ceil(self.images / (_THREADS // row)) * np.ceil(self.pixels / row)


class ChannelBlocks(BaseModel):
    """Clock cycles of a round that loads from memory, of one from the cache, of what each block of the SM adds to it, and of a block."""

    model_config = ConfigDict(extra="forbid")

    round_cycles: Number
    cached_round_cycles: Number
    crowd_cycles: Number
    block_cycles: Number


def seconds(blocks: ChannelBlocks, site: Site, work: Channels, cached: bool) -> Any:
    """The time of the kernels with a block for each channel: a number, or an array if the fields are."""
    waves = np.ceil(work.channels / (_RESIDENT * site.sms))
    crowd = blocks.crowd_cycles.value * np.minimum(_RESIDENT, work.channels / site.sms)
    load = (blocks.cached_round_cycles if cached else blocks.round_cycles).value
    cycles = waves * (work.rounds * (load + crowd) + blocks.block_cycles.value)
    return cycles / site.cycles_per_s
