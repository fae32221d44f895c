"""Cut a chain of units into contiguous stages, balanced by time.

A placement vector p_1..p_K says that a cut lies after unit p_i, counted from 1, so that S = K + 1 stages have units p_(i-1) + 1 .. p_i.
Every stage has at least one unit.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from simulator.model.checkpoint.blocks import blocks
from simulator.model.graph import TrainingGraph
from simulator.model.layers import partners, runs
from simulator.plan.bodies.op_class import op_class
from simulator.plan.task import FORWARD
from traces.errors import Code, SchedcastError

# The units of a captured graph: the smallest pieces that can be a stage, in forward order.
# A unit begins with a layer that multiplies by weights (convolution, linear, recurrent, embedding) and includes what follows until the next
# one: batch-norm, activation, pooling, the loss. This is how papers count layers: ResNet-20 has 20. The first unit of a transformer's block
# begins where the block does, with its norm.


_WEIGHTED = frozenset({"conv", "matmul", "recurrent"})
_LOOKUP = "aten.embedding.default"
_ATTENTION = "matmul.attention"


@dataclass(frozen=True)
class Unit:
    """Successive forward ops and their backward ops, as indices of the graph's ops. `layer` is the module path of the first one."""

    layer: str
    forward: tuple[int, ...]
    backward: tuple[int, ...]


def units(graph: TrainingGraph) -> list[Unit]:
    """Return the units of a graph in forward order. Together they have all of its ops."""
    forward = runs(graph, FORWARD)
    backward = partners(graph, forward)
    groups: list[tuple[list[int], list[int]]] = []
    starts = _starts(graph)
    for own_forward, own_backward in zip(forward, backward, strict=True):
        second = groups and _weighted(graph, own_forward) and _weighted(graph, groups[-1][0])
        if groups and not second and own_forward[0] not in starts:
            groups[-1][0].extend(own_forward)
            groups[-1][1].extend(own_backward)
        else:
            groups.append((list(own_forward), list(own_backward)))
    return [Unit(_layer(graph, ops), tuple(ops), tuple(sorted(of_backward))) for ops, of_backward in groups]


def between_blocks(graph: TrainingGraph, chain: Sequence[Unit]) -> list[int]:
    """By how many of the units each cut comes that lies between two blocks of a transformer, or before or after all of them.

    What follows the blocks and multiplies by no weights, such as the last norm, goes with the last block. There, one tensor crosses a cut;
    within a block several do.
    """
    starts = _starts(graph)
    if not starts:
        return []
    last = max(max(ops) for ops in starts.values())
    return [at for at, unit in enumerate(chain) if at and (unit.forward[0] in starts or chain[at - 1].forward[0] <= last < unit.forward[0])]


def begun(graph: TrainingGraph, chain: Sequence[Unit]) -> list[int]:
    """By unit, how many blocks of a transformer it begins; of other networks, one each."""
    starts = _starts(graph)
    return [int(not starts or unit.forward[0] in starts) for unit in chain]


def _starts(graph: TrainingGraph) -> dict[int, tuple[int, ...]]:
    """The ops of each block of a transformer, by the first one."""
    kind, members = blocks(graph)
    if kind != "blocks" or not all(any(op_class(graph.ops[index].body.target) == _ATTENTION for index in block.ops) for block in members):
        return {}
    return {block.ops[0]: block.ops for block in members}


def _weighted(graph: TrainingGraph, ops: Sequence[int]) -> bool:
    """Whether one of the ops multiplies by, or looks up, a parameter."""
    return any(
        (op_class(graph.ops[index].body.target) in _WEIGHTED or graph.ops[index].body.target == _LOOKUP)
        and any(operand.value in graph.weights for operand in graph.ops[index].inputs)
        for index in ops
    )


def _layer(graph: TrainingGraph, ops: Sequence[int]) -> str:
    return next((graph.ops[index].layer for index in ops if _weighted(graph, [index])), graph.ops[ops[0]].layer)


#: Costs that differ by no more than this, relative to each other, are equal: rounding of sums.
_EQUAL = 1e-9


def stages_of(placement: Sequence[int], count: int) -> tuple[range, ...]:
    """Return the units of each stage, numbered from 0, of a chain of `count` units. Raises SchedcastError for any other vector."""
    bounds = (0, *placement, count)
    text = ",".join(map(str, placement))
    if any(not 1 <= cut < count for cut in placement):
        raise SchedcastError(f"placement {text} is out of range: a cut lies after one of the units 1 to {count - 1} of {count}")
    if any(second <= first for first, second in pairwise(bounds)):
        raise SchedcastError(f"placement {text} is out of order: each cut must lie after the one before it")
    return tuple(range(first, last) for first, last in pairwise(bounds))


def balanced(seconds: Sequence[float], stages: int) -> tuple[int, ...]:
    """Return the placement vector whose longest stage is shortest; among those, the most even one, then one with early cuts.

    The most even one has the smallest sum of squared stage times. `seconds`: by unit. Raises SchedcastError for more stages than units.

    >>> placement = balanced([3.0, 1.0, 1.0, 1.0, 2.0], stages=2)  # after the second of the five units: stages of 4 s each
    >>> placement, stages_of(placement, 5)
    ((2,), (range(0, 2), range(2, 5)))
    """
    _check(len(seconds), stages)
    return _placement([_sums(seconds)] * stages)


def balanced_unfolded(forward_s: Sequence[float], backward_s: Sequence[float], stages: int) -> tuple[int, ...]:
    """Return the placement vector with the shortest cycle if forward and backward of a stage have an accelerator each.

    Only the last stage has both on one accelerator: 2K + 1 accelerators. `forward_s`, `backward_s`: seconds by unit.
    """
    _check(len(forward_s), stages)
    forward, backward = _sums(forward_s), _sums(backward_s)
    return _placement([np.maximum(forward, backward)] * (stages - 1) + [forward + backward])


def in_flight_1f1b(stages: int, microbatches: int) -> tuple[int, ...]:
    """Return the microbatches in flight by stage if each stage runs one forward, one backward: S for the first, 1 for the last."""
    return tuple(min(stages - stage, microbatches) for stage in range(stages))


def _check(count: int, stages: int) -> None:
    if stages < 1:
        raise SchedcastError(f"{stages} stages: a pipeline has at least 1")
    if stages > count:
        raise SchedcastError(f"cannot cut {count} units into {stages} stages: take at most {count}", Code.MODEL)


def _sums(values: Sequence[float]) -> np.ndarray:
    """Return [n + 1, n + 1]: the sum of units first..last - 1 at [first, last], infinite where there is no unit."""
    total = np.concatenate([[0.0], np.cumsum(np.asarray(values, dtype=float))])
    sums = total[None, :] - total[:, None]
    sums[np.tril_indices(len(total))] = np.inf
    return sums


def _shortest(costs: Sequence[np.ndarray]) -> float:
    """Return the smallest possible cost of the costliest stage. `costs`: by stage [n + 1, n + 1], by units in the stage."""
    best = costs[0][0]
    for cost in costs[1:]:
        best = np.maximum(best[:, None], cost).min(axis=0)
    return float(best[-1])


def _placement(costs: Sequence[np.ndarray]) -> tuple[int, ...]:
    """Return the cuts that minimize the costliest stage, then the sum of squared costs; of equal ones those that come early."""
    limit = _shortest(costs)
    square = _squares(costs[0], limit)
    best, cuts = square[0], []
    for before, cost in pairwise(costs):
        square = square if cost is before else _squares(cost, limit)
        sums = best[:, None] + square
        best = sums.min(axis=0)
        # The same squares added in another order are equal but for rounding: the earliest cut is taken.
        cuts.append((sums <= best * (1 + _EQUAL)).argmax(axis=0))
    end, placement = len(best) - 1, []
    for before in reversed(cuts):
        end = int(before[end])
        placement.append(end)
    return tuple(reversed(placement))


def _squares(cost: np.ndarray, limit: float) -> np.ndarray:
    """Return squared costs relative to `limit`; infinite for costs above it."""
    return np.where(cost <= limit * (1 + _EQUAL), (cost / (limit or 1.0)) ** 2, np.inf)
