"""The ops of a layer as one worker runs them, forward and backward, on its own parts of all tensors.

A backward op is the local backward of the local forward op: it reads the worker's part of the output's gradient, the worker's copies of
what the forward op read and made, and its part of the parameters. It makes the gradient of the local copy, to which halos belong, and of
the part of the parameters. These are contributions: those of several workers to one element are added up elsewhere.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from simulator.model.graph import Op, arguments_of
from simulator.plan.ops import row
from simulator.plan.task import AGAIN, Operand
from simulator.plan.views import NotABoxError, dense, with_views
from simulator.strategies.sharding.backward import Served
from simulator.strategies.sharding.boxes import Box, behind_views, cut, shape_of, whole
from simulator.strategies.sharding.configuration import Configuration
from simulator.strategies.sharding.network import Network
from simulator.strategies.sharding.regions import name_of, output_of, rule_of
from simulator.strategies.sharding.rules import BACKWARD, BackwardOp, local_forward, rule_of_elements


@dataclass(frozen=True, slots=True)
class LocalOp:
    """An op of the graph as a worker runs it. Its operands name values of the graph and have the shapes of the worker's parts of them.

    `index`: the op's number in the graph. `reads`: by input of `op`, the box of the value that the worker needs, which beyond the value is
    filled with `fill`. `writes`: by write, the box of the value that it makes; a gradient beyond the value is dropped. `sums`: every worker
    that stores a part of a parameter adds or copies its own contributions, because sums of contributions may be made in any order.
    """

    index: int
    op: Op
    reads: tuple[Box, ...]
    writes: tuple[Box, ...]
    fill: float = 0.0
    sums: bool = False


def local_ops(network: Network, layer: int, configuration: Configuration, worker: int) -> tuple[Op, ...]:
    """The ops of a layer as worker `worker` runs them, forward, then backward. Shapes, arguments and FLOPs are those of its parts."""
    return tuple(each.op for each in shard(network, layer, configuration, worker))


def shard(network: Network, layer: int, configuration: Configuration, worker: int) -> tuple[LocalOp, ...]:
    """The worker's ops with the boxes of their operands, in the order of the graph.

    They are made once, because plans that are compared have many in common.
    """
    key = (layer, configuration, worker)
    if key not in network.shards:
        maker = _Maker(network, configuration, network.boxes(layer, configuration)[worker])
        ops = [maker.forward(index) for index in (*network.layers[layer].ops, *network.repeated[layer])]
        for index in network.backward[layer]:
            local = maker.backward(index, network.served[index])
            if local is not None:
                ops.append(local)
            elif worker == 0:
                ops.append(maker.undivided(index))
        network.shards[key] = tuple(ops)
    return network.shards[key]


class _Maker:
    def __init__(self, network: Network, configuration: Configuration, box: Box):
        self.network, self.graph, self.configuration, self.box = network, network.graph, configuration, box

    # --- forward

    def forward(self, index: int) -> LocalOp:
        op = self.graph.ops[index]
        if self.configuration.workers == 1 or rule_of(op) is None or self.network.only_counts(op):
            return self.undivided(index)
        part = self.network.of_op(index, self.box)
        local = local_forward(op, part)
        writes = [self._written(op, operand, part) for operand in op.writes]
        return self._op(index, local.boxes, writes, arguments=local.arguments, part=part, main=output_of(op), fill=local.fill)

    def undivided(self, index: int) -> LocalOp:
        """The op on whole tensors."""
        op = self.graph.ops[index]
        return self._op(
            index, [whole(o.shape) for o in op.inputs], [whole(o.shape) for o in op.writes], arguments={}, part=None, main=None, fill=0.0
        )

    def _written(self, op: Op, operand: Operand, part: Box) -> Box:
        """The box of a result: the part, its channels for statistics, or a scalar."""
        main = output_of(op)
        if operand.shape == main.shape and len(part) == len(main.shape):
            return part
        if len(operand.shape) == 1 and row(op.body.target).running:
            return (part[1],)
        return whole(operand.shape)

    # --- backward

    def backward(self, index: int, what: Served) -> LocalOp | None:
        """The worker's part of a backward op; None if it has no rule for a part, so that one worker runs the op as it is."""
        op, forward = self.graph.ops[index], self.graph.ops[what.forward]
        if self.configuration.workers == 1 or not what.rule or rule_of(forward) is None or name_of(op) not in (*BACKWARD, "ones_like"):
            return None
        if name_of(op) == "ones_like":
            return self._share_of_mean(index)
        part = self.network.of_op(what.forward, self.box)
        try:
            if what.parameter:
                position = next(p for p, o in enumerate(forward.inputs) if o.value == what.parameter)
                own = self.network.needed(what.forward, self.box)[position]
                if own is None:
                    raise ValueError(f"{op.name} adds gradients of {what.parameter}, of which a worker of {forward.name} needs nothing")
                part = own
            if what.parameter or what.sums:
                return self._op(index, *rule_of_elements(op, part), {}, part, op.writes[0], 0.0, sums=bool(what.parameter))
            local = local_forward(forward, part)
            reads, writes, arguments, fill = BACKWARD[name_of(op)](BackwardOp(_of_first(op), forward, part, local))
            return self._op(index, reads, writes, arguments=arguments, part=part, main=output_of(forward), fill=fill)
        except NotABoxError:
            return None

    def _share_of_mean(self, index: int) -> LocalOp:
        """The gradient of the loss by the mean over a worker's images: the loss is the mean over the workers."""
        op = self.graph.ops[index]
        one = self.undivided(index)
        body = replace(op.body, target="aten.full_like.default", args=f'[{{"$":0}},{1 / self.configuration.workers!r}]')
        return replace(one, op=replace(one.op, body=body))

    # --- the op

    def _op(
        self,
        index: int,
        reads: Sequence[Box | None],
        writes: Sequence[Box],
        arguments: dict[int, object],
        part: Box | None,
        main: Operand | None,
        fill: float,
        sums: bool = False,
    ) -> LocalOp:
        """The local form of an op. `reads`: by input, the box that it sees after views. `part` of `main`: what its FLOPs depend on."""
        op = self.graph.ops[index]
        operands: list[Operand] = []
        boxes: list[Box] = []
        kept: dict[int, int] = {}
        for position, (operand, seen) in enumerate(zip(op.inputs, reads, strict=True)):
            if seen is None:
                continue
            kept[position] = len(operands)
            box, own = self._local(operand, seen)
            operands.append(own)
            boxes.append(box)
        count = sum(1 for position in kept if position < len(op.reads))
        made = []
        for operand, box in zip(op.writes, writes, strict=True):
            value = self.graph.values[operand.value]
            shape = shape_of(box)
            part_of = Operand(operand.value, shape, dense(shape, value.strides), operand.dtype, operand.views)
            made.append(operand if shape == operand.shape else part_of)
        body = op.body
        if arguments or len(kept) < len(op.inputs):
            body = replace(body, args=_rewritten(arguments_of(op), arguments, kept))
        if name_of(op) == "native_dropout" and part is not None and part != whole(output_of(op).shape):
            of = {"of": list(output_of(op).shape), "box": [list(each) for each in part]}
            body = replace(body, kwargs=json.dumps({"part": of}, separators=(",", ":")))
        if body.flops and part is not None and main is not None and shape_of(part) != main.shape:
            body = replace(body, flops=body.flops * prod(shape_of(part)) / main.elements)
        read, mutated = tuple(operands[:count]), tuple(operands[count:])
        local = Op(
            op.name,
            body,
            op.phase,
            layer=op.layer,
            gradient=op.gradient,
            reads=read,
            writes=tuple(made),
            mutates=mutated,
            view_calls=op.view_calls,
        )
        return LocalOp(index, local, tuple(boxes), tuple(writes), fill, sums)

    def _local(self, operand: Operand, seen: Box) -> tuple[Box, Operand]:
        """The box of the value behind a box of an operand, and the operand of that box alone.

        If what the box views is no box, it is the smallest one that can be viewed, and the operand is cut out of its view.
        """
        value = self.graph.values[operand.value]
        images = (seen[0], *whole(operand.shape[1:])) if seen else seen
        for wanted in dict.fromkeys((seen, images)):
            try:
                box, steps = behind_views(operand, value.shape, wanted)
                if box == whole(value.shape) and wanted == whole(operand.shape):
                    steps, local = operand.views, operand
                else:
                    strides = value.strides if box == whole(value.shape) else dense(shape_of(box), value.strides)
                    local = with_views(Operand(operand.value, shape_of(box), strides, operand.dtype), steps)
                if wanted != seen:
                    local = cut(local, [(a - c, b - c) for (a, b), (c, _) in zip(seen, wanted, strict=True)])
                return box, local
            except NotABoxError:
                continue
        return whole(value.shape), operand if seen == whole(operand.shape) else cut(operand, seen)


def _of_first(op: Op) -> Op:
    """A backward op as if it read what the first forward made in the place of what is repeated."""
    if not any(AGAIN in operand.value for operand in op.reads):
        return op
    return replace(op, reads=tuple(replace(operand, value=operand.value.replace(AGAIN, "")) for operand in op.reads))


def _rewritten(arguments: list, changes: dict[int, object], positions: dict[int, int]) -> str:
    """The arguments as JSON text with `changes` by position, and operands renumbered, including those that are removed from lists."""

    def renumbered(item: object) -> object:
        if isinstance(item, list):
            return [renumbered(each) for each in item if not (isinstance(each, dict) and "$" in each and each["$"] not in positions)]
        return {"$": positions[item["$"]]} if isinstance(item, dict) and "$" in item else item

    return json.dumps([renumbered(changes.get(at, item)) for at, item in enumerate(arguments)], separators=(",", ":"))
