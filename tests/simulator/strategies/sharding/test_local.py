"""The ops of a layer as one worker runs them."""

import pytest

from simulator.model.job import Job
from simulator.strategies.sharding.configuration import Configuration
from simulator.strategies.sharding.local import local_ops
from simulator.strategies.sharding.network import Network


@pytest.fixture(scope="module")
def alexnet():
    return Network(Job("alexnet", 16).graph())


def named(network, name):
    return next(number for number, layer in enumerate(network.layers) if layer.name == name)


def test_one_worker_runs_the_ops_of_the_graph(alexnet):
    own = [op for layer in range(len(alexnet.layers)) for op in local_ops(alexnet, layer, Configuration(), 0)]
    assert {op.name: op for op in own} == {op.name: op for op in alexnet.graph.ops}


@pytest.mark.parametrize("text", ["n=4", "c=4", "n=2,c=2"])
def test_workers_divide_the_flops_of_a_layer(alexnet, text):
    configuration, layer = Configuration.parse(text), named(alexnet, "features.3")
    whole = sum(op.body.flops for op in local_ops(alexnet, layer, Configuration(), 0))
    for worker in range(4):
        assert sum(op.body.flops for op in local_ops(alexnet, layer, configuration, worker)) == whole / 4


def test_a_worker_with_half_the_channels_reads_all_inputs_and_half_the_weights(alexnet):
    forward, relu, drop, *_, weight, bias = local_ops(alexnet, named(alexnet, "classifier.1"), Configuration(c=2), 1)
    assert [operand.shape for operand in forward.reads] == [(2048,), (16, 9216), (9216, 2048)]
    assert forward.writes[0].shape == relu.mutates[0].shape == drop.writes[0].shape == (16, 2048)
    assert drop.body.kwargs == '{"part":{"of":[16,4096],"box":[[0,16],[2048,4096]]}}'
    assert weight.writes[0].shape == (2048, 9216)
    assert bias.writes[0].shape == (1, 2048)


def test_padding_on_one_side_is_part_of_the_copy_and_padding_on_both_is_the_ops(alexnet):
    upper = local_ops(alexnet, named(alexnet, "features.3"), Configuration(h=3), 0)[0]  # 27 rows, kernel 5, padding 2
    middle = local_ops(alexnet, named(alexnet, "features.3"), Configuration(h=3), 1)[0]
    assert upper.reads[0].shape == (16, 64, 13, 27) == middle.reads[0].shape
    assert upper.body.args == middle.body.args == '[{"$":0},{"$":1},{"$":2},[1,1],[0,2],[1,1],false,[0,0],1]'


def test_the_gradient_of_the_loss_is_divided_among_its_workers(alexnet):
    ops = local_ops(alexnet, named(alexnet, "loss"), Configuration(n=4), 3)
    assert [op.body.args for op in ops if op.body.target == "aten.full_like.default"] == ['[{"$":0},0.25]']
