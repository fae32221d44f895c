"""The costs of what a plan does: bytes box by box, copies as the engine times them, sums of gradients."""

import random
from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
from simpy import Environment

from simulator.engine.costs.model import CostModel
from simulator.engine.links import Links
from simulator.engine.simulation import simulate
from simulator.machine.machine import HOST, Link
from simulator.machine.presets import load_machine
from simulator.model.job import Job
from simulator.plan.bodies.copy import Copy
from simulator.plan.plan import Plan
from simulator.plan.task import ACTIVATION, Storage, Task, Value
from simulator.strategies.sharding.boxes import elements, overlap
from simulator.strategies.sharding.configuration import Configuration
from simulator.strategies.sharding.configurations import layer_called
from simulator.strategies.sharding.costs import exact
from simulator.strategies.sharding.costs.compute import Prices
from simulator.strategies.sharding.costs.copies import Copies
from simulator.strategies.sharding.costs.exact import ExactCosts, holders
from simulator.strategies.sharding.costs.moved import Sides
from simulator.strategies.sharding.network import Network

# The paper's costs: table 2, and the bytes of its figure 8.


IMAGES, CHANNELS = Configuration(n=16), Configuration(c=16)


@pytest.fixture(scope="module")
def alexnet():
    return Network(Job("alexnet", 512).graph())


@pytest.fixture(scope="module")
def pipe():
    """Bytes per second of the one pipe that the paper's costs give the 16 K80, which its links do not have."""
    return load_machine("k80x16").pipe_bytes_per_s


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


def test_repaired_costs_charge_equal_configurations_what_really_moves(alexnet, pipe):
    """Two images on two workers: by image nothing moves between equal configurations, by channel each lacks the other's half."""
    options = [(IMAGES, CHANNELS) if {IMAGES, CHANNELS} <= set(alexnet.legal(n, 16)) else (IMAGES,) for n in range(len(alexnet.layers))]
    machine = load_machine("k80x16")
    nothing = [np.zeros(len(own)) for own in options]
    printed = exact.paper_tables(alexnet, machine, options, nothing)
    own = exact.repaired(printed, exact.ExactCosts(alexnet, machine, options, Prices(machine, None)).tables(nothing))
    fc7 = layer_called(alexnet, "fc7")
    (edge, before) = (next(e for e in tables.transfers if e.target == fc7) for tables in (own, printed))
    images, channels = range(2)
    assert before.bytes[channels, channels] == before.bytes[images, images] == own.transfers[0].bytes[images, images] == 0
    moved = 2 * 15 * 4 * 512 * 4096  # forward and backward: each of 16 workers lacks 15 parts of a sixteenth
    assert (edge.bytes[channels, channels], edge.seconds[channels, channels]) == (moved, pytest.approx(moved / pipe))
    assert edge.bytes[images, channels] == before.bytes[images, channels] == 2 * 16 * 4 * 512 * 4096, "as printed"


def network_of(model, batch, size):
    return Network(Job(model, batch, size).graph())


def moved_by_boxes(network, edge, source, target):
    """Bytes from each of six workers to each other one, from the boxes of each of them."""
    reader = network.graph.ops[edge.reader]
    value = network.graph.values[reader.inputs[edge.position].value]
    matrix = np.zeros((6, 6))
    owned = [(*box, *((0, extent) for extent in value.shape[len(box) :])) for box in network.boxes(edge.source, source)]
    for j, box in enumerate(network.boxes(edge.target, target)):
        needed = network.needed(edge.reader, box)[edge.position]
        for i, own in enumerate(owned):
            common = needed and overlap(own, needed)
            matrix[i, j] = 4 * elements(common) if common and i != j else 0
    return matrix


@pytest.mark.sampled(4)
@pytest.mark.parametrize("model", ["alexnet", "googlenet", "resnet18", "lenet5"])
def test_bytes_between_workers_are_those_of_their_boxes(model):
    draw = random.Random(model)
    network = network_of(model, 12, 64)
    options = [tuple(network.legal(layer, 6)) for layer in range(len(network.layers))]
    sides = Sides(network, options, 6)
    for edge in draw.sample(network.edges, 6):
        moved = matrix(sides.flows(edge))
        for _ in range(12):
            source, target = (draw.choice(options[layer]) for layer in (edge.source, edge.target))
            place = options[edge.source].index(source), options[edge.target].index(target)
            assert (moved[place] == moved_by_boxes(network, edge, source, target)).all()


def matrix(flows):
    """[configurations of source, of target, workers of source, of target]: all bytes at once."""
    workers = max(*flows.sources.workers, *flows.targets.workers)
    result = np.zeros((len(flows.sources.workers), len(flows.targets.workers), workers, workers))
    for (sources, targets), moved in flows.blocks():
        result[sources, targets, : moved.shape[1], : moved.shape[3]] = moved.swapaxes(1, 2)
    return result


def seconds_of(copies, moved):
    """Seconds of copies [..., source, target]."""
    size = moved.shape[-1]
    return copies.seconds(moved.reshape(-1, size, 1, size)).reshape(moved.shape[:-2])


def exact_costs(network, machine, options, server="all-reduce"):
    return ExactCosts(network, machine, options, Prices(machine, None), server)


def only(network, machine, layer, source, target):
    """Bytes of the one edge into a layer between two configurations."""
    (edge,) = (edge for edge in network.edges if edge.target == layer)
    options = [(Configuration(),)] * len(network.layers)
    options[edge.source], options[layer] = (source,), (target,)
    return exact_costs(network, machine, options).transfer(edge)[1].item()


def test_equal_configurations_exchange_halos_and_channels_but_no_images():
    network, machine = network_of("vgg11", 8, 32), load_machine("p100x4")
    conv2 = layer_called(network, "features.6")  # reads 8 x 128 x 8 x 8, kernel 3, padding 1
    assert only(network, machine, conv2, Configuration(n=4), Configuration(n=4)) == 0
    rows = 8 * 128 * 8 * 4
    assert only(network, machine, conv2, Configuration(h=2), Configuration(h=2)) == 2 * (2 * rows)  # one row each way; and back
    whole = 8 * 128 * 8 * 8 * 4
    assert only(network, machine, conv2, Configuration(c=4), Configuration(c=4)) == 2 * 3 * whole


@pytest.mark.parametrize("machine", ["k80x16", "p100x4", "dgx-h100", "2xdgx-a100"])
def test_copies_that_start_together_take_at_least_what_the_engine_takes_for_the_busiest_and_nearly_that(machine):
    """Copies of equal size, each on a stream of its own."""
    machine = load_machine(machine)
    devices = [device.name for device in machine.devices]
    draw = random.Random(machine.name)
    for _ in range(5):
        matrix = np.zeros((len(devices), len(devices)))
        for i, j in draw.sample([(i, j) for i in range(len(devices)) for j in range(len(devices)) if i != j], 6):
            matrix[i, j] = 64e6
        closed = float(seconds_of(Copies(machine), matrix))
        simulated = simulate(copies_plan(devices, matrix), machine, costs_of(machine, devices, matrix), iterations=1).step_s
        assert closed <= simulated * 1.001
        assert simulated <= closed * 2.5, "a copy that uses two directions waits for both"


def copies_plan(devices, matrix):
    values, storages, tasks = {}, {}, []
    for number, (i, j) in enumerate(np.argwhere(matrix)):
        count = int(matrix[i, j]) // 4
        ends = []
        for side, place in (("from", i), ("to", j)):
            name = f"{side}{number}"
            storages[name] = Storage(name, 4 * count, devices[place])
            values[name] = Value(name, (count,), (1,), "float32", devices[place], ACTIVATION, name)
            ends.append(values[name].operand())
        tasks.append(Task(f"copy{number}", Copy(devices[i], devices[j]), devices[i], number + 1, reads=(ends[0],), writes=(ends[1],)))
    return Plan("copies", tuple(tasks), values, storages)


def costs_of(machine, devices, matrix):
    return CostModel(machine).resolve(copies_plan(devices, matrix))


def by_parts(machine, moved):
    """Seconds of copies [..., source, target] by a loop over the channels and directions of the machine's links."""
    links, size = Links(Environment(), machine), moved.shape[-1]
    parts: dict = {}
    for i, j in permutations(range(size), 2):
        route = links.route(machine.devices[i].name, machine.devices[j].name)
        for channel, load in zip(route.channels, route.loads, strict=True):
            parts[channel] = parts.get(channel, 0.0) + moved[..., i, j] * load / links.capacity(channel)
        for direction in route.directions:
            taken = moved[..., i, j] / route.bandwidth_bytes_per_s + (moved[..., i, j] > 0) * route.latency_s
            parts["direction", direction] = parts.get(("direction", direction), 0.0) + taken
    return np.max(list(parts.values()), axis=0)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("machine", ["k80x16", "dgx-h100", "2xdgx-a100", "4xp100x4"])
def test_copies_take_the_seconds_of_the_busiest_part_there_and_back(machine):
    network, machine = network_of("alexnet", 16, 64), load_machine(machine)
    count = len(machine.devices)
    options = [tuple(network.legal(layer, count)) for layer in range(len(network.layers))]
    copies, sides = Copies(machine), Sides(network, options, count)
    for edge in random.Random(1).sample(network.edges, 4):
        moved = matrix(sides.flows(edge))
        seconds, total = copies.flow_s(sides.flows(edge), back=True)
        assert seconds == pytest.approx(by_parts(machine, moved) + by_parts(machine, moved.swapaxes(-2, -1)), rel=1e-12)
        assert (total == 2 * moved.sum(axis=(-2, -1))).all()
        assert seconds_of(copies, moved) == pytest.approx(by_parts(machine, moved), rel=1e-12)


def test_one_pipe_takes_all_bytes_one_after_another():
    tree = load_machine("k80x16")
    ways = tuple(Link(device.name, HOST, 1e-5, tree.pipe_bytes_per_s, duplex=False, channel="pipe") for device in tree.devices)
    matrix = np.zeros((16, 16))
    matrix[0, 1:], matrix[3, 4] = 1e6, 5e6
    assert seconds_of(Copies(replace(tree, links=ways)), matrix) == pytest.approx(20e6 / tree.pipe_bytes_per_s, rel=1e-3)


def test_on_the_tree_of_16_k80_copies_wait_for_the_links_that_they_share():
    """cuda:0 sends 15 MB over its own slot, of which 12 leave the switch of two boards for the processor."""
    matrix = np.zeros((16, 16))
    matrix[0, 1:] = 1e6
    matrix[1, 4:] = 1e6
    assert seconds_of(Copies(load_machine("k80x16")), matrix) == pytest.approx(26e6 / 12e9, rel=1e-2), "the slot of both GPUs"
    matrix[2, 4:] = 1e6
    assert seconds_of(Copies(load_machine("k80x16")), matrix) == pytest.approx(36e6 / 12e9, rel=1e-2), "the link of both boards"


def test_holders_of_a_piece_are_the_workers_with_the_same_channels():
    assert holders(Configuration(n=2, c=3)) == ((0, 3), (1, 4), (2, 5))
    assert holders(Configuration(c=2, h=2)) == ((0, 1), (2, 3))


@pytest.mark.parametrize(("server", "expected"), [("all-reduce", 2 * 3), ("distributed", 2 * 3), ("host", 2 * 4)])
def test_bytes_of_an_update_are_those_of_the_rounds(server, expected):
    """Four holders of all of the weights: three quarters pass through each twice, or all go to the host and back."""
    network, machine = network_of("alexnet", 8, 64), load_machine("p100x4")
    costs = exact_costs(network, machine, [(Configuration(n=4), Configuration(c=4))] * len(network.layers), server)
    (seconds, alone), (moved, nothing) = costs.update(layer_called(network, "fc7"))
    assert moved == expected * 4 * (4096 * 4096 + 4096)
    assert nothing == 0
    assert 0 < alone < seconds, "an update without a reduction"


def test_compute_is_priced_at_the_shape_of_the_part():
    network, machine = network_of("alexnet", 32, 224), load_machine("k80x16")
    conv2 = layer_called(network, "conv2")
    options = (Configuration(), Configuration(n=2), Configuration(n=16))
    whole, half, little = Prices(machine, None).compute_s(network, conv2, options)
    assert half < whole
    assert little > whole / 16, "small kernels are less efficient"
