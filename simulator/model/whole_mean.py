"""The loss of a batch in parts as one mean over the whole batch, for losses that skip some targets, where the mean of the parts' means
differs.

The number that each part's loss is divided by becomes that of the whole batch over the number of parts, so that the mean of the parts'
losses is the loss of the batch. It is counted in the targets before the first forward, and summed over devices, as transformers does
(`num_items_in_batch`): gradients need no factor afterwards, and those of a part without targets are 0.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

from simulator.model.capture.gradients import live
from simulator.model.graph import NLL_MEANS, Count, Op, TrainingGraph, arguments_of
from simulator.plan.bodies.opcall import CAST, OpCall
from simulator.plan.task import BACKWARD, BUFFER, FORWARD, INPUT, SCRATCH, Operand, Value
from simulator.plan.tensors import contiguous
from traces.errors import Code, SchedcastError

#: What a loss is over the parts of a batch: the mean of their means, or one mean over the batch.
PARTS, BATCH = LOSS_MEANS = ("parts", "batch")
#: What the names of counted numbers begin with.
COUNT = "loss::count"
#: `reduction="sum"` in the arguments of a loss.
_SUM = 2
#: Reductions of what each sample has: they add up over the parts, or average.
_ADDS, _AVERAGES = frozenset({"aten.sum.default", "aten.sum.dim_IntList"}), frozenset({"aten.mean.default", "aten.mean.dim"})
#: Ops of one tensor: those that may follow a reduction in each part, and those of the whole batch's number, such as its least value.
_OF_PART = frozenset({CAST, "aten.mul.Tensor", "aten.mul.Scalar", "aten.div.Tensor", "aten.div.Scalar", "aten.neg.default"})
_OF_BATCH = frozenset({"aten.clamp.default", "aten.clamp_min.default", "aten.add.Tensor", "aten.add.Scalar"})
#: Ops that make a multiple of a mean, or of one tensor, or add it to others.
_SUMS = frozenset({"aten.add.Tensor", "aten.add.Scalar", "aten.sub.Tensor", "aten.stack.default", "aten.cat.default"})
_MULTIPLES = frozenset({*_OF_PART, *_ADDS, *_AVERAGES, "aten.clone.default"})


def with_whole_mean(graph: TrainingGraph, parts: int) -> TrainingGraph:
    """The graph of one of `parts` parts of a batch, with losses that have the mean of the whole batch.

    It is the same graph if the mean of the parts' means is the same. Raises SchedcastError for a mean whose number of targets does not
    add up over the parts.
    """
    counts: dict[str, Count] = {}
    whole: dict[str, Operand] = {}  # by value with the number of a part, that of the whole batch
    ops: list[Op] = []
    values, sizes = dict(graph.values), dict(graph.storage_bytes)

    def add(name: str, dtype: str, kind: str) -> Operand:
        value = values[name] = Value(name, (), (), dtype=dtype, device="", kind=kind)
        sizes[name] = value.operand().bytes
        return value.operand()

    def seen(operand: Operand) -> Operand:
        batch = whole.get(operand.value)
        return operand if batch is None else replace(operand, value=batch.value, dtype=batch.dtype)

    for index, op in enumerate(graph.ops):
        if index in graph.uneven_ops:
            _check_multiples(graph, index)
            means = op.body.target in NLL_MEANS
            number = (op.writes if means else op.reads)[1].value
            if number not in whole:
                name = f"{COUNT} {len(counts) + 1}" if counts else COUNT
                counts[name] = (_of_targets if means else _of_ratio)(graph, index, parts)
                whole[number] = add(name, op.writes[0].dtype, SCRATCH)
            if means:
                mean = op.writes[0]
                total = add(f"{mean.value}:sum", mean.dtype, graph.values[mean.value].kind)
                ops.append(replace(op, body=_with_argument(op.body, 3, _SUM), writes=(total, *op.writes[1:])))
                op = replace(op, name=f"{op.name}:mean", body=_call("div.Tensor", [{"$": 0}, {"$": 1}]), reads=(total, whole[number]))
                op = replace(op, writes=(mean,), view_calls=0)
        of_batch = op.phase == BACKWARD or index in graph.uneven_ops
        ops.append(replace(op, reads=tuple(seen(operand) for operand in op.reads)) if of_batch else op)
    return live(replace(graph, ops=tuple(ops), values=values, storage_bytes=sizes, counts=counts)) if counts else graph


def noted(graph: TrainingGraph, parts: int, repeats: bool) -> dict[str, object]:
    """What the semantics of a plan say about a loss that is divided by the numbers of `parts` parts: nothing if that is one mean.

    `repeats`: as in `Factory`; targets of built-in models are never skipped.
    """
    why, certain = graph.uneven if parts > 1 else ("", False)
    if not why or not (certain or repeats):
        return {}
    return {"loss": f"the mean of the means of {parts} parts of the batch, in which {why}, and not one mean over all"}


def _call(name: str, arguments: list) -> OpCall:
    return OpCall(f"aten.{name}", json.dumps(arguments, separators=(",", ":")))


def _with_argument(body: OpCall, position: int, value: object) -> OpCall:
    arguments = json.loads(body.args)
    arguments[position] = value
    return replace(body, args=json.dumps(arguments, separators=(",", ":")))


def _over(parts: int) -> OpCall:
    """Divides the whole batch's number by that of its parts."""
    return _call("div.Tensor", [{"$": 0}, parts])


def _of_targets(graph: TrainingGraph, index: int, parts: int) -> Count:
    """What a mean over targets is divided by: how many are not skipped, or their weights."""
    op = graph.ops[index]
    target, (*_, skipped) = op.reads[1], arguments_of(op)
    ops: list[Op] = []

    def made(name: str, arguments: list, reads: Sequence[Operand], shape: tuple[int, ...], dtype: str) -> Operand:
        write = Operand(f"{op.name}:{len(ops)}", shape, contiguous(shape), dtype)
        ops.append(Op(op.name, _call(name, arguments), FORWARD, layer=op.layer, reads=tuple(reads), writes=(write,)))
        return write

    one, two = {"$": 0}, {"$": 1}
    if len(op.reads) == 2:
        counted = made("ne.Scalar", [one, skipped], (target,), target.shape, "bool")
        counted = made("sum.default", [one], (counted,), (), "int64")
        return Count(tuple(ops), counted, (_over(parts),))
    weights = op.reads[2]
    ops += _slice(graph, index, weights)
    skips = made("eq.Scalar", [one, skipped], (target,), target.shape, "bool")
    known = made("masked_fill.Scalar", [one, two, 0], (target, skips), target.shape, target.dtype)
    own = made("index.Tensor", [one, [two]], (weights, known), target.shape, weights.dtype)
    own = made("masked_fill.Scalar", [one, two, 0.0], (own, skips), target.shape, weights.dtype)
    counted = made("sum.default", [one], (own,), (), weights.dtype)
    return Count(tuple(ops), counted, (_over(parts),))


def _of_ratio(graph: TrainingGraph, index: int, parts: int) -> Count:
    """What a quotient is divided by. Raises SchedcastError if it, or what is divided, is no sum over the samples, or mean of them."""
    op = graph.ops[index]
    made_by = {operand.value: each for each in graph.ops[:index] for operand in each.writes}
    dividend, counted = op.reads
    of_batch: list[OpCall] = []
    while (maker := made_by.get(counted.value)) is not None and maker.body.target in _OF_BATCH and len(maker.inputs) == 1:
        of_batch.insert(0, maker.body)
        counted = maker.reads[0]
    adds, averages = (all(_reduction(made_by, operand) in kinds for operand in (dividend, counted)) for kinds in (_ADDS, _AVERAGES))
    if not adds and not (averages and not of_batch):
        raise SchedcastError(
            f"--loss-mean {BATCH} needs a loss whose sum and number add up over the parts of the batch, and that of {op.name} is divided by"
            f" something else; divide a sum by a sum, as in (loss * mask).sum() / mask.sum(), or use --loss-mean {PARTS}",
            Code.MODEL,
        )
    return Count(_slice(graph, index, counted), counted, (*of_batch, _over(parts)))


def _check_multiples(graph: TrainingGraph, index: int) -> None:
    """Raise SchedcastError if the loss is not a multiple of a mean, to which other losses may be added."""
    storage = {name: value.storage for name, value in graph.values.items()}
    of_mean = {storage[graph.ops[index].writes[0].value]}
    following = [op for op in graph.ops[index + 1 :] if op.phase == FORWARD]
    for op in following:
        if not of_mean.isdisjoint(storage[o.value] for o in op.inputs):
            of_mean |= {storage[o.value] for o in (*op.writes, *op.mutates)}
    of_loss = {storage[graph.loss]}
    for op in reversed(following):
        if not of_loss.isdisjoint(storage[o.value] for o in (*op.writes, *op.mutates)):
            of_loss |= (inputs := {storage[o.value] for o in op.inputs})
            alone = op.body.target in _MULTIPLES and len(op.inputs) == 1
            if op.body.target not in _SUMS and not alone and not of_mean.isdisjoint(inputs):
                raise SchedcastError(
                    f"--loss-mean {BATCH} needs a loss that is a sum of means, and {op.name} makes something else of one; use --loss-mean"
                    f" {PARTS}",
                    Code.MODEL,
                )


def _reduction(made_by: Mapping[str, Op], operand: Operand) -> str:
    """The op that reduces what samples have to a scalar; that of a loss which is a sum counts as a sum. Empty if there is none."""
    while (maker := made_by.get(operand.value)) is not None:
        if maker.body.target in NLL_MEANS and arguments_of(maker)[3] == _SUM:
            return min(_ADDS)
        if maker.body.target not in _OF_PART or len(maker.inputs) != 1:
            return maker.body.target
        operand = maker.reads[0]
    return ""


def _slice(graph: TrainingGraph, index: int, operand: Operand) -> tuple[Op, ...]:
    """The ops before one that make an operand, in order, down to what is fed or carried."""
    storage = {name: value.storage for name, value in graph.values.items()}
    given = {value.storage for value in graph.values.values() if value.kind in (INPUT, BUFFER)}
    needed, ops = {storage[operand.value]} - given, []
    for op in reversed(graph.ops[:index]):
        if not needed.isdisjoint(storage[o.value] for o in (*op.writes, *op.mutates)):
            ops.append(op)
            needed |= {storage[o.value] for o in op.inputs} - given
    return tuple(reversed(ops))
