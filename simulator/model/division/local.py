"""The tensors and ops of one device: the versions of each value of the graph there, and the collectives that convert them."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod

from simulator.model.division.placement import PARTIAL, WHOLE, Placement, before, behind
from simulator.model.graph import Op, TrainingGraph, arguments_of
from simulator.plan.bodies.opcall import ATTENTION, DROPOUT, OpCall
from simulator.plan.task import DTYPE_BYTES, SCRATCH, Operand, Value, ViewStep
from simulator.plan.tensors import contiguous, extent_bytes, part
from simulator.plan.views import NotABoxError, dense, view_step, with_views

#: Groups of devices that divide tokens, those that divide layers, and those that divide experts.
CONTEXT, TENSOR, EXPERTS = "context", "tensor", "experts"
#: Collectives among the ops of a device's graph, as `schedcast.NAME.GROUP`. All devices of the group run them together; only strategies
#: know who these are.
COLLECTIVES = frozenset(
    {f"schedcast.{name}.{group}" for name in ("all_reduce", "all_gather", "reduce_scatter") for group in (CONTEXT, TENSOR)}
    | {f"schedcast.all_to_all.{EXPERTS}"}
)
_CLONE = OpCall("aten.clone.default", '[{"$":0}]', '{"memory_format":{"memory_format":"contiguous_format"}}')


class LocalTensors:
    """Collects the values and ops of a device. `versions`: by value of the graph and placement, the operand with that placement."""

    def __init__(self, graph: TrainingGraph, degree: int, rank: int, group: str = TENSOR):
        self.graph, self.degree, self.rank, self.group = graph, degree, rank, group
        self.versions: dict[str, dict[Placement, Operand]] = {}
        self.shapes = {name: value.shape for name, value in graph.values.items()}
        self.values: dict[str, Value] = {}
        self.storage_bytes: dict[str, int] = {}
        self.ops: list[Op] = []
        self._held: dict[str, Placement] = {}
        self._serving: Op | None = None
        #: Results that only their own backward kernels read, some by address: these must have no gaps.
        self._opaque = {o.value for op in graph.ops for at, o in zip(op.body.outputs, op.writes, strict=True) if at in op.body.opaque}
        made, trained = {operand.value for op in graph.ops for operand in op.writes}, frozenset(graph.parameters)
        for name in graph.values.keys() - made - trained:
            self.hold(name, WHOLE)

    def serve(self, op: Op) -> None:
        """Give what is added from here on the phase and the layer of an op."""
        self._serving = op

    def held(self, parameter: str) -> Placement:
        """The placement of a parameter. A parameter that no op uses is whole."""
        if parameter not in self.versions:
            self.hold(parameter, WHOLE)
        return self._held[parameter]

    def hold(self, parameter: str, placement: Placement) -> None:
        """Place a parameter, or another tensor of the job, as `placement` says."""
        value = self.graph.values[parameter]
        self._held[parameter] = placement
        if placement.dim is None:
            self._add(value, self.graph.storage_bytes[value.storage])
            self.versions[parameter] = {placement: value.operand()}
            return
        source = self._cut(value.operand(), placement)
        strides = contiguous(source.shape) if len(placement.blocks) > 1 else dense(source.shape, value.strides)
        own = replace(value, shape=source.shape, strides=strides, source=source)
        self._add(own, extent_bytes(own))
        self.versions[parameter] = {placement: self._joined(own.operand(), parameter, placement)}

    def cast(self, op: Op) -> None:
        """Add an op that casts the device's part of a parameter."""
        parameter, made = op.reads[0].value, op.writes[0]
        placement, source = self._held[parameter], self.values[parameter]
        own = replace(self.graph.values[made.value], shape=source.shape, strides=source.strides)
        self._add(own, extent_bytes(own))
        self.ops.append(replace(op, reads=(source.operand(),), writes=(own.operand(),)))
        self.versions[made.value] = {placement: self._joined(own.operand(), parameter, placement)}

    def _joined(self, held: Operand, parameter: str, placement: Placement) -> Operand:
        """A parameter, or its cast, whose parts of blocks are seen one behind another."""
        shape = placement.local(self.shapes[parameter], self.degree)
        return held if held.shape == shape else with_views(held, [_view(shape)])

    def values_of(self, op: Op) -> None:
        """Know the shapes of results that the graph does not have."""
        for operand in op.writes:
            self.shapes.setdefault(operand.value, operand.shape)

    # --- ops

    def add(self, op: Op, inputs: Sequence[Placement], placements: Sequence[Placement], parts: int) -> None:
        """Add an op whose inputs and results are placed so. `parts`: how many devices share its FLOPs."""
        reads = [self.placed(op, operand, wanted) for operand, wanted in zip(op.inputs, inputs, strict=True)]
        writes = tuple(self.written(operand, placement) for operand, placement in zip(op.writes, placements, strict=True))
        body = op.body
        if parts > 1:
            body = replace(body, flops=body.flops / parts, args=self._arguments(op, writes), kwargs=self._drawn(op, placements))
        count = len(op.reads)
        self.ops.append(replace(op, body=body, reads=tuple(reads[:count]), writes=writes, mutates=tuple(reads[count:])))
        for changed, wanted, local in zip(op.mutates, inputs[count:], reads[count:], strict=True):
            self._keep_changed(changed, wanted, local.value)

    def _keep_changed(self, operand: Operand, wanted: Placement, changed: str) -> None:
        """Forget the versions of a value that lack what an op changed of it, as `wanted`, in the local value `changed`.

        A part may be a view of the whole, of which the others' parts are old now.
        """
        versions = self.versions[operand.value]
        self.versions[operand.value] = {
            held: versions[held] for seen, held, _ in self.seen(operand) if versions[held].value == changed and wanted in (WHOLE, seen)
        }

    def call(
        self, name: str, target: str, args: list, reads: Sequence[Operand], shape: tuple[int, ...], dtype: str = "", kwargs: str = "{}"
    ) -> Operand:
        """Add an op that is not in the graph. Returns its result, which is contiguous."""
        made = self._new(name, shape, dtype or reads[0].dtype)
        body = OpCall(f"aten.{target}", json.dumps(args, separators=(",", ":")), kwargs)
        self._insert(f"{made.value}/{target.split('.')[0]}", body, reads, (made,))
        return made

    def change(self, name: str, target: str, args: list, reads: Sequence[Operand], changed: Sequence[Operand]) -> None:
        """Add an op that changes operands in place and is not in the graph."""
        space = "schedcast" if target.startswith("all_") else "aten"
        body = OpCall(f"{space}.{target}", json.dumps(args, separators=(",", ":")), outputs=())
        self._insert(name, body, reads, (), changed)

    def replace(self, op: Op, reads: Sequence[Operand], writes: Sequence[Operand], arguments: list | None = None, parts: int = 1) -> None:
        """Add an op with other operands, and other arguments if they are given. `parts`: how many devices share its FLOPs."""
        args = op.body.args if arguments is None else json.dumps(arguments, separators=(",", ":"))
        body = replace(op.body, args=args, flops=op.body.flops / parts)
        self.ops.append(replace(op, body=body, reads=tuple(reads), writes=tuple(writes)))

    def call_into(self, name: str, target: str, reads: Sequence[Operand], made: Operand, args: str = '[{"$":0},{"$":1}]') -> None:
        """Add an op that is not in the graph and makes a result that is."""
        self._insert(name, OpCall(f"aten.{target}", args), reads, (made,))

    def scratch(self, name: str, shape: tuple[int, ...], dtype: str, like: tuple[int, ...] = ()) -> Operand:
        """Make a value that is not in the graph. `like`: strides whose order of the dimensions it has; default: contiguous."""
        return self._new(name, shape, dtype, dense(shape, like) if like else ())

    def all_reduce(self, *operands: Operand) -> None:
        """Sum operands over the devices, in place."""
        names = [{"$": at} for at in range(len(operands))]
        name = f"{operands[0].value}/all_reduce"  # of both groups, it may be of one operand
        self.change(name if self.group == TENSOR else f"{name}.{self.group}", f"all_reduce.{self.group}", names, (), operands)

    def all_gather(self, operand: Operand) -> Operand:
        """The flat parts of all devices, one after another."""
        return self._gathered(self._flat(operand))

    def all_to_all(self, rows: Operand) -> Operand:
        """The rows that come, as many as go, an equal part of them from each device and to each."""
        made = self._new(f"{rows.value}#arrived", rows.shape, rows.dtype)
        self._insert(f"{made.value}/all_to_all", OpCall(f"schedcast.all_to_all.{self.group}", '[{"$":0}]'), (rows,), (made,))
        return made

    def _gathered(self, part: Operand) -> Operand:
        """The contiguous parts of all devices, one after another along dimension 0."""
        made = self._new(f"{part.value}#gathered", (part.shape[0] * self.degree, *part.shape[1:]), part.dtype)
        self._insert(f"{made.value}/all_gather", OpCall(f"schedcast.all_gather.{self.group}", '[{"$":0}]'), (part,), (made,))
        return made

    def _reduced(self, whole: Operand, name: str) -> Operand:
        """The device's part, along dimension 0, of the sum of all devices' contiguous wholes."""
        made = self._new(f"{name}#sum", (whole.shape[0] // self.degree, *whole.shape[1:]), whole.dtype)
        self._insert(f"{made.value}/reduce_scatter", OpCall(f"schedcast.reduce_scatter.{self.group}", '[{"$":0}]'), (whole,), (made,))
        return made

    # --- tokens in balanced chunks

    @property
    def chunks(self) -> tuple[int, int]:
        """The numbers of the two chunks of tokens that the device has, of twice as many as there are devices.

        The first device has those in the middle, so that its ops are all that there are: nothing lies before the very first chunk.
        """
        return self.degree - 1 - self.rank, self.degree + self.rank

    def _chunks_of(self, whole: Operand, placement: Placement) -> Operand:
        """The device's part, in balanced chunks, of an operand that it has all of."""
        dim, count = placement.axis, len(placement.blocks)
        outer, rest = (*whole.shape[:dim], count), whole.shape[dim + 1 :]
        length = whole.shape[dim] // count // (2 * self.degree)
        split = with_views(whole, [_view((*outer, 2 * self.degree, length, *rest))])
        both = tuple(with_views(split, [_slice(dim + 1, chunk, chunk + 1)]) for chunk in self.chunks)
        made = self.call(f"{whole.value}#part", "cat.default", [[{"$": 0}, {"$": 1}], dim + 1], both, (*outer, 2, length, *rest))
        return with_views(made, [_view(placement.local(whole.shape, self.degree))])

    def all_tokens(self, part: Operand, placement: Placement) -> Operand:
        """All tokens, in order, of an operand whose dimension of tokens is cut into balanced chunks. The result is contiguous."""
        dim, count = placement.axis, len(placement.blocks)
        outer, rest, length = prod(part.shape[:dim]) * count, part.shape[dim + 1 :], part.shape[dim] // count // 2
        rows = with_views(self._dense(part), [_view((outer * 2 * length, *rest))])
        gathered = with_views(self._gathered(rows), [_view((self.degree, outer, 2, length, *rest))])
        dims = range(3, 3 + len(rest))
        firsts = [with_views(gathered, [_select(0, rank), _slice(1, 0, 1)]) for rank in reversed(range(self.degree))]
        seconds = with_views(gathered, [_select(2, 1), _permute(1, 0, 2, *dims)])
        shape = (outer, 2 * self.degree, length, *rest)
        made = self.call(f"{part.value}#whole", "cat.default", [[{"$": at} for at in range(1 + self.degree)], 1], (*firsts, seconds), shape)
        return with_views(made, [_view((*part.shape[:dim], part.shape[dim] * self.degree, *rest))])

    def summed_chunks(self, chunks: Sequence[Operand], name: str) -> Operand:
        """The device's two chunks, [outer, 2, length, ...], of the sums of all devices' chunks, which are [outer, length, ...] each."""
        outer, *rest = chunks[0].shape
        order = [chunks[at] for rank in range(self.degree) for at in (self.degree - 1 - rank, self.degree + rank)]
        args = [[{"$": at} for at in range(len(order))], 0]
        packed = self.call(f"{name}#packed", "cat.default", args, order, (2 * self.degree * outer, *rest))
        own = with_views(self._reduced(packed, name), [_view((2, outer, *rest)), _permute(1, 0, *range(2, 2 + len(rest)))])
        return own if outer == 1 else self._clone(own, f"{name}#parts", own.shape)

    def _arguments(self, op: Op, writes: Sequence[Operand]) -> str:
        """The arguments with the sizes of a device's part."""
        if not op.body.target.startswith("aten.slice_backward."):
            return op.body.args
        arguments = arguments_of(op)
        arguments[1] = list(writes[0].shape)
        return json.dumps(arguments, separators=(",", ":"))

    def _drawn(self, op: Op, placements: Sequence[Placement]) -> str:
        """Dropout draws its part of the whole tensor's mask."""
        placement, shape = placements[0] if placements else WHOLE, op.writes[0].shape if op.writes else ()
        if op.body.target not in (ATTENTION, DROPOUT) or not op.body.random or placement.dim is None:
            return op.body.kwargs
        box = [[0, extent] for extent in shape]
        step = shape[placement.dim] // self.degree
        box[placement.dim] = [self.rank * step, (self.rank + 1) * step]
        return json.dumps(json.loads(op.body.kwargs) | {"part": {"of": list(shape), "box": box}}, separators=(",", ":"))

    # --- operands

    def seen(self, operand: Operand) -> Iterator[tuple[Placement, Placement, Sequence[ViewStep]]]:
        """Yield, for each version of its value that has one, the placement of an operand, that of the value, and the steps on the part."""
        for held in tuple(self.versions.get(operand.value, ())):
            try:
                placement, steps = behind(operand.views, self.shapes[operand.value], held, self.degree)
            except NotABoxError:
                continue
            yield placement, held, steps

    def placed(self, op: Op, operand: Operand, wanted: Placement) -> Operand:
        """A local operand with the placement `wanted` of an operand of the graph, made for `op` if the device has none."""
        for seen, held, steps in self.seen(operand):
            if seen == wanted:
                return self._viewed(self.versions[operand.value][held], steps, operand)
        self.serve(op)
        if (repeated := self.repeated(operand, wanted)) is not None:
            return repeated
        shape, views = self.shapes[operand.value], operand.views
        if wanted == WHOLE:
            self._make_whole(operand.value)
            return self._viewed(self.versions[operand.value][WHOLE], views, operand)
        target = next(before(views, shape, wanted, self.degree))
        versions = self.versions[operand.value]
        if WHOLE in versions:
            versions[target] = self._part(operand.value, versions[WHOLE], target)
        else:
            versions[target] = self._scattered(versions[PARTIAL], target, shape)
        return self._viewed(versions[target], behind(views, shape, target, self.degree)[1], operand)

    def repeated(self, operand: Operand, wanted: Placement) -> Operand | None:
        """The device's part of an operand that repeats what all devices hold along the dimension that is cut; None if it is another one."""
        held = self.versions.get(operand.value, {}).get(WHOLE)
        if held is None or wanted.dim is None or not operand.views or operand.strides[wanted.dim] != 0:
            return None
        *steps, last = operand.views
        if last.target != "aten.expand.default":
            return None
        return with_views(held, [*steps, view_step(last.target, list(wanted.local(operand.shape, self.degree)))])

    def _viewed(self, held: Operand, steps: Sequence[ViewStep], like: Operand) -> Operand:
        """An operand with the view steps of `like`; of a copy in the order of the graph's own value, if its strides do not allow them."""
        try:
            return self._view_of(held, steps, like)
        except NotABoxError:
            strides = self.graph.values[like.value].strides
            order = sorted(range(len(strides)), key=lambda dim: (-strides[dim], dim))
            back = [order.index(dim) for dim in range(len(order))]
            copy = self._clone(with_views(held, [_permute(*order)]), f"{held.value}#dense", tuple(held.shape[dim] for dim in order))
            return self._view_of(with_views(copy, [_permute(*back)]), steps, like)

    def _view_of(self, held: Operand, steps: Sequence[ViewStep], like: Operand) -> Operand:
        """An operand with the view steps of `like`, which may be of unknown kinds if it lies in memory as the graph's own value does."""
        value = self.graph.values.get(like.value)
        if value is not None and (held.shape, held.strides) == (value.shape, value.strides):
            return replace(like, value=held.value, views=(*held.views, *like.views))
        return replace(with_views(held, steps), dtype=like.dtype)

    def _part(self, name: str, whole: Operand, placement: Placement) -> Operand:
        """The device's part of a value that it has all of: a view, if it can be one."""
        if placement.balanced:
            return self._chunks_of(whole, placement)
        part = self._cut(whole, placement)
        if len(placement.blocks) > 1:
            return with_views(self._clone(part, f"{part.value}#part", part.shape), [_view(placement.local(whole.shape, self.degree))])
        return self._clone(part, f"{part.value}#part", part.shape) if name in self._opaque else part

    def _cut(self, whole: Operand, placement: Placement) -> Operand:
        """The device's part of an operand that it has all of; if there are several blocks, they are a dimension of it."""
        dim, count = placement.axis, len(placement.blocks)
        if count > 1:
            whole = with_views(whole, [_view((*whole.shape[:dim], count, placement.blocks[0], *whole.shape[dim + 1 :]))])
            dim += 1
        step = whole.shape[dim] // self.degree
        return part(whole, self.rank * step, (self.rank + 1) * step, dim)

    def _make_whole(self, name: str) -> None:
        """Sum the addends of a value in place, or gather its parts."""
        versions, shape = self.versions[name], self.shapes[name]
        if PARTIAL in versions:
            held = versions.pop(PARTIAL)
            self.all_reduce(held)
            versions[WHOLE] = held
            return
        placement, held = next(iter(versions.items()))
        if placement.balanced:
            versions[WHOLE] = self.all_tokens(held, placement)
            return
        outer, inner = _around(placement, shape)
        gathered = self.all_gather(held)
        if outer == 1:
            versions[WHOLE] = with_views(gathered, [_view(shape)])
            return
        each = placement.blocks[0] // self.degree
        parts = with_views(gathered, [_view((self.degree, outer, each, inner)), _permute(1, 0, 2, 3)])
        versions[WHOLE] = with_views(self._clone(parts, f"{name}#whole", parts.shape), [_view(shape)])

    def _scattered(self, addend: Operand, placement: Placement, shape: tuple[int, ...]) -> Operand:
        """The device's part of the sum of all devices' addends."""
        outer, inner = _around(placement, shape)
        if placement.balanced:
            split = with_views(self._dense(addend), [_view((outer, 2 * self.degree, -1, *shape[placement.axis + 1 :]))])
            own = self.summed_chunks([with_views(split, [_select(1, at)]) for at in range(2 * self.degree)], addend.value)
            return with_views(own, [_view(placement.local(shape, self.degree))])
        flat = self._flat(addend)
        if outer > 1:
            each = placement.blocks[0] // self.degree
            parts = with_views(flat, [_view((outer, self.degree, each, inner)), _permute(1, 0, 2, 3)])
            flat = self._flat(self._clone(parts, f"{addend.value}#parts", parts.shape))
        return with_views(self._reduced(flat, addend.value), [_view(placement.local(shape, self.degree))])

    def _dense(self, operand: Operand) -> Operand:
        """The operand, or a contiguous copy."""
        if operand.strides == contiguous(operand.shape):
            return operand
        return self._clone(operand, f"{operand.value}#dense", operand.shape)

    def _flat(self, operand: Operand) -> Operand:
        operand = self._dense(operand)
        return operand if len(operand.shape) == 1 else with_views(operand, [_view((operand.elements,))])

    def _clone(self, operand: Operand, name: str, shape: tuple[int, ...]) -> Operand:
        made = self._new(name, shape, operand.dtype)
        self._insert(f"{made.value}/clone", _CLONE, (operand,), (made,))
        return made

    def written(self, operand: Operand, placement: Placement) -> Operand:
        """Make the local value of a result of the graph's op, with the placement `placement`."""
        value = self.graph.values.get(operand.value)
        if value is None:
            value = Value(operand.value, operand.shape, operand.strides, dtype=operand.dtype, device="", kind=SCRATCH)
        shape = placement.local(value.shape, self.degree)
        own = replace(value, shape=shape, strides=value.strides if shape == value.shape else dense(shape, value.strides))
        known = self.graph.storage_bytes.get(value.storage)
        self._add(own, known if known is not None and shape == value.shape else extent_bytes(own))
        self.versions[operand.value] = {placement: own.operand()}
        return own.operand()

    def _new(self, name: str, shape: tuple[int, ...], dtype: str, strides: tuple[int, ...] = ()) -> Operand:
        unused, number = name, 2
        while unused in self.values or unused in self.graph.values:
            unused, number = f"{name}#{number}", number + 1
        value = Value(unused, shape, strides or contiguous(shape), dtype=dtype, device="", kind=SCRATCH)
        self._add(value, prod(shape) * DTYPE_BYTES[dtype])
        return value.operand()

    def _add(self, value: Value, size: int) -> None:
        self.values[value.name] = value
        self.storage_bytes[value.storage] = max(size, self.storage_bytes.get(value.storage, 0))

    def _insert(
        self, name: str, body: OpCall, reads: Sequence[Operand], writes: Sequence[Operand], mutates: Sequence[Operand] = ()
    ) -> None:
        op = self._serving
        assert op is not None
        self.ops.append(
            Op(name, body, op.phase, layer=op.layer, gradient=op.gradient, reads=tuple(reads), writes=tuple(writes), mutates=tuple(mutates))
        )

    def graph_with(self, gradients: dict[str, Operand]) -> TrainingGraph:
        """The graph of the device. `gradients`: by parameter, in the shape that ops see; they get the shape in which it is stored."""
        for name in self.graph.parameters:
            self.held(name)
            shape = self.values[name].shape
            if gradients[name].shape != shape:
                gradients[name] = with_views(gradients[name], [_view(shape)])
        ordered = {name: gradients[name] for name in self.graph.parameters}
        return replace(self.graph, ops=tuple(self.ops), values=self.values, storage_bytes=self.storage_bytes, gradients=ordered)


def _around(placement: Placement, shape: tuple[int, ...]) -> tuple[int, int]:
    """How many blocks there are, and the elements of an entry of a block."""
    return prod(shape[: placement.axis]) * len(placement.blocks), prod(shape[placement.axis + 1 :])


def _view(shape: Sequence[int]) -> ViewStep:
    return view_step("aten.view.default", list(shape))


def _permute(*dims: int) -> ViewStep:
    return view_step("aten.permute.default", list(dims))


def _slice(dim: int, first: int, end: int) -> ViewStep:
    return view_step("aten.slice.Tensor", dim, first, end)


def _select(dim: int, at: int) -> ViewStep:
    return view_step("aten.select.int", dim, at)
