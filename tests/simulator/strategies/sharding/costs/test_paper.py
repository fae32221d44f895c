"""The paper's costs: table 2, and the bytes of its figure 8."""

import numpy as np
import pytest

from simulator.machine.presets import load_machine
from simulator.model.job import Job
from simulator.strategies.sharding.configuration import Configuration
from simulator.strategies.sharding.configurations import layer_called
from simulator.strategies.sharding.costs import exact
from simulator.strategies.sharding.network import Network

IMAGES, CHANNELS = Configuration(n=16), Configuration(c=16)


@pytest.fixture(scope="module")
def alexnet():
    return Network(Job("alexnet", 512).graph())


@pytest.fixture(scope="module")
def pipe():
    """Bytes per second between two of the 16 K80."""
    return load_machine("k80x16").links[0].bandwidth_bytes_per_s


def input_of(network, layer):
    (edge,) = (edge for edge in network.edges if edge.target == layer)
    return edge


def test_update_and_transfer_of_fc6_are_those_of_table_2(alexnet, pipe):
    fc6 = layer_called(alexnet, "fc6")
    assert exact.update_bytes(alexnet, fc6, IMAGES) / pipe == pytest.approx(1.075, rel=0.02)
    assert exact.update_bytes(alexnet, fc6, CHANNELS) == 0
    assert exact.transfer_bytes(alexnet, input_of(alexnet, fc6), IMAGES, CHANNELS) / pipe == pytest.approx(0.1344, rel=0.02)
    assert exact.transfer_bytes(alexnet, input_of(alexnet, fc6), IMAGES, IMAGES) == 0


def test_each_holder_of_a_piece_sends_its_gradient_and_receives_new_weights(alexnet):
    fc6 = layer_called(alexnet, "fc6")
    weights = 4 * 9216 * 4096
    assert exact.update_bytes(alexnet, fc6, Configuration(n=2)) == 2 * 2 * weights
    assert exact.update_bytes(alexnet, fc6, Configuration(n=2, c=4)) == 2 * 2 * weights  # two holders of each of four pieces
    assert exact.update_bytes(alexnet, fc6, Configuration()) == 0


def test_images_alone_move_all_weights_and_no_inputs(alexnet):
    layers = range(len(alexnet.layers))
    moved = sum(exact.update_bytes(alexnet, layer, IMAGES) for layer in layers)
    biases = 64 + 192 + 384 + 256 + 256 + 4096 + 4096 + 1000
    assert moved == 2 * 16 * 4 * (61_100_840 - biases)


def test_tables_hold_the_same_numbers(alexnet, pipe):
    options = [(Configuration(), IMAGES)] * len(alexnet.layers)
    tables = exact.paper_tables(alexnet, load_machine("k80x16"), options, [np.zeros(2)] * len(options))
    fc6 = layer_called(alexnet, "fc6")
    total = tables.total([Configuration()] * fc6 + [IMAGES] * (len(options) - fc6))
    assert total.transfer_bytes == 2 * 4 * 512 * 9216
    assert total.update_bytes == sum(exact.update_bytes(alexnet, layer, IMAGES) for layer in range(fc6, len(options)))
    assert total.step_s == pytest.approx((total.transfer_bytes + total.update_bytes) / pipe)
