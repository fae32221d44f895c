"""The ops into which capture splits a backward op become one again."""

import json

from simulator.model.job import Job
from simulator.strategies.pytorch import joined


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
