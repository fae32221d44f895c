"""PyTorch's own batch norm has a block for each channel: its rounds, its waves, and which tasks run it."""

import numpy as np
import pytest

from simulator.engine.costs import channel_blocks, efficiencies
from simulator.engine.costs.channel_blocks import ChannelBlocks, Channels
from simulator.engine.costs.site import Number, Site, Sites
from simulator.machine.presets import load_machine
from simulator.model.job import Job

#: Ten SMs with a clock of 1 GHz.
SITE = Site("gpu", 10, {"fp32": 1e12, "bf16": 1e13}, 1e12, 10**6, clock_hz=1e9)


def cycles(value: float) -> Number:
    return Number(value, 0.1, "test")


BLOCKS = ChannelBlocks(round_cycles=cycles(500), cached_round_cycles=cycles(200), crowd_cycles=cycles(10), block_cycles=cycles(3000))


@pytest.mark.parametrize(
    ("pixels", "rounds"),
    [
        (49, 64 / 8),  # 64 threads for an image, so eight images at a time
        (196, 64 / 2),  # 256 threads
        (784, 64 * 2),  # all threads for one image, twice
        (12544, 64 * 25),
    ],
)
def test_a_thread_goes_through_its_channel_in_rounds(pixels, rounds):
    assert Channels(64.0, 32.0, float(pixels), 1).rounds == rounds
    assert Channels(64.0, 32.0, float(pixels), 2).rounds == 2 * rounds, "backward reads the channel twice"


def test_channels_beyond_four_to_an_sm_wait_for_a_second_wave():
    def seconds(channels: float, cached: bool = False) -> float:
        return channel_blocks.seconds(BLOCKS, SITE, Channels(8.0, channels, 49.0, 1), cached)

    assert seconds(5) == pytest.approx((500 + 10 * 0.5 + 3000) * 1e-9)
    assert seconds(40) == pytest.approx((500 + 10 * 4 + 3000) * 1e-9)
    assert seconds(41) == pytest.approx(2 * seconds(40))
    assert seconds(40, cached=True) == pytest.approx((200 + 10 * 4 + 3000) * 1e-9)


def test_many_works_are_priced_at_once_as_each_by_itself():
    channels = np.array([5.0, 40.0, 100.0])
    at_once = channel_blocks.seconds(BLOCKS, SITE, Channels(np.full(3, 8.0), channels, np.array([49.0, 49.0, 784.0]), 2), cached=False)
    alone = [
        channel_blocks.seconds(BLOCKS, SITE, Channels(8.0, each, pixels, 2), cached=False)
        for each, pixels in zip(channels, (49.0, 49.0, 784.0), strict=True)
    ]
    assert at_once.tolist() == pytest.approx(alone)


@pytest.mark.parametrize(
    ("precision", "layout", "count"),
    [("amp", "nchw", 38), ("amp", "nhwc", 0), ("amp-fp16", "nchw", 0), ("fp32", "nchw", 0)],
)
def test_pytorchs_kernels_normalize_bf16_with_channels_first_alone(precision, layout, count):
    """cuDNN normalizes the rest. ResNet-20 has 19 batch norms, forward and backward."""
    graph = Job("resnet20", 2, image_size=32, precision=precision, layout=layout).on("gpu").graph(2)
    own = [extents for op in graph.ops if isinstance(extents := efficiencies.extents(op), Channels)]
    assert len(own) == count
    assert {each.channels for each in own} == ({16.0, 32.0, 64.0} if count else set())
    assert sum(each.passes == 2 for each in own) == count // 2


def test_few_channels_leave_an_h100_idle():
    """A quarter of the channels with four times the pixels: equally many bytes, and up to four times as long (measured: 3.2)."""
    machine = load_machine("h100")
    site, moved = Sites(machine).site("cuda:0"), 3 * 2.0 * 64 * 256 * 56 * 56

    def backward_s(channels: float, pixels: float) -> float:
        return efficiencies.seconds(site, efficiencies.NORM_PYTORCH, 0.0, moved, extents=Channels(64.0, channels, pixels, 2)).cold

    assert 2.5 < backward_s(64.0, 112.0 * 112) / backward_s(256.0, 56.0 * 56) < 4.0
