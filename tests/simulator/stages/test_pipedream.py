"""PipeDream's partitions are the best under its cost, and those that its authors' optimizer finds on their profiles."""

from itertools import combinations, pairwise, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.stages import pipedream as module
from simulator.stages.pipedream import Layer, minibatch_seconds, pipedream
from tests.support.layer_profiles import read_profile
from tests.support.shared_data import shared_folder
from traces.errors import StepcastError

PROFILES = shared_folder("layer_profiles")
needs_profiles = pytest.mark.skipif(PROFILES is None, reason="PipeDream's profiles are not beside the repository")


def shape(stages) -> list[tuple[int, int, int]]:
    return [(stage.first, stage.last, stage.replicas) for stage in stages]


def best_chain_seconds(layers: list[Layer], devices: int, bandwidth: float, memory: float) -> float:
    """The shortest time between minibatches over every cut of a chain and every number of replicas, written as the paper does."""
    best = float("inf")
    for count in range(1, len(layers) + 1):
        for cuts in combinations(range(1, len(layers)), count - 1):
            bounds = [0, *cuts, len(layers)]
            stages = [layers[a:b] for a, b in pairwise(bounds)]
            for replicas in product(range(1, devices + 1), repeat=count):
                if sum(replicas) <= devices:
                    best = min(best, max(slowest(stages, replicas, bandwidth, memory)))
    return best


def slowest(stages: list[list[Layer]], replicas: tuple[int, ...], bandwidth: float, memory: float):
    for number, (stage, m) in enumerate(zip(stages, replicas, strict=True)):
        parameters = sum(layer.parameter_bytes for layer in stage)
        stashes = -(-sum(replicas[number + 1 :]) // m)
        if stashes * (parameters + sum(layer.activation_bytes for layer in stage)) > memory:
            yield float("inf")
        yield (sum(layer.seconds for layer in stage) + 4 * (m - 1) * parameters / (bandwidth * m)) / m
        if number > 0:
            yield 2 * stages[number - 1][-1].activation_bytes / bandwidth / m
        if number + 1 < len(stages):
            yield 2 * stage[-1].activation_bytes / bandwidth / m


layer_lists = st.lists(st.builds(Layer, st.integers(0, 20), st.integers(0, 20), st.integers(0, 20)), min_size=1, max_size=5)


@settings(derandomize=True, max_examples=150, deadline=None)
@given(layer_lists, st.integers(1, 4), st.sampled_from([1.0, 10.0, 1e9]), st.sampled_from([20.0, 60.0, 1e9]))
def test_no_other_partition_of_a_chain_is_better(layers, devices, bandwidth, memory):
    best = best_chain_seconds(layers, devices, bandwidth, memory)
    stages = pipedream(layers, devices, bandwidth, memory)
    assert minibatch_seconds(stages) == pytest.approx(best)
    assert [number for stage in stages for number in stage.layers] == list(range(len(layers)))
    assert sum(stage.replicas for stage in stages) <= devices


def test_layers_without_weights_are_replicated_and_layers_of_weights_are_not():
    layers = [Layer(3, 1, 0), Layer(3, 1, 0), Layer(2, 1, 1000)]
    assert shape(pipedream(layers, 4, bandwidth_bytes_per_s=10)) == [(0, 1, 3), (2, 2, 1)]


def test_without_replication_each_stage_has_one_device():
    layers = [Layer(3, 1, 0), Layer(3, 1, 0), Layer(2, 1, 1000)]
    assert shape(pipedream(layers, 4, 10, replication=False)) == [(0, 0, 1), (1, 1, 1), (2, 2, 1)]


def test_a_slow_link_leaves_devices_idle():
    layers = [Layer(1, 1000, 1000), Layer(1, 1000, 1000)]
    assert shape(pipedream(layers, 4, bandwidth_bytes_per_s=1)) == [(0, 1, 1)]


def test_what_does_not_fit_is_cut_where_it_does():
    layers = [Layer(1, 60, 0), Layer(1, 60, 0), Layer(1, 1, 0), Layer(1, 1, 0)]
    assert shape(pipedream(layers, 2, 1e9, replication=False)) == [(0, 1, 1), (2, 3, 1)]
    assert shape(pipedream(layers, 2, 1e9, memory_bytes=100, replication=False)) == [(0, 0, 1), (1, 3, 1)]


def test_where_nothing_can_be_stashed_one_stage_has_all_layers():
    layers = [Layer(1, 60, 0), Layer(1, 60, 0)]
    assert shape(pipedream(layers, 2, 1e9, memory_bytes=0)) == [(0, 1, 2)]


def test_two_branches_may_be_cut_side_by_side():
    """0 forks to 1 and 2, which join in 3. Behind a cut between the branches, both outputs cross it."""
    layers = [Layer(1, 1, 0), Layer(5, 10, 0), Layer(5, 20, 0), Layer(1, 1, 0)]
    edges = [(0, 1), (0, 2), (1, 3), (2, 3)]
    stages = pipedream(layers, 2, 10, replication=False, edges=edges)
    assert [stage.layers for stage in stages] == [(0, 1), (2, 3)]
    assert stages[0].transfer_s == pytest.approx(2 * (1 + 10) / 10)  # layer 0's output too, which layer 2 reads


def test_a_graph_with_too_many_cuts_is_cut_in_the_order_of_its_layers(monkeypatch):
    layers = [Layer(1, 1, 0), Layer(5, 100, 0), Layer(5, 0, 0), Layer(1, 1, 0)]
    edges = [(0, 1), (0, 2), (1, 3), (2, 3)]
    assert [stage.layers for stage in pipedream(layers, 2, 10, replication=False, edges=edges)] == [(0, 2), (1, 3)]
    monkeypatch.setattr(module, "MOST_CUTS", 3)
    assert [stage.layers for stage in pipedream(layers, 2, 10, replication=False, edges=edges)] == [(0,), (1, 2, 3)]


def test_bad_input():
    with pytest.raises(StepcastError, match="0 devices: a partition needs at least 1"):
        pipedream([Layer(1, 1, 1)], 0, 1)
    with pytest.raises(ValueError, match="edge 1 to 0"):
        pipedream([Layer(1, 1, 1)] * 2, 1, 1, edges=[(1, 0)])


@needs_profiles
def test_vgg16_on_four_devices_is_cut_as_by_the_authors():
    """Four devices at 1 GB/s: the convolutions up to the third pooling on three devices, the rest on one; 3.27 times as fast as one GPU."""
    names, layers, edges = read_profile(PROFILES / "vgg16.graph.txt")
    stages = pipedream(layers, 4, 1e9, edges=edges)
    assert [(names[stage.first], names[stage.last], stage.replicas) for stage in stages] == [
        ("node2", "node18", 3),
        ("node19", "node41", 1),
    ]
    assert sum(layer.seconds for layer in layers) / minibatch_seconds(stages) == pytest.approx(3.27, abs=0.005)


@needs_profiles
def test_vgg16_within_12_gb_is_no_worse_than_any_other_partition_that_fits():
    """The authors' stage of 13 GB of activations does not fit if the limit is applied, which their optimizer does only if told to."""
    _, layers, _ = read_profile(PROFILES / "vgg16.graph.txt")
    stages = pipedream(layers, 4, 1e9, 12e9)
    assert minibatch_seconds(stages) == pytest.approx(best_two_stages(layers, 4, 1e9, 12e9))
    assert minibatch_seconds(stages) > minibatch_seconds(pipedream(layers, 4, 1e9))


def best_two_stages(layers: list[Layer], devices: int, bandwidth: float, memory: float) -> float:
    """The best of one or two stages."""
    one = min(max(slowest([layers], (m,), bandwidth, memory)) for m in range(1, devices + 1))
    return min(
        one,
        *(
            max(slowest([layers[:cut], layers[cut:]], replicas, bandwidth, memory))
            for cut in range(1, len(layers))
            for replicas in product(range(1, devices), repeat=2)
            if sum(replicas) <= devices
        ),
    )


@needs_profiles
@pytest.mark.parametrize("model", ["resnet50", "gnmt"])
def test_graphs_with_branches_are_partitioned_too(model):
    _, layers, edges = read_profile(PROFILES / f"{model}.graph.txt")
    stages = pipedream(layers, 4, 1e9, edges=edges)
    assert sorted(number for stage in stages for number in stage.layers) == list(range(len(layers)))
    assert 1 < sum(layer.seconds for layer in layers) / minibatch_seconds(stages) <= 4
    place = {number: index for index, stage in enumerate(stages) for number in stage.layers}
    assert all(place[source] <= place[target] for source, target in edges)
