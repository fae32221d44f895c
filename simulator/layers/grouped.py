"""Grouped convolutions as one op per group, so that groups can run side by side, and an op that puts their results together."""

import json
from collections.abc import Iterator
from dataclasses import replace

from simulator.bodies.opcall import OpCall
from simulator.graph import Op, TrainingGraph
from simulator.plan.task import DTYPE_BYTES, SCRATCH, Operand, Value, ViewStep
from simulator.plan.views import contiguous

#: Convolutions of more groups, such as depthwise ones, are left whole: their groups are too small to run by themselves.
MOST_GROUPS = 4
_FORWARD, _BACKWARD = "aten.convolution.default", "aten.convolution_backward.default"
#: Positions of arguments: bias sizes (backward), whether transposed, groups.
_BIAS_SIZES, _TRANSPOSED, _GROUPS = 3, {_FORWARD: 6, _BACKWARD: 7}, {_FORWARD: 8, _BACKWARD: 9}


def split_groups(graph: TrainingGraph) -> tuple[TrainingGraph, dict[str, int]]:
    """The graph with convolutions of 2 to MOST_GROUPS groups split, and the group that each op of a part belongs to, by its name.

    Values laid out channels last are left as they are: a slice of them has no channels of its own.
    """
    values, sizes, group_of = dict(graph.values), dict(graph.storage_bytes), {}
    ops: list[Op] = []
    for op in graph.ops:
        args = json.loads(op.body.args) if op.body.target in _GROUPS else None
        if args is None or not 2 <= args[_GROUPS[op.body.target]] <= MOST_GROUPS or not _splittable(op, args):
            ops.append(op)
            continue
        groups = args[_GROUPS[op.body.target]]
        parts = [_part(op, args, group, groups) for group in range(groups)]
        for group, part in enumerate(parts):
            group_of[part.name] = group
            for operand in part.writes:
                values[operand.value] = Value(operand.value, operand.shape, operand.strides, operand.dtype, "", SCRATCH, operand.value)
                sizes[operand.value] = operand.elements * DTYPE_BYTES[operand.dtype]
        ops += parts
        ops += _joined(op, parts)
    return replace(graph, ops=tuple(ops), values=values, storage_bytes=sizes), group_of


def _splittable(op: Op, args: list) -> bool:
    plain = all(_contiguous(operand) for operand in op.writes)
    return plain and not args[_TRANSPOSED[op.body.target]]


def _contiguous(operand: Operand) -> bool:
    return operand.strides == contiguous(operand.shape)


def _part(op: Op, args: list, group: int, groups: int) -> Op:
    """One group's convolution: its channels of activations, its rows of weight and bias."""
    args = list(args)
    args[_GROUPS[op.body.target]] = 1
    if op.body.target == _BACKWARD:
        args[_BIAS_SIZES] = [size // groups for size in args[_BIAS_SIZES]]
        by_rows = (2,)  # gradient, activation, weight
    else:
        by_rows = (1, 2)  # activation, weight, bias
    reads = tuple(_slice(operand, 0 if i in by_rows else 1, group, groups) for i, operand in enumerate(op.reads))
    writes = tuple(_own(op, place, operand, group, groups) for place, operand in enumerate(op.writes))
    body = replace(op.body, args=json.dumps(args, separators=(",", ":")), flops=op.body.flops / groups)
    return replace(op, name=f"{op.name}/group{group}", body=body, reads=reads, writes=writes)


def _slice(operand: Operand, dim: int, group: int, groups: int) -> Operand:
    extent = operand.shape[dim] // groups
    shape = (*operand.shape[:dim], extent, *operand.shape[dim + 1 :])
    view = ViewStep("aten.slice.Tensor", json.dumps([dim, group * extent, (group + 1) * extent]))
    return replace(operand, shape=shape, views=(*operand.views, view))


def _own(op: Op, place: int, operand: Operand, group: int, groups: int) -> Operand:
    """The group's part of a result, as a value of its own."""
    dim = _joined_on(op, place)
    shape = (*operand.shape[:dim], operand.shape[dim] // groups, *operand.shape[dim + 1 :])
    return Operand(f"{operand.value}/group{group}", shape, contiguous(shape), operand.dtype)


def _joined_on(op: Op, place: int) -> int:
    """Results of forward and the gradient by activation have the channels second; gradients of weight and bias have them first."""
    return 1 if op.body.target == _FORWARD or op.body.outputs[place] == 0 else 0


def _joined(op: Op, parts: list[Op]) -> Iterator[Op]:
    """An op per result that puts the groups' parts together."""
    for place, operand in enumerate(op.writes):
        pieces = tuple(part.writes[place] for part in parts)
        args = json.dumps([[{"$": i} for i in range(len(pieces))], _joined_on(op, place)], separators=(",", ":"))
        name = f"{op.name}/join" + (f":{op.body.outputs[place]}" if place else "")
        yield replace(op, name=name, body=OpCall("aten.cat.default", args), reads=pieces, writes=(operand,))
