"""What the elements of operands must be so that an op can run: indices that are in range, masks that select as many elements as expected.

In: an op with its operands. Out: a description of the elements of each.
"""

import json
from collections.abc import Callable
from itertools import zip_longest
from math import prod
from typing import Any, NamedTuple

from executors.binding import op_tasks
from simulator.model.ops.aten_json import resolve
from simulator.plan.task import Operand, Task

#: The arguments of an op by the names of its schema, and its results by the name "". A tensor is its `Operand`.
Arguments = dict[str, Any]


class Elements(NamedTuple):
    """What the elements of an operand are.

    Integers are at least 0, less than `below`, and in order if they are `increasing` from 0. `total`: the sum of all elements, of whatever
    type, and so the number of those that a mask selects; None if it does not matter.
    """

    below: int = 2
    increasing: bool = False
    total: float | None = None


#: Pairs of an operand and what its elements are.
Indices = list[tuple[Operand, Elements]]


def elements_of(task: Task) -> dict[str, Elements]:
    """By value that the task reads or changes, what its elements must be."""
    known: dict[str, Elements] = {}
    for op in op_tasks(task):
        rule = _RULES.get(op.body.op.split(".")[1].removesuffix("_")) if op.body.op else None
        for operand, elements in rule(_arguments(op)) if rule is not None else ():
            former = known.get(operand.value, elements)
            known[operand.value] = former if former.total is not None else min(elements, former, key=lambda each: each.below)
    return {operand.value: known.get(operand.value, Elements()) for operand in task.inputs}


def _arguments(op: Task) -> Arguments:
    """The arguments of an op, with those of its defaults that are not given left out."""

    def placed(item: Any) -> Any:
        if isinstance(item, list):
            return [placed(i) for i in item]
        return op.inputs[item["$"]] if isinstance(item, dict) and "$" in item else item

    names = (argument.name for argument in resolve(op.body.target)._schema.arguments)
    given = dict(zip(names, placed(json.loads(op.body.args)), strict=False))
    return given | {name: placed(item) for name, item in json.loads(op.body.kwargs).items()} | {"": op.writes}


def _of_list(given: Arguments) -> Indices:
    """Indexing by a list: each index is one into the dimension at its place. A mask selects as many elements as there are, or are put."""
    shape, chosen, dim = given["self"].shape, given["values"].shape if "values" in given else given[""][0].shape, 0
    indices = []
    for index in given["indices"]:
        masks = index is not None and index.dtype in ("bool", "uint8")
        if masks:
            indices.append((index, Elements(total=chosen[dim] if dim < len(chosen) else 1)))
        elif index is not None:
            indices.append((index, Elements(shape[dim])))
        dim += len(index.shape) if masks else 1
    return indices


def _of_dim(given: Arguments) -> Indices:
    """Indexing along one dimension."""
    shape = given["self"].shape
    return [(given["index"], Elements(shape[given["dim"]] if shape else 1))]


def _of_all(given: Arguments) -> Indices:
    """Indexing of all elements, flattened."""
    return [(given["index"], Elements(prod(given["self"].shape)))]


def _of_image(dims: int) -> Callable[[Arguments], Indices]:
    """Positions within the last `dims` dimensions, flattened."""
    return lambda given: [(given["indices"], Elements(prod(given["self"].shape[-dims:])))]


def _of_classes(given: Arguments) -> Indices:
    """Classes, which lie along dimension 1 of a batch."""
    return [(given["target"], Elements(given["self"].shape[:2][-1]))]


def _of_rows(given: Arguments) -> Indices:
    """Lookup in the rows of a table, or the gradient of one."""
    rows = given["weight"].shape[0] if "weight" in given else given["num_weights"]
    return [(given["indices"], Elements(rows))]


def _of_bags(given: Arguments) -> Indices:
    """Lookup in the rows of a table, summed over bags that begin at offsets, or the gradient of this."""
    count = prod(given["indices"].shape)
    bags = [(given["offset2bag"], Elements(given["grad"].shape[0], increasing=True))] if "grad" in given else []
    largest = [(given["maximum_indices"], _of_rows(given)[0][1])] if "maximum_indices" in given else []
    return [*_of_rows(given), (given["offsets"], Elements(count, increasing=True)), *bags, *largest]


def _counted(given: Arguments) -> Indices:
    """Ops with a row for each element that is not zero, or with as many as the sum of the elements."""
    return [(given.get("repeats") or given["self"], Elements(total=given[""][0].shape[0]))]


def _masked(given: Arguments) -> Indices:
    """Selection by a mask, which may be repeated along dimensions, or its reverse, with as many elements at least."""
    mask, selected = given["mask"], prod((given["source"] if "source" in given else given[""][0]).shape)
    repeated = prod(max(pair) for pair in zip_longest(given["self"].shape[::-1], mask.shape[::-1], fillvalue=1)) // max(1, prod(mask.shape))
    return [(mask, Elements(total=selected // max(1, repeated)))]


def _expected(given: Arguments) -> Indices:
    return [(given["value"], Elements(total=given["expected"]))]


#: By op. `_` at the end, for changes in place, is left out.
_RULES: dict[str, Callable[[Arguments], Indices]] = {
    **dict.fromkeys(("index", "_unsafe_index", "index_put", "_index_put_impl", "_unsafe_index_put"), _of_list),
    **dict.fromkeys(("gather", "index_select", "index_add", "index_copy", "index_fill"), _of_dim),
    **dict.fromkeys(("scatter", "scatter_add", "scatter_reduce"), _of_dim),
    **dict.fromkeys(("take", "put"), _of_all),
    **dict.fromkeys(("max_pool2d_with_indices_backward", "adaptive_max_pool2d_backward", "max_unpool2d"), _of_image(2)),
    **dict.fromkeys(("max_pool3d_with_indices_backward", "adaptive_max_pool3d_backward", "max_unpool3d"), _of_image(3)),
    **dict.fromkeys(("nll_loss_forward", "nll_loss_backward", "nll_loss2d_forward", "nll_loss2d_backward"), _of_classes),
    **dict.fromkeys(("embedding", "embedding_dense_backward"), _of_rows),
    **dict.fromkeys(("nonzero", "repeat_interleave"), _counted),
    **dict.fromkeys(("masked_select", "masked_scatter"), _masked),
    "expect": _expected,
    **dict.fromkeys(("_embedding_bag", "_embedding_bag_backward"), _of_bags),
}
