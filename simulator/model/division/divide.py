"""The graph of one device of a group that divides each layer of a model: tensor parallelism, as Megatron and DTensor do it.

Shoeybi et al., "Megatron-LM" (2019): of two linear layers in a row, the first is divided by what it makes, the second by what it reads, so
that one sum over the devices is enough for both; attention is divided by heads, and the vocabulary and its loss are divided too.
Korthikanti et al., "Reducing Activation Recomputation" (2022), section 4.2.2: with sequence parallelism, the ops in between are divided by
tokens, and the sum becomes a reduce-scatter before them and an all-gather after them. No layer is named here: op by op, the division that
moves the fewest bytes is chosen, given the placements of the tensors that the op reads.

Context parallelism divides only tokens: every device has all parameters and the activations of its tokens; gradients of parameters remain
addends, which are summed with those of the replicas (`division.context`). Expert parallelism divides experts among devices that have
different tokens (`division.experts`).
"""

import json
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf

from simulator.model.division.axes import Axis, axes, concatenated_dim, is_linear, scales_by_frequency
from simulator.model.division.context import Context
from simulator.model.division.experts import Experts
from simulator.model.division.local import COLLECTIVES, CONTEXT, EXPERTS, TENSOR, LocalTensors
from simulator.model.division.placement import PARTIAL, WHOLE, Placement, before, behind, cut_along
from simulator.model.division.vocabulary import Vocabulary
from simulator.model.graph import Op, TrainingGraph, arguments_of
from simulator.plan.bodies.op_class import PRODUCT
from simulator.plan.bodies.opcall import CAST, DROPOUT, OpCall
from simulator.plan.task import AGAIN, CARRIED_KINDS, PARAMETER, Operand, ViewStep
from simulator.plan.views import NotABoxError
from traces.errors import Code, SchedcastError

#: The op that adds gradients, and those of linear layers that make them.
ADD, PRODUCTS = "aten.add.Tensor", (PRODUCT, "aten.bmm.default")


@dataclass(frozen=True)
class Division:
    """Device `rank` of `degree` that divide the layers of a model; `sequence`: also what lies between the products, by tokens.

    It is the device of the part `context_rank` of the tokens of each sequence, which are divided into `context` parts. Of `experts`
    devices, each with a part of the experts and its own microbatches, it is number `expert_rank`.
    """

    degree: int
    rank: int = 0
    sequence: bool = False
    context: int = 1
    context_rank: int = 0
    experts: int = 1
    expert_rank: int = 0

    @property
    def devices(self) -> int:
        """How many devices divide a microbatch."""
        return self.degree * self.context

    def of(self, number: int) -> "Division":
        """That of device `number`: first those that divide the layers for the same tokens of a microbatch."""
        context_rank = number // self.degree % self.context
        return replace(self, rank=number % self.degree, context_rank=context_rank, expert_rank=number // self.devices % self.experts)

    @property
    def words(self) -> list[str]:
        """What is divided, and over how many devices."""
        tokens = [f"tokens of each sequence over {self.context} devices"] if self.context > 1 else []
        tokens += [f"experts over {self.experts} devices"] if self.experts > 1 else []
        return tokens + ([f"heads, hidden channels and vocabulary over {self.degree} devices"] if self.degree > 1 else [])

    @property
    def number(self) -> int:
        """The number of the device among them."""
        return self.context_rank * self.degree + self.rank


UNDIVIDED = Division(1)


@dataclass(frozen=True)
class _Way:
    """A way to run an op: how its inputs and results are placed, and how many bytes that moves. `divided`: a device does a part of it."""

    inputs: tuple[Placement, ...]
    writes: tuple[Placement, ...]
    moved: float
    divided: bool


def divided(graph: TrainingGraph, division: Division) -> TrainingGraph:
    """The graph of one device of `division`. Raises SchedcastError if tokens do not divide into its chunks, or experts over its devices."""
    if division.experts > 1:
        graph = _ExpertDivider(graph, division.experts, division.expert_rank).result()
    if division.context > 1:
        graph = _ContextDivider(graph, division.context, division.context_rank).result()
    if division.degree > 1:
        graph = _Divider(with_shared_casts(graph), division.degree, division.rank, division.sequence, division.context).result()
    return graph


class _Divider:
    #: How tensors are cut, along any dimension, and whether the sum of what devices make in parts has a price.
    cut, sums = Placement(), True

    def __init__(self, graph: TrainingGraph, degree: int, rank: int, sequence: bool, context: int = 1, group: str = TENSOR):
        """`context`: into how many parts the tokens of the graph's inputs are divided already."""
        self.graph, self.degree, self.sequence = graph, degree, sequence
        self.local = LocalTensors(graph, degree, rank, group)
        self.special: Vocabulary | Context | Experts = Vocabulary(self.local)
        self._parameters = frozenset(graph.parameters)
        #: By number of tokens of the batch, the blocks that sequence parallelism cuts, for products see all tokens in one dimension: all
        #: tokens, if so each device has whole sequences, which lie together; else those of each sequence.
        self._tokens: dict[int, tuple[int, ...]] = {}
        for name in graph.inputs:
            sequences, length = (*graph.values[name].shape, 0, 0)[:2]
            length //= context
            self._tokens[sequences * length] = (sequences * length,) if sequences % self.degree == 0 else (length,) * sequences
        self._waiting: dict[str, Op] = {}  # by result, casts of parameters that nothing has divided yet
        self._best_ways: dict[Hashable, _Way] = {}  # layers are alike
        self._makers = {operand.value: op for op in graph.ops for operand in op.writes}
        self._readers: dict[str, list[tuple[Op, Operand]]] = {}
        for op in graph.ops:
            for operand in op.inputs:
                self._readers.setdefault(operand.value, []).append((op, operand))

    def result(self) -> TrainingGraph:
        """Divide all ops in order."""
        completed: dict[int, list[str]] = {}
        for parameter, index in self.graph.gradient_ops.items():
            completed.setdefault(index, []).append(parameter)
        gradients: dict[str, Operand] = {}
        for index, op in enumerate(self.graph.ops):
            if index in self.graph.casts and op.reads[0].value not in self.local.versions and not op.reads[0].views:
                self._waiting[op.writes[0].value] = op
            else:
                self._run(op)
            for parameter in completed.get(index, ()):
                gradients[parameter] = self._gradient(op, parameter)
        return self.local.graph_with(gradients)

    def _gradient(self, op: Op, parameter: str) -> Operand:
        """The gradient, which `op` has completed, of the device's part of a parameter."""
        return self.local.placed(op, self.graph.gradients[parameter], self.local.held(parameter))

    def _run(self, op: Op) -> None:
        """Emit an op as the device runs it."""
        self.local.serve(op)
        if self.special.runs(op):
            return
        name = op.body.target.split(".")[1]
        if name == "embedding" and self._is_undecided(op.inputs[0]):
            rows, looked_up = op.inputs[0].shape[0], op.inputs[1].value.partition("#")[0]  # or the device's part of an input
            divides = looked_up in self.graph.inputs and rows % self.degree == 0 and not scales_by_frequency(op)
            self._decide(op.inputs[0], cut_along(0, rows) if divides else WHOLE)
            self._run(op)
        elif name == "addmm" and self._is_cut(op.inputs[1], 1):
            for part in _product_and_sum(op):
                self.local.values_of(part)
                self._run(part)
        else:
            if name in ("mm", "addmm"):
                self._decide_weight(op, name == "addmm")
            for operand in op.inputs:
                self._decide(operand, WHOLE)
            way = self._best(op)
            self.local.add(op, way.inputs, way.writes, self.degree if way.divided else 1)

    def _best(self, op: Op) -> _Way:
        """The way that moves the fewest bytes; of several, the first."""
        alike = self._all_that_decides(op)
        if alike not in self._best_ways:
            self._best_ways[alike] = min(self._ways(op), key=self._price)
        return self._best_ways[alike]

    def _all_that_decides(self, op: Op) -> Hashable:
        """What determines the ways to run an op, and their bytes: the op, and the placements of its inputs on the device."""
        operands = []
        for operand in op.inputs:
            versions = self.local.versions.get(operand.value, {})
            whole = versions[WHOLE].strides if WHOLE in versions else ()
            kind = operand.value in self.graph.weights, operand in op.mutates and self._is_carried(operand)
            own = operand.shape, operand.strides, operand.dtype, operand.views
            operands.append((*own, *kind, self.local.shapes.get(operand.value), whole, *versions))
        made = [(operand.shape, operand.strides, operand.dtype) for operand in op.writes]
        return op.body.target, op.body.args, len(op.reads), tuple(operands), tuple(made), self._is_added(op.writes)

    def _price(self, way: _Way) -> tuple[float, bool]:
        return way.moved, False

    # --- parameters

    def _root(self, operand: Operand) -> str | None:
        """The parameter that an operand is, or is a cast of, if its placement is not decided yet."""
        cast = self._waiting.get(operand.value)
        root = operand.value if cast is None else cast.reads[0].value
        undecided = root in self._parameters and root not in self.local.versions
        return root if undecided or cast is not None else None

    def _is_undecided(self, operand: Operand) -> bool:
        return self._root(operand) is not None

    def _decide(self, operand: Operand, placement: Placement) -> None:
        """Place a parameter as `placement` says, unless its placement was decided before; and cast it if the operand is a cast."""
        root = self._root(operand)
        if root is None:
            return
        if root not in self.local.versions:
            self.local.hold(root, placement)
        cast = self._waiting.pop(operand.value, None)
        if cast is not None:
            self.local.cast(cast)

    def _decide_weight(self, op: Op, biased: bool) -> None:
        """Divide the weight of a linear layer: by what it reads, if that is divided so already, or else by what it makes."""
        first = int(biased)
        source, weight = op.inputs[first], op.inputs[first + 1]
        if not self._is_undecided(weight):
            return
        along = int(not self._is_cut(source, 1))
        for blocks in self._blocks(op) if along else [self._cut(source).blocks]:
            wanted = Placement(along, blocks)
            for held in before(weight.views, self.graph.values[weight.value].shape, wanted, self.degree):
                self._decide(weight, held)
                if biased and along:
                    self._decide(op.inputs[0], Placement(0, blocks))
                return

    def _blocks(self, op: Op) -> Iterator[tuple[int, ...]]:
        """Yield the blocks that a linear layer's result may consist of, so that all that its readers view of it can be divided."""
        made = op.writes[0]
        width = made.shape[1]
        views = {operand.views for _, operand in self._readers.get(made.value, ())}
        for blocks in ((width,), *self._split_sizes(made.value, width), (width // 3,) * 3, (width // 2,) * 2):
            placement = Placement(1, blocks)
            alike = len(set(blocks)) == 1  # a device's part of unequal blocks is not a piece of the parameter
            if alike and placement.fits(made.shape, self.degree) and all(self._passes(each, made.shape, placement) for each in views):
                yield blocks

    def _split_sizes(self, value: str, width: int) -> Iterator[tuple[int, ...]]:
        for _, operand in self._readers.get(value, ()):
            for step in operand.views:
                sizes = _sizes_of_split(step.target, step.args, width)
                if sizes:
                    yield sizes

    def _passes(self, views: Sequence[ViewStep], shape: tuple[int, ...], placement: Placement) -> bool:
        try:
            behind(views, shape, placement, self.degree)
        except NotABoxError:
            return False
        return True

    # --- which way

    def _cut(self, operand: Operand) -> Placement:
        """The placement of an operand: cut, if a version of it is; else an addend; else whole."""
        known = [placement for placement, *_ in self.local.seen(operand)]
        return next((each for each in known if each.dim is not None), WHOLE if WHOLE in known else (*known, WHOLE)[0])

    def _is_cut(self, operand: Operand, dim: int) -> bool:
        return any(placement.dim == dim for placement, *_ in self.local.seen(operand))

    def _moved(self, operand: Operand, wanted: Placement, imposed: bool) -> float:
        """Bytes that pass a device's links until it has an operand as `wanted`; infinite if there is no way.

        `imposed`: the op reads something else that is cut already; otherwise an addend is cut by tokens only, and for that only.
        """
        if any(placement == wanted for placement, *_ in self.local.seen(operand)):
            return 0.0
        held = self.local.versions[operand.value]
        if operand.value in self.graph.weights and WHOLE not in held:
            return inf
        shape = self.local.shapes[operand.value]
        if wanted == WHOLE:
            return operand.bytes * (1.0 if WHOLE not in held and PARTIAL not in held else 2.0)
        if wanted.partial:
            return inf
        if self.local.repeated(operand, wanted) is not None:
            return 0.0
        of_value = next(before(operand.views, shape, wanted, self.degree), None)
        if of_value is None:
            return inf
        if WHOLE in held:
            return 0.0
        return float(operand.bytes) if PARTIAL in held and (imposed or self._is_by_tokens(operand, wanted)) else inf

    def _is_by_tokens(self, operand: Operand, wanted: Placement) -> bool:
        """Whether sequence parallelism divides an operand so: by sequences, or each sequence's tokens."""
        if len(operand.shape) == 2:
            return self.sequence and wanted.dim == 0 and wanted.blocks == self._tokens.get(operand.shape[0])
        return self.sequence and len(operand.shape) == 3 and wanted.dim == int(operand.shape[0] % self.degree > 0)

    def _is_carried(self, operand: Operand) -> bool:
        """Whether the next step reads an operand, as whole as this step did."""
        return self.graph.values[operand.value].kind in CARRIED_KINDS

    def _blocks_of(self, operand: Operand, dim: int) -> tuple[int, ...]:
        """The blocks of a dimension that nothing has cut yet."""
        extent = operand.shape[dim]
        by_tokens = self.sequence and len(operand.shape) == 2 and dim == 0
        return self._tokens.get(extent, (extent,)) if by_tokens else (extent,)

    def _ways(self, op: Op) -> Iterator[_Way]:
        """Yield the ways to run an op that its inputs allow, first that on whole tensors."""
        whole = sum(self._moved(operand, WHOLE, False) for operand in op.inputs)
        yield _Way((WHOLE,) * len(op.inputs), (WHOLE,) * len(op.writes), whole, False)
        widens = not self.sums or self._is_added(op.writes)
        if is_linear(op, widens) and op.inputs and all(self._cut(operand).partial for operand in op.inputs):
            yield _Way((PARTIAL,) * len(op.inputs), (PARTIAL,), -1.0, False)
        for axis in axes(op):
            way = self._along(op, axis)
            if way is not None:
                yield way

    def _is_added(self, writes: Sequence[Operand]) -> bool:
        """Whether a result is only read by an op that adds products, so that one sum over the devices is enough for all of them."""
        readers = self._readers.get(writes[0].value, ()) if len(writes) == 1 else ()
        return len(readers) == 1 and self._adds_products(readers[0][0])

    def _adds_products(self, op: Op) -> bool:
        if op.body.target != ADD or len(op.inputs) != 2:
            return False
        makers = [self._makers.get(operand.value) for operand in op.inputs]
        return all(maker is not None and (self._casts_product(maker) or self._adds_products(maker)) for maker in makers)

    def _casts_product(self, op: Op) -> bool:
        product = self._makers.get(op.inputs[0].value) if op.body.target == CAST else None
        if product is None or product.body.target not in PRODUCTS:
            return False
        made = product.writes[0].value
        return made not in self.local.versions or PARTIAL in self.local.versions[made]

    def _along(self, op: Op, axis: Axis) -> _Way | None:
        """The way to run an op divided along an axis; None if there is none."""
        blocks: dict[int, tuple[int, ...]] = {}  # by extent
        imposed = False
        for operand, dim in zip(op.inputs, axis.inputs, strict=True):
            held = self._cut(operand)
            if dim is not None and held.dim == dim:
                imposed = True
                blocks.setdefault(operand.shape[dim], held.blocks)
        inputs, moved = [], 0.0
        for operand, dim in zip(op.inputs, axis.inputs, strict=True):
            wanted = WHOLE if dim is None else self.cut.at(dim, blocks.get(operand.shape[dim], self._blocks_of(operand, dim)))
            if not wanted.fits(operand.shape, self.degree) or (wanted != WHOLE and operand in op.mutates and self._is_carried(operand)):
                return None
            inputs.append(wanted)
            moved += self._moved(operand, wanted, imposed)
        writes = []
        for operand, dim in zip(op.writes, axis.writes, strict=True):
            if dim is None:
                writes.append(PARTIAL)
                moved += 2.0 * operand.bytes * self.sums
                continue
            own = blocks.get(operand.shape[dim], self._blocks_of(operand, dim))
            if op.body.target.startswith("aten.cat.") and dim == concatenated_dim(op):
                own = tuple(block for item in arguments_of(op)[0] for block in inputs[item["$"]].blocks)
            elif op.body.target in COLLECTIVES and dim == 0:  # an all-gather: parts one after another
                own = inputs[0].blocks * (operand.shape[0] // op.inputs[0].shape[0])
            writes.append(self.cut.at(dim, own))
            if not writes[-1].fits(operand.shape, self.degree) or (op.body.target == DROPOUT and len(own) > 1):
                return None  # what a device draws of a mask is one box of it
        return _Way(tuple(inputs), tuple(writes), moved, True) if moved < inf and (imposed or moved > 0.0) else None


class _ContextDivider(_Divider):
    """Divides only tokens. Every device has all parameters."""

    cut, sums = Placement(balanced=True), False

    def __init__(self, graph: TrainingGraph, degree: int, rank: int):
        super().__init__(graph, degree, rank, False, group=CONTEXT)
        self.special = Context(self.local)
        for name in graph.parameters:
            self.local.hold(name, WHOLE)
        self._lengths = {name: value.shape[1] for name in graph.inputs if len((value := graph.values[name]).shape) > 1}
        for name, tokens in self._lengths.items():
            if tokens % (2 * degree):
                raise SchedcastError(
                    f"context parallelism (cp={degree}) cuts each sequence into {2 * degree} chunks, which {tokens} tokens ({name}) do not"
                    f" divide into; choose a multiple of {2 * degree}",
                    Code.MODEL,
                )

    def _run(self, op: Op) -> None:
        self.local.serve(op)
        for operand in op.inputs:
            if operand.value in self._lengths:
                self.local.placed(op, self.graph.values[operand.value].operand(), self.cut.at(1, (self._lengths[operand.value],)))
        super()._run(op)

    def _price(self, way: _Way) -> tuple[float, bool]:
        return way.moved, not way.divided

    def _gradient(self, op: Op, parameter: str) -> Operand:
        """An addend of the gradient. One that all devices have is scaled, so that it is an addend too."""
        gradient = self.graph.gradients[parameter]
        if PARTIAL in self.local.versions[gradient.value]:
            return self.local.placed(op, gradient, PARTIAL)
        whole = self.local.placed(op, gradient, WHOLE)
        self.local.change(f"{whole.value}/share", "mul_.Tensor", [{"$": 0}, 1 / self.degree], (), (whole,))
        return whole


class _ExpertDivider(_Divider):
    """Divides only experts. Every device has all other parameters, and its own tokens."""

    def __init__(self, graph: TrainingGraph, degree: int, rank: int):
        super().__init__(graph, degree, rank, False, group=EXPERTS)
        self.special = Experts(self.local)
        for name in graph.parameters:
            self.local.held(name)


def with_shared_casts(graph: TrainingGraph) -> TrainingGraph:
    """The graph with one cast where several make the same tensor, which is then gathered once.

    Autocast casts the input of each of the layers that read it.
    """
    storage_of = {name: value.storage for name, value in graph.values.items()}
    changed = {storage_of[operand.value] for op in graph.ops for operand in op.mutates}
    kept = {storage_of[operand.value] for operand in graph.gradients.values()} | {storage_of[graph.loss]}
    first: dict[Hashable, str] = {}
    same: dict[str, str] = {}  # by result that is not made again, the one that takes its place
    ops = []
    for op in graph.ops:
        if any(operand.value in same for operand in op.reads):
            op = replace(op, reads=tuple(replace(operand, value=same.get(operand.value, operand.value)) for operand in op.reads))
        if op.body.target == CAST and graph.values[op.reads[0].value].kind != PARAMETER:
            source, made = op.reads[0], op.writes[0].value
            if changed.isdisjoint((storage_of[source.value], storage_of[made])) and storage_of[made] not in kept:
                other = first.setdefault((source, op.body.args, op.body.kwargs, op.phase, AGAIN in op.name), made)
                if other != made:
                    same[made] = other
                    continue
        ops.append(op)
    values = {name: value for name, value in graph.values.items() if name not in same}
    sizes = {name: size for name, size in graph.storage_bytes.items() if name not in same}
    return replace(graph, ops=tuple(ops), values=values, storage_bytes=sizes)


def _product_and_sum(op: Op) -> tuple[Op, Op]:
    """addmm(bias, a, b) as a product whose addends can be summed over devices, and the sum with the bias."""
    bias, a, b = op.inputs
    made = op.writes[0]
    product = Operand(f"{made.value}#product", made.shape, made.strides, made.dtype)
    body = replace(op.body, target=PRODUCT, args='[{"$":0},{"$":1}]')
    first = replace(op, name=f"{op.name}#product", body=body, reads=(a, b), writes=(product,))
    return first, replace(op, body=OpCall(ADD, '[{"$":0},{"$":1}]'), reads=(product, bias))


def _sizes_of_split(target: str, args: str, width: int) -> tuple[int, ...]:
    """The sizes that a view step splits a dimension of extent `width` into; none if it is no such step."""
    name, arguments = target.split(".")[1], json.loads(args)
    if name == "split_with_sizes" and sum(arguments[0]) == width:
        return tuple(arguments[0])
    if name == "split" and width % arguments[0] == 0:
        return (arguments[0],) * (width // arguments[0])
    return ()
