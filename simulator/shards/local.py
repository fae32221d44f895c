"""The ops of a layer as one worker runs them, forward and backward, on its own parts of all tensors.

A backward op is the local backward of the local forward op: it reads the worker's part of the output's gradient, the worker's copies of
what the forward op read and made, and its part of the parameters. It makes the gradient of the local copy, to which halos belong, and of
the part of the parameters. These are contributions: those of several workers to one element are added up elsewhere.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod

from simulator.graph import Op
from simulator.plan.task import Operand
from simulator.shards.backward import Served
from simulator.shards.boxes import Box, NotABoxError, behind_views, broadcast, shape_of, whole
from simulator.shards.configuration import Configuration
from simulator.shards.network import Network
from simulator.shards.regions import arguments_of, name_of, needed, output_of, rule_of, windows_of
from simulator.shards.strides import cut, dense, with_views


@dataclass(frozen=True, slots=True)
class LocalOp:
    """An op of the graph as a worker runs it. Its operands name values of the graph and have the shapes of the worker's parts of them.

    `index`: the op's number in the graph. `reads`: by input of `op`, the box of the value that the worker needs, which beyond the value is
    filled with `fill`. `writes`: by write, the box of the value that it makes; a gradient beyond the value is dropped. `sums`: every worker
    that holds a part of a parameter adds or copies its own contributions, because sums of contributions may be made in any order.
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
        network.shards[key] = tuple(_made(network, layer, configuration, worker))
    return network.shards[key]


def _made(network: Network, layer: int, configuration: Configuration, worker: int) -> list[LocalOp]:
    box = network.boxes(layer, configuration)[worker]
    maker = _Maker(network, configuration, box)
    ops = [maker.forward(index) for index in network.layers[layer].ops]
    for index in network.backward[layer]:
        local = maker.backward(index, network.served[index])
        if local is not None:
            ops.append(local)
        elif worker == 0:
            ops.append(maker.undivided(index))
    return ops


@dataclass
class _Local:
    """How a forward op runs on a part: by input the box that it sees, the new arguments, and what lies beyond an input."""

    boxes: list[Box | None]
    arguments: dict[int, object]
    fill: float = 0.0


class _Maker:
    def __init__(self, network: Network, configuration: Configuration, box: Box):
        self.network, self.graph, self.configuration, self.box = network, network.graph, configuration, box

    # --- forward

    def forward(self, index: int) -> LocalOp:
        op = self.graph.ops[index]
        if self.configuration.workers == 1 or rule_of(op) is None or self.network.only_counts(op):
            return self.undivided(index)
        part = self.network.of_op(index, self.box)
        local = self._of_forward(op, part)
        writes = [self._written(op, operand, part) for operand in op.writes]
        return self._op(index, local.boxes, writes, local.arguments, part, output_of(op), local.fill)

    def undivided(self, index: int) -> LocalOp:
        """The op on whole tensors."""
        op = self.graph.ops[index]
        return self._op(index, [whole(o.shape) for o in op.inputs], [whole(o.shape) for o in op.writes], {}, None, None, 0.0)

    def _written(self, op: Op, operand: Operand, part: Box) -> Box:
        """The box of a result: the part, its channels for statistics, or a scalar."""
        main = output_of(op)
        if operand.shape == main.shape and len(part) == len(main.shape):
            return part
        if len(operand.shape) == 1 and name_of(op) == "native_batch_norm":
            return (part[1],)
        return whole(operand.shape)

    def _of_forward(self, op: Op, part: Box) -> _Local:
        """How a forward op makes `part` of its output."""
        local = _Local(list(needed(op, part)), {})
        name = name_of(op)
        if name in ("convolution", "max_pool2d_with_indices", "avg_pool2d"):
            _pad(op, part, local)
        if name == "convolution":
            arguments = arguments_of(op)
            weight, groups = op.inputs[arguments[1]["$"]].shape, arguments[8]
            (first, end), outs = part[1], weight[0] // groups
            local.arguments[8] = max(1, (end - first) // outs)
        elif name == "_adaptive_avg_pool2d":
            source, out = op.inputs[0].shape, op.writes[0].shape
            seen = list(local.boxes[0])
            for dim in (2, 3):
                if part[dim] == (0, out[dim]):
                    seen[dim] = (0, source[dim])
            local.boxes[0] = tuple(seen)
            local.arguments[1] = list(shape_of(part)[2:])
        return local

    # --- backward

    def backward(self, index: int, what: Served) -> LocalOp | None:
        """The worker's part of a backward op; None if it has no rule for a part, so that one worker runs the op as it is."""
        op, forward = self.graph.ops[index], self.graph.ops[what.forward]
        rule = _BACKWARD.get(name_of(op))
        if self.configuration.workers == 1 or rule is None or not what.rule or rule_of(forward) is None:
            return None
        part = self.network.of_op(what.forward, self.box)
        try:
            if what.parameter:
                position = next(p for p, o in enumerate(forward.inputs) if o.value == what.parameter)
                held = self.network.needed(what.forward, self.box)[position]
                boxes = rule_of_elements(op, held)
                return self._op(index, *boxes, {}, held, op.writes[0], 0.0, sums=True)
            if what.sums:
                boxes = rule_of_elements(op, part)
                return self._op(index, *boxes, {}, part, op.writes[0], 0.0)
            reads, writes, arguments, fill = rule(_Backward(op, forward, part, self._of_forward(forward, part)))
            if name_of(op) == "ones_like":
                return self._share_of_mean(index)
            return self._op(index, reads, writes, arguments, part, output_of(forward), fill)
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
        operands, boxes, kept = [], [], {}
        for position, (operand, seen) in enumerate(zip(op.inputs, reads, strict=True)):
            if seen is None:
                continue
            kept[position] = len(operands)
            box, local = self._local(operand, seen)
            operands.append(local)
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
        if body.flops and part is not None and shape_of(part) != main.shape:
            body = replace(body, flops=body.flops * prod(shape_of(part)) / main.elements)
        reads, mutates = tuple(operands[:count]), tuple(operands[count:])
        local = Op(op.name, body, op.phase, op.layer, op.gradient, reads, tuple(made), mutates, op.view_calls)
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


def _rewritten(arguments: list, changes: dict[int, object], positions: dict[int, int]) -> str:
    """The arguments as JSON text with `changes` by position, and operands renumbered: those that are left out of lists as well."""

    def renumbered(item: object) -> object:
        if isinstance(item, list):
            return [renumbered(each) for each in item if not (isinstance(each, dict) and "$" in each and each["$"] not in positions)]
        return {"$": positions[item["$"]]} if isinstance(item, dict) and "$" in item else item

    return json.dumps([renumbered(changes.get(at, item)) for at, item in enumerate(arguments)], separators=(",", ":"))


def _pad(op: Op, part: Box, local: _Local) -> None:
    """Decide for each axis of a window whether the op pads by itself, or reads a copy that is padded already."""
    name, arguments = name_of(op), arguments_of(op)
    at = 0 if name != "convolution" else arguments[0]["$"]
    source, out, seen = op.inputs[at].shape, output_of(op).shape, list(local.boxes[at])
    paddings = []
    for dim, window in zip((2, 3), windows_of(op), strict=True):
        first, end = seen[dim]
        below, above = max(0, -first), max(0, end - source[dim])
        if part[dim] == (0, out[dim]):
            below, seen[dim] = window.padding, (0, source[dim])
        elif below == above:
            seen[dim] = (first + below, end - above)
        else:
            below = 0
        paddings.append(below)
    local.boxes[at] = tuple(seen)
    local.fill = float("-inf") if name.startswith("max") else 0.0
    if name == "convolution":
        local.arguments[4] = paddings
    elif paddings != [window.padding for window in windows_of(op)]:
        local.arguments[3] = paddings


@dataclass(frozen=True)
class _Backward:
    """A backward op, the forward op that it serves, the worker's part of its output, and how the worker ran it."""

    op: Op
    forward: Op
    part: Box
    local: _Local


_Boxes = tuple[list[Box | None], list[Box], dict[int, object], float]


def rule_of_elements(op: Op, box: Box) -> tuple[list[Box], list[Box]]:
    """The boxes of an op that makes each element from those at the same place. Raises NotABoxError if its shapes are others."""
    shape = op.writes[0].shape if op.writes else op.mutates[0].shape
    if len(shape) != len(box) or any(end > extent for (_, end), extent in zip(box, shape, strict=True)):
        raise NotABoxError(f"{op.name} makes {shape}, of which {box} is no part")

    def of(operand: Operand) -> Box:
        kept = box[len(box) - len(operand.shape) :]
        if len(operand.shape) > len(box) or any(e not in (1, n) for e, n in zip(operand.shape, shape[len(box) - len(kept) :], strict=True)):
            raise NotABoxError(f"{op.name} reads {operand.shape}")
        return broadcast(operand.shape, box)

    return [of(operand) for operand in op.inputs], [box for _ in op.writes]


def _elements(b: _Backward) -> _Boxes:
    """Element by element: on the part of the output, or of a mean on the input that it is made of."""
    box = b.local.boxes[0] if name_of(b.forward) == "mean" else b.part
    expected = b.forward.inputs[0].shape if name_of(b.forward) == "mean" else output_of(b.forward).shape
    if b.op.writes[0].shape != expected:
        raise NotABoxError(f"{b.op.name} makes {b.op.writes[0].shape}, not {expected}")
    return *rule_of_elements(b.op, box), {}, 0.0


def _sum(b: _Backward) -> _Boxes:
    """A sum of the output's gradient over whole dimensions."""
    (source,) = b.op.inputs
    if source.shape != output_of(b.forward).shape:
        raise NotABoxError(f"{b.op.name} sums {source.shape}")
    arguments = arguments_of(b.op)
    summed = {d % len(source.shape) for d in arguments[1]}
    kept = len(arguments) > 2 and arguments[2]
    box = [(0, 1) if d in summed else part for d, part in enumerate(b.part) if kept or d not in summed]
    return [b.part], [tuple(box)], {}, 0.0


def _matrix(b: _Backward) -> _Boxes:
    """One product of the gradient of a product [images, channels] with what the other factor was, for the first or the second factor."""
    *_, source, weight = (argument["$"] for argument in arguments_of(b.forward))
    images, channels = b.part
    inputs = (0, b.forward.inputs[source].shape[1])
    left, right = (argument["$"] for argument in arguments_of(b.op))
    saved = [position for position in (left, right) if b.op.inputs[position].value in {b.forward.inputs[p].value for p in (source, weight)}]
    if len(saved) != 1:
        raise NotABoxError(f"{b.op.name} is no product with a gradient")
    by_source = b.op.inputs[saved[0]].value == b.forward.inputs[source].value
    inner, outer = (images, channels) if by_source else (channels, images)
    gradient_is_left = saved[0] == right
    reads: list[Box | None] = [None, None]
    reads[left], reads[right] = ((outer, inner), (inner, inputs)) if gradient_is_left else ((inputs, inner), (inner, outer))
    made = (outer, inputs) if gradient_is_left else (inputs, outer)
    extents = {"images": b.forward.inputs[source].shape[0], "channels": output_of(b.forward).shape[1]}
    full = extents["channels" if by_source else "images"]
    if sorted(b.op.writes[0].shape) != sorted((full, inputs[1])):
        raise NotABoxError(f"{b.op.name} makes {b.op.writes[0].shape}")
    return reads, [made], {}, 0.0


def _convolution(b: _Backward) -> _Boxes:
    """convolution_backward(gradient, input, weight, ...)."""
    arguments, forward = arguments_of(b.op), arguments_of(b.forward)
    places = [forward[0]["$"], forward[1]["$"]]
    source, weight = (b.local.boxes[place] for place in places)
    reads: list[Box | None] = [None] * len(b.op.inputs)
    for argument, box in zip(arguments[:3], (b.part, source, weight), strict=True):
        reads[argument["$"]] = box
    made = {0: source, 1: weight, 2: (b.part[1],)}
    changes = {5: b.local.arguments[4], 9: b.local.arguments[8]}
    if arguments[3] not in (None, [0]):
        changes[3] = [b.part[1][1] - b.part[1][0]]
    return reads, [made[output] for output in b.op.body.outputs], changes, b.local.fill


def _pooling(at: int) -> Callable[[_Backward], _Boxes]:
    """The backward of a pooling (gradient, input, ...) whose padding is argument `at`."""

    def rule(b: _Backward) -> _Boxes:
        source = b.local.boxes[0]
        reads: list[Box | None] = [b.part] * len(b.op.inputs)
        reads[arguments_of(b.op)[1]["$"]] = source
        changes = {at: b.local.arguments[3]} if 3 in b.local.arguments else {}
        return reads, [source], changes, b.local.fill

    return rule


def _batch_norm(b: _Backward) -> _Boxes:
    def of(operand: Operand) -> Box:
        return b.part if len(operand.shape) == len(b.part) else (b.part[1],)

    return [of(operand) for operand in b.op.inputs], [of(operand) for operand in b.op.writes], {}, 0.0


def _loss(b: _Backward) -> _Boxes:
    """nll_loss_backward(gradient, input, target, ..., total weight): by images."""
    images = b.part[0]
    reads: list[Box | None] = [(images, *whole(operand.shape[1:])) if operand.shape else () for operand in b.op.inputs]
    return reads, [(images, *whole(b.op.writes[0].shape[1:]))], {}, 0.0


def _first_gradient(b: _Backward) -> _Boxes:
    """The gradient of the loss by itself."""
    return [whole(operand.shape) for operand in b.op.inputs], [whole(operand.shape) for operand in b.op.writes], {}, 0.0


_ELEMENTWISE = (
    "threshold_backward", "hardtanh_backward", "sigmoid_backward", "tanh_backward", "silu_backward", "gelu_backward", "leaky_relu_backward",
    "elu_backward", "hardswish_backward", "native_dropout_backward", "_log_softmax_backward_data", "add", "add_", "sub", "mul", "div",
    "neg", "clone",
)  # fmt: skip
_BACKWARD: dict[str, Callable[[_Backward], _Boxes]] = {
    **dict.fromkeys(_ELEMENTWISE, _elements),
    "ones_like": _first_gradient,
    "nll_loss_backward": _loss,
    "sum": _sum,
    "mm": _matrix,
    "convolution_backward": _convolution,
    "native_batch_norm_backward": _batch_norm,
    "max_pool2d_with_indices_backward": _pooling(4),
    "avg_pool2d_backward": _pooling(4),
    "_adaptive_avg_pool2d_backward": _pooling(-1),
}
