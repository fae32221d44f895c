"""Joins the ops into which capture splits a backward op (dX, and dW with dB), so that the graph has the op that autograd issues."""

import json
from dataclasses import replace

from simulator.model.graph import Op, TrainingGraph
from simulator.plan.bodies.masked_backward import KERNELS
from simulator.plan.bodies.opcall import OpCall


def joined(graph: TrainingGraph) -> TrainingGraph:
    """The graph in which neighbors that differ only in their `output_mask` are one op, with the results of both."""
    ops: list[Op] = []
    for op in graph.ops:
        other = _join(ops[-1], op) if ops else None
        if other is None:
            ops.append(op)
        else:
            ops[-1] = other
    return replace(graph, ops=tuple(ops))


def _join(first: Op, second: Op) -> Op | None:
    """One op with the results of both; None if they are not parts of one op."""
    a, b = first.body, second.body
    same = a.target == b.target and a.kwargs == b.kwargs and first.reads == second.reads and first.layer == second.layer
    if a.target not in KERNELS or not same or set(a.outputs) & set(b.outputs):
        return None
    *arguments, mask = json.loads(a.args)
    *others, other_mask = json.loads(b.args)
    if arguments != others:
        return None
    both = [mine or yours for mine, yours in zip(mask, other_mask, strict=True)]
    written = dict(sorted([*zip(a.outputs, first.writes, strict=True), *zip(b.outputs, second.writes, strict=True)]))
    args = json.dumps([*arguments, both], separators=(",", ":"))
    body = OpCall(a.target, args, a.kwargs, tuple(written), a.flops + b.flops, a.launches)
    return replace(first, body=body, writes=tuple(written.values()), view_calls=first.view_calls + second.view_calls)
