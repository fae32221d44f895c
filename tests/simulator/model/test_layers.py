"""Blocks from fork to merge, and layer paths ranked by their seconds: by hand, and against brute force."""

import json
import random
from itertools import pairwise

import networkx
import pytest

from simulator.model.job import Job
from simulator.model.layers import blocks, ranked_paths
from simulator.strategies.pytorch import joined

CHAIN = [(0, 1), (1, 2), (2, 3)]
RESIDUAL = [(0, 1), (1, 2), (2, 3), (0, 3)]
INCEPTION = [(0, 1), (0, 2), (2, 3), (0, 4), (4, 5), (1, 6), (3, 6), (5, 6)]


@pytest.mark.parametrize(
    ("count", "edges", "expected"),
    [
        (4, CHAIN, [[0, 1, 2, 3]]),
        (4, RESIDUAL, [[0, 1, 2, 3]]),
        (7, INCEPTION, [[0, 1, 2, 3, 4, 5, 6]]),
        (6, [(0, 1), (1, 2), (1, 3), (2, 4), (3, 4), (4, 5)], [[0], [1, 2, 3, 4], [5]]),
        # two blocks in a row: the merge of the first is the fork of the second
        (7, [(0, 1), (0, 2), (1, 3), (2, 3), (3, 4), (3, 5), (4, 6), (5, 6)], [[0, 1, 2, 3], [4, 5, 6]]),
        # nested: the inner fork and merge are no separators
        (6, [(0, 1), (1, 2), (1, 3), (2, 4), (3, 4), (0, 5), (4, 5)], [[0, 1, 2, 3, 4, 5]]),
        (4, [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)], [[0, 1, 2, 3]]),  # dense
        (3, [(0, 2), (1, 2)], [[0, 1, 2]]),  # two inputs
        (3, [(0, 1), (0, 2)], [[0, 1, 2]]),  # two ends
        (1, [], [[0]]),
        (0, [], []),
    ],
)
def test_blocks(count, edges, expected):
    assert blocks(count, edges) == expected


def test_paths_of_a_chain_a_residual_and_an_inception_block():
    assert ranked_paths(range(4), CHAIN, [1.0] * 4) == [[0, 1, 2, 3]]
    assert ranked_paths(range(4), RESIDUAL, [1.0] * 4) == [[0, 1, 2, 3]]  # the shortcut has no layer
    assert ranked_paths(range(7), INCEPTION, [1.0, 9.0, 1.0, 1.0, 2.0, 2.0, 1.0]) == [[0, 1, 6], [4, 5], [2, 3]]


def test_a_dense_block_is_one_path():
    """Every layer reads all layers before it: there are 2^10 paths, and the longest contains every layer."""
    edges = [(a, b) for a in range(12) for b in range(a + 1, 12)]
    assert ranked_paths(range(12), edges, [1.0] * 12) == [list(range(12))]


def test_of_two_paths_without_any_time_the_one_with_more_layers_is_longer():
    assert ranked_paths(range(4), [(0, 1), (1, 3), (0, 2), (2, 3), (1, 2)], [0.0] * 4) == [[0, 1, 2, 3]]


@pytest.mark.parametrize("seed", range(40))
def test_paths_equal_brute_force(seed):
    draw = random.Random(seed)
    count = draw.randint(2, 12)
    edges = [(a, b) for a in range(count) for b in range(a + 1, count) if draw.random() < 0.3]
    seconds = [float(draw.randint(0, 50)) for _ in range(count)]
    left = set(range(count))
    for path in ranked_paths(range(count), edges, seconds):
        graph = networkx.DiGraph([(a, b) for a, b in edges if a in left and b in left])
        graph.add_nodes_from(left)
        every = [
            candidate for a in left for b in left for candidate in ([[a]] if a == b else networkx.all_simple_paths(graph, a, b))
        ]  # paths are disjoint, so nodes of earlier paths are removed
        assert sum(seconds[n] for n in path) == max(sum(seconds[n] for n in candidate) for candidate in every)
        assert all(pair in edges for pair in pairwise(path))
        left -= set(path)
    assert not left


@pytest.mark.parametrize("seed", range(20))
def test_no_path_bypasses_a_block(seed):
    """Every edge stays in its block or leads to the next one."""
    draw = random.Random(seed)
    count = draw.randint(2, 20)
    edges = [(a, b) for a in range(count) for b in range(a + 1, min(count, a + 4)) if draw.random() < 0.5]
    result = blocks(count, edges)
    assert [node for block in result for node in block] == list(range(count))
    number = {node: i for i, block in enumerate(result) for node in block}
    assert all(number[b] - number[a] <= 1 for a, b in edges)


# The ops into which capture splits a backward op become one again.


def targets(graph) -> list[tuple[str, tuple[int, ...]]]:
    return [(op.body.target, op.body.outputs) for op in graph.ops if "convolution_backward" in op.body.target]


def test_gradients_of_one_convolution_come_from_one_op():
    """The first layer has no gradient by its input, so its op is as it was."""
    graph = Job("lenet5", 4).graph()
    conv = "aten.convolution_backward.default"
    assert targets(graph) == [(conv, (0,)), (conv, (1, 2)), (conv, (1, 2))]
    both = joined(graph)
    assert targets(both) == [(conv, (0, 1, 2)), (conv, (1, 2))]
    (op,) = (op for op in both.ops if op.body.outputs == (0, 1, 2))
    parts = [op for op in graph.ops if op.layer == "features.3" and op.body.target == conv]
    assert json.loads(op.body.args)[-1] == [True, True, True]
    assert [o.value for o in op.writes] == [o.value for part in parts for o in part.writes]
    assert op.body.flops == sum(part.body.flops for part in parts)
    assert len(both.ops) == len(graph.ops) - 1


def test_the_joint_op_moves_what_its_two_kernels_move():
    """Each kernel reads the gradient: that of dX beside the weight, that of dW and dB beside the input."""
    graph = Job("lenet5", 4).graph()
    (op,) = (op for op in joined(graph).ops if op.body.outputs == (0, 1, 2))
    parts = [part for part in graph.ops if part.layer == op.layer and part.body.target == op.body.target]
    gradient, inputs, weight = (operand.bytes for operand in op.reads)
    of_x, of_w = (sum(operand.bytes for operand in part.writes) for part in parts)
    assert [part.body.work(part).bytes for part in parts] == [gradient + weight + of_x, gradient + inputs + of_w]
    assert op.body.work(op).bytes == sum(part.body.work(part).bytes for part in parts)
    assert [each.body.least_kernels("gpu") for each in (op, *parts)] == [2, 1, 1]
