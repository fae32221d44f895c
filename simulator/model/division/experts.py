"""The experts of a mixture divided among devices, each of which has different tokens: expert parallelism.

Lepikhin et al., "GShard" (2020); Megatron-LM and torchtitan do the same: rows of tokens go to the devices that have their experts, which
sort them by expert, and come back after the last product, in an all-to-all each; and so do their gradients. Whatever works on these rows
alone between two products of experts runs where they are. Rows are predicted to be balanced: a device gets as many as it sends, and sends
as many to each. So all shapes are those of the whole graph, but for the experts', of which a device has a part.
"""

from dataclasses import replace

from simulator.model.division.axes import axes
from simulator.model.division.local import LocalTensors
from simulator.model.division.placement import WHOLE, cut_along
from simulator.model.graph import Op, TrainingGraph
from simulator.plan.bodies.op_class import GROUPED_PRODUCT
from simulator.plan.task import Operand
from simulator.plan.tensors import contiguous, part
from traces.errors import Code, SchedcastError

_SORTED = "aten.searchsorted.Tensor"


class Experts:
    """Runs the products of experts, and what happens to rows of tokens while they are away."""

    def __init__(self, local: LocalTensors):
        self._local, graph = local, local.graph
        self._made_by = {operand.value: op for op in graph.ops for operand in op.writes}
        #: By value of the graph, its rows where their experts are, and what says which row is whose.
        self._away: dict[str, tuple[Operand, Operand]] = {}
        #: By the ends of groups: the order that sorts rows by expert, its inverse, and the ends of the groups of the device's own experts.
        self._orders: dict[Operand, tuple[Operand, Operand, Operand]] = {}
        parameters, what = parameters_of_experts(graph), f"expert parallelism (ep={local.degree})"
        if not parameters:
            raise SchedcastError(f"{what} divides experts, and the model has none; drop ep", Code.MODEL)
        for parameter in parameters:
            count = graph.values[parameter].shape[0]
            if count % local.degree:
                raise SchedcastError(f"{what} does not divide the {count} experts of {parameter}; choose a divisor", Code.MODEL)
            local.hold(parameter, cut_along(0, count))

    def runs(self, op: Op) -> bool:
        """Add the ops of a device in the place of `op`, if it works on rows that are away. Returns whether it did."""
        if op.body.target == GROUPED_PRODUCT:
            self._product(op)
            return True
        gone = [operand.value for operand in op.inputs if operand.value in self._away and operand.value not in self._local.versions]
        by_rows = any({*axis.inputs, *axis.writes} == {0} for axis in axes(op)) if gone else False
        if by_rows and not op.mutates and all(operand.value in self._away for operand in op.inputs):
            self._written(op, [self._seen(operand) for operand in op.inputs], self._away[gone[0]][1])
            return True
        for value in gone:
            self._return(op, value)
        return False

    def _product(self, op: Op) -> None:
        left, right, ends = op.inputs
        local, of_rows, own_ends = self._local, len(right.shape) == 3, self._order(op, ends)[2]
        if of_rows:
            self._written(op, [self._sent(op, left, ends), local.placed(op, right, cut_along(0, right.shape[0])), own_ends], ends)
            return
        reads = [self._sent(op, left, ends), self._sent(op, right, ends), own_ends]
        local.replace(op, reads, (local.written(op.writes[0], cut_along(0, op.writes[0].shape[0])),))

    def _written(self, op: Op, reads: list[Operand], ends: Operand) -> None:
        """Add an op that makes rows where their experts are. `ends`: of the groups of all rows."""
        writes = [self._local.written(operand, WHOLE) for operand in op.writes]
        self._local.replace(op, reads, writes)
        for operand, made in zip(op.writes, writes, strict=True):
            del self._local.versions[operand.value]
            self._away[operand.value] = made, ends

    def _seen(self, operand: Operand) -> Operand:
        """An operand of rows that are away, which lie in memory as the graph's do."""
        return replace(operand, value=self._away[operand.value][0].value)

    def _sent(self, op: Op, operand: Operand, ends: Operand) -> Operand:
        """Rows where their experts are, sorted by expert: those that are there, or that an all-to-all brings there for `op`."""
        if operand.value not in self._away:
            value = self._local.graph.values[operand.value]
            if value.strides != contiguous(value.shape):
                raise SchedcastError(f"expert parallelism (ep) sends contiguous rows, and {operand.value} is not", Code.MODEL)
            arrived = self._local.all_to_all(self._local.placed(op, value.operand(), WHOLE))
            self._away[operand.value] = self._permuted(arrived, self._order(op, ends)[0], "sorted"), ends
        return self._seen(operand)

    def _return(self, op: Op, value: str) -> None:
        """Bring rows back to the devices of their tokens, for `op`."""
        made, ends = self._away[value]
        unsorted = self._permuted(made, self._order(op, ends)[1], "unsorted")
        self._local.versions[value] = {WHOLE: self._local.all_to_all(unsorted)}

    def _permuted(self, rows: Operand, order: Operand, how: str) -> Operand:
        return self._local.call(f"{rows.value}#{how}", "index_select.default", [{"$": 0}, 0, {"$": 1}], (rows, order), rows.shape)

    def _argsort(self, numbers: Operand, what: str) -> Operand:
        return self._local.call(
            f"{numbers.value}#{what}", "argsort.stable", [{"$": 0}], (numbers,), numbers.shape, kwargs='{"stable":true}'
        )

    def _order(self, op: Op, ends: Operand) -> tuple[Operand, Operand, Operand]:
        """By what the rows that come for a product are sorted, and sorted back, and where the groups of the device's own experts end.

        The numbers of their experts come before the rows.
        """
        if ends not in self._orders:
            local, source = self._local, self._made_by.get(ends.value)
            if source is None or source.body.target != _SORTED or ends.views:
                raise SchedcastError(
                    f"expert parallelism (ep) sorts rows by the numbers of their experts, and {op.layer} has only how many each gets; use a"
                    " model by its name or sizes (lm:)",
                    Code.MODEL,
                )
            numbers, every = (local.placed(op, operand, WHOLE) for operand in source.inputs)
            arrived, each = local.all_to_all(numbers), every.shape[0] // local.degree
            order = self._argsort(arrived, "order")
            back = self._argsort(order, "back")
            own, by_expert = part(every, local.rank * each, (local.rank + 1) * each), self._permuted(arrived, order, "sorted")
            arguments = [{"$": 0}, {"$": 1}]
            own_ends = local.call(
                f"{arrived.value}#ends",
                "searchsorted.Tensor",
                arguments,
                reads=(by_expert, own),
                shape=(each,),
                dtype=ends.dtype,
                kwargs=source.body.kwargs,
            )
            self._orders[ends] = order, back, own_ends
        return self._orders[ends]


def parameters_of_experts(graph: TrainingGraph) -> list[str]:
    """The parameters that products of groups of rows read, also as autocast casts them."""
    casts = {graph.ops[index].writes[0].value: parameter for index, parameter in graph.casts.items()}
    read = {op.inputs[1].value for op in graph.ops if op.body.target == GROUPED_PRODUCT and len(op.inputs[1].shape) == 3}
    roots = {casts.get(name, name) for name in read}
    return [name for name in graph.parameters if name in roots]
