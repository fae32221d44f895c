"""Splits grouped convolutions into one op per group, so that groups can run concurrently, and an op that concatenates their results."""

import json
from collections.abc import Iterator
from dataclasses import replace

from simulator.model.graph import Op, TrainingGraph
from simulator.plan.bodies.opcall import OpCall
from simulator.plan.task import DTYPE_BYTES, SCRATCH, Operand, Value, ViewStep
from simulator.plan.views import contiguous

#: Convolutions with more groups are not split: their groups are too small to run separately.
MOST_GROUPS = 4
_FORWARD, _BACKWARD = "aten.convolution.default", "aten.convolution_backward.default"
#: Positions of the arguments bias sizes (backward), transposed, and groups.
_BIAS_SIZES, _TRANSPOSED, _GROUPS = 3, {_FORWARD: 6, _BACKWARD: 7}, {_FORWARD: 8, _BACKWARD: 9}


def split_groups(graph: TrainingGraph) -> tuple[TrainingGraph, dict[str, int]]:
    """The graph with convolutions of 2 to MOST_GROUPS groups split, and the group of each op of a split convolution, by op name.

    Convolutions of values in channels-last layout are not split, because a slice of channels would not be contiguous. Depthwise ones are
    not either: they have kernels of their own, and oneDNN's backward for a single channel writes out of bounds if the filter is longer
    than the image (65 x 1 on 32 x 32, PyTorch 2.13).
    """
    values, sizes, group_of = dict(graph.values), dict(graph.storage_bytes), {}
    ops: list[Op] = []
    for op in graph.ops:
        args = json.loads(op.body.args) if op.body.target in _GROUPS else None
        if args is None or not 2 <= args[_GROUPS[op.body.target]] <= MOST_GROUPS or not _splittable(op, args):
            ops.append(op)
            continue
        groups = args[_GROUPS[op.body.target]]
        group_ops = [_group_op(op, args, group, groups) for group in range(groups)]
        for group, group_op in enumerate(group_ops):
            group_of[group_op.name] = group
            for operand in group_op.writes:
                values[operand.value] = Value(operand.value, operand.shape, operand.strides, operand.dtype, "", SCRATCH, operand.value)
                sizes[operand.value] = operand.elements * DTYPE_BYTES[operand.dtype]
        ops += group_ops
        ops += _concatenations(op, group_ops)
    return replace(graph, ops=tuple(ops), values=values, storage_bytes=sizes), group_of


def _splittable(op: Op, args: list) -> bool:
    contiguous_results = all(_contiguous(operand) for operand in op.writes)
    weight = op.reads[2 if op.body.target == _BACKWARD else 1]
    return contiguous_results and weight.shape[1] > 1 and not args[_TRANSPOSED[op.body.target]]


def _contiguous(operand: Operand) -> bool:
    return operand.strides == contiguous(operand.shape)


def _group_op(op: Op, args: list, group: int, groups: int) -> Op:
    """The convolution of one group: its channels of the activations, its rows of weight and bias."""
    args = list(args)
    args[_GROUPS[op.body.target]] = 1
    if op.body.target == _BACKWARD:
        args[_BIAS_SIZES] = [size // groups for size in args[_BIAS_SIZES]]
        by_rows = (2,)  # gradient, activation, weight
    else:
        by_rows = (1, 2)  # activation, weight, bias
    reads = tuple(_slice(operand, 0 if i in by_rows else 1, group, groups) for i, operand in enumerate(op.reads))
    writes = tuple(_group_result(op, place, operand, group, groups) for place, operand in enumerate(op.writes))
    body = replace(op.body, args=json.dumps(args, separators=(",", ":")), flops=op.body.flops / groups)
    return replace(op, name=f"{op.name}/group{group}", body=body, reads=reads, writes=writes)


def _slice(operand: Operand, dim: int, group: int, groups: int) -> Operand:
    extent = operand.shape[dim] // groups
    shape = (*operand.shape[:dim], extent, *operand.shape[dim + 1 :])
    view = ViewStep("aten.slice.Tensor", json.dumps([dim, group * extent, (group + 1) * extent]))
    return replace(operand, shape=shape, views=(*operand.views, view))


def _group_result(op: Op, place: int, operand: Operand, group: int, groups: int) -> Operand:
    """The slice of a result that one group computes, as a new contiguous value."""
    dim = _channel_dim(op, place)
    shape = (*operand.shape[:dim], operand.shape[dim] // groups, *operand.shape[dim + 1 :])
    return Operand(f"{operand.value}/group{group}", shape, contiguous(shape), operand.dtype)


def _channel_dim(op: Op, place: int) -> int:
    """Dimension of a result's channels: 1 for the forward result and the gradient by activation, 0 for gradients of weight and bias."""
    return 1 if op.body.target == _FORWARD or op.body.outputs[place] == 0 else 0


def _concatenations(op: Op, group_ops: list[Op]) -> Iterator[Op]:
    """One op per result that concatenates the results of the groups."""
    for place, operand in enumerate(op.writes):
        pieces = tuple(group_op.writes[place] for group_op in group_ops)
        args = json.dumps([[{"$": i} for i in range(len(pieces))], _channel_dim(op, place)], separators=(",", ":"))
        name = f"{op.name}/join" + (f":{op.body.outputs[place]}" if place else "")
        yield replace(op, name=name, body=OpCall("aten.cat.default", args), reads=pieces, writes=(operand,))
