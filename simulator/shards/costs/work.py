"""FLOPs and bytes of the first worker's ops in every configuration of a layer, from configurations along one dimension alone.

An extent of an op's operand depends on the degree along one of n, c, h and w alone, as the ranges of `moved` do: h decides how many rows it
has, whatever the other degrees are. So a worker's ops are made for each degree of each dimension, and their extents put together.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from simulator.bodies.masked_backward import reads
from simulator.costs import efficiencies
from simulator.graph import Op
from simulator.plan.task import DTYPE_BYTES, Operand
from simulator.shards.configuration import Configuration
from simulator.shards.local import local_ops
from simulator.shards.network import Network


@dataclass(frozen=True)
class OpWork:
    """The work of one op, by configuration. `op`: as a single worker runs it. `classes`: by number, its op class.

    `fast` and `outputs` are those of `costs.efficiencies`; `outputs` is None if the op has none.
    """

    op: Op
    classes: tuple[str, ...]
    op_class: np.ndarray
    fast: np.ndarray
    flops: np.ndarray
    bytes: np.ndarray
    outputs: np.ndarray | None


def works(network: Network, layer: int, options: Sequence[Configuration]) -> list[OpWork] | None:
    """The work of each op of a layer, forward and backward. None if an extent depends on several degrees."""
    alone = dict.fromkeys((dimension, degree) for c in options for dimension, degree in enumerate(c.degrees) if degree > 1)
    variants = [local_ops(network, layer, Configuration(), 0)]
    for dimension, degree in alone:
        degrees = [1] * 4
        degrees[dimension] = degree
        variants.append(local_ops(network, layer, Configuration(*degrees), 0))
    numbers = {each: number for number, each in enumerate(alone, 1)}
    chosen = np.array([[numbers.get(each, 0) for each in enumerate(c.degrees)] for c in options])
    result = []
    for own in zip(*variants, strict=True):
        work = _work(own, chosen)
        if work is None:
            return None
        result.append(work)
    return result


def _work(variants: Sequence[Op], chosen: np.ndarray) -> OpWork | None:
    """The work of an op, of which the first variant is undivided. `chosen`: [configurations, dimensions], the variants that meet there."""
    first = variants[0]
    operands = (*first.inputs, *first.writes)
    rank = max((len(operand.shape) for operand in operands), default=0)
    pads = [(1,) * (rank - len(operand.shape)) for operand in operands]
    shapes, steps, there = [], [], []
    for op in variants:
        aligned = [*_aligned(first.inputs, op.inputs), *op.writes]
        there.append([each is not None for each in aligned])
        own = [each or undivided for each, undivided in zip(aligned, operands, strict=True)]
        shapes.append([each.shape + pad for each, pad in zip(own, pads, strict=True)])
        steps.append([each.strides + pad for each, pad in zip(own, pads, strict=True)])
    named = [op.body.work(op).op_class for op in variants]
    classes = tuple(dict.fromkeys(named))
    extents = np.array(shapes, float).reshape(len(variants), len(operands), rank)
    read = np.where(np.array(steps).reshape(extents.shape), extents, 1.0)
    features = [extents, read, np.array(there, float), np.array([float(classes.index(name)) for name in named])]
    features.append(np.array([float(efficiencies.fast(op)) for op in variants]))
    combined = []
    for feature in features:
        change = feature - feature[0]
        by_dimension = change[chosen]
        if ((by_dimension != 0).sum(axis=1) > 1).any():
            return None
        combined.append(feature[0] + by_dimension.sum(axis=1))
    extents, read, there, op_class, fast = combined
    count, changed = len(first.inputs), len(first.mutates)
    times = np.array([*reads(first, first.body.target, first.body.args), *[1] * len(first.writes)], float)
    times[count - changed : count] += 1.0
    size = np.array([float(DTYPE_BYTES[operand.dtype]) for operand in operands])
    moved = (read.prod(axis=-1) * there * size * times).sum(axis=-1)
    elements = extents[:, count - changed :].prod(axis=-1).sum(axis=-1)
    flops = _product([op.body.flops for op in variants], chosen)
    outputs = [efficiencies.outputs(op) for op in variants]
    shared = None if outputs[0] is None else _product(outputs, chosen)
    return OpWork(first, classes, op_class.astype(int), fast > 0.5, np.maximum(flops, elements), moved, shared)


def _product(values: Sequence[float], chosen: np.ndarray) -> np.ndarray:
    """A quantity that each dimension divides, whatever the others do. `values`: by variant."""
    counted = np.array(values)
    return counted[0] * (counted[chosen] / counted[0]).prod(axis=1) if counted[0] else np.zeros(len(chosen))


def _aligned(inputs: Sequence[Operand], local: Sequence[Operand]) -> Iterator[Operand | None]:
    """Yield what a local op has of each input of the undivided op; None of those that it leaves out, as a concatenation does."""
    rest = list(local)
    for operand in inputs:
        yield rest.pop(0) if rest and rest[0].value == operand.value else None
