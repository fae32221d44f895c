"""Seconds of forward and backward of a layer in each configuration, and of its update: the sum of the ops that a worker runs.

The cost of every op is computed at the shapes of the worker's part, as for a task of a plan; nothing is divided. The first worker
represents all. Costs of layers with equal ops are computed once.

Costs that depend on FLOPs and bytes alone are computed for all configurations at once. An extent of an op's operand depends on the degree
along one of n, c, h and w alone, as the ranges of `moved` do: h decides how many rows it has, whatever the other degrees are. So a worker's
ops are made for each degree of each dimension, and their extents put together.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from simulator.engine.costs import efficiencies
from simulator.engine.costs.channel_blocks import Channels
from simulator.engine.costs.cost import PlanCosts
from simulator.engine.costs.model import CostModel
from simulator.engine.costs.products import Product
from simulator.machine.machine import Machine
from simulator.model.graph import Op
from simulator.plan.bodies.copy import KERNEL, Copy
from simulator.plan.bodies.op_class import reads
from simulator.plan.bodies.update import STATE, Update, hyper_parameters, state_shape
from simulator.plan.plan import Plan
from simulator.plan.task import DTYPE_BYTES, Operand, Task
from simulator.plan.tensors import contiguous
from simulator.strategies.sharding.configuration import Configuration
from simulator.strategies.sharding.local import local_ops
from simulator.strategies.sharding.network import Network


class OpWork(NamedTuple):
    """The work of one op, by configuration. `op`: as a single worker runs it. `classes`: by number, its op class.

    `fast`, `outputs` and `extents` are those of `costs.efficiencies`; the last two are None if the op has none.
    """

    op: Op
    classes: tuple[str, ...]
    op_class: np.ndarray
    fast: np.ndarray
    flops: np.ndarray
    bytes: np.ndarray
    outputs: np.ndarray | None
    extents: Product | Channels | None

    def extents_of(self, own: np.ndarray) -> Product | Channels | None:
        """The extents of some configurations."""
        return self.extents and _each(self.extents, lambda name: getattr(self.extents, name)[own])


class Prices:
    """Solo seconds of tasks on the machine's first device, without what the host and the executor add."""

    def __init__(self, machine: Machine, costs: PlanCosts | None):
        """`costs`: those that strategies get; without them, the cost model's own estimates."""
        self._device, self._costs = machine.devices[0].name, costs or CostModel(machine)

    def compute_s(self, network: Network, layer: int, options: Sequence[Configuration]) -> np.ndarray:
        """The seconds of forward and backward of a layer in each configuration."""
        if self._costs.by_work and (all_works := works(network, layer, options)) is not None:
            return np.sum([self._work_s(work) for work in all_works], axis=0)
        lists = [local_ops(network, layer, configuration, 0) for configuration in options]
        seconds = iter(self._seconds([self._task(op) for ops in lists for op in ops]))
        return np.array([sum(next(seconds) for _ in ops) for ops in lists])

    def copy_s(self, moved_bytes: float, add: bool = False) -> float:
        """The seconds of a kernel that copies this many bytes of float32, or adds them."""
        operand = _operand("x", (max(1, round(moved_bytes / 4)),))
        copy = Copy(self._device, self._device, add, KERNEL)
        writes, mutates = ((), (operand,)) if add else ((operand,), ())
        return self._seconds([Task("copy", copy, self._device, reads=(operand,), writes=writes, mutates=mutates)])[0]

    def update_s(self, held: Sequence[tuple[int, ...]], optimizer: str, form: str) -> float:
        """The seconds of one update of parameters with these shapes."""
        if not held:
            return 0.0
        names = tuple(f"p{number}" for number in range(len(held)))
        mutated = [
            _operand(f"{name}.{part}", *(state_shape(optimizer, part, shape, "float32") if part else (shape,)))
            for name, shape in zip(names, held, strict=True)
            for part in ("", *STATE[optimizer])
        ]
        gradients = tuple(_operand(f"{name}.grad", shape) for name, shape in zip(names, held, strict=True))
        body = Update(optimizer, form, names, hyper_parameters(optimizer))
        return self._seconds([Task("update", body, self._device, reads=gradients, mutates=tuple(mutated))])[0]

    def _work_s(self, work: OpWork) -> np.ndarray:
        task, seconds = self._task(work.op), np.empty(len(work.flops))
        for number, fast in sorted({*zip(work.op_class.tolist(), work.fast.tolist(), strict=True)}):
            own = (work.op_class == number) & (work.fast == fast)
            outputs = None if work.outputs is None else work.outputs[own]
            name, extents = work.classes[number], work.extents_of(own)
            seconds[own] = self._costs.work_cold_s(
                task, name, fast, flops=work.flops[own], moved_bytes=work.bytes[own], outputs=outputs, extents=extents
            )
        return seconds

    def _task(self, op: Op) -> Task:
        return Task(op.name, op.body, self._device, reads=op.reads, writes=op.writes, mutates=op.mutates, phase=op.phase)

    def _seconds(self, tasks: list[Task]) -> list[float]:
        draft = Plan("draft", tuple(tasks), {}, {})
        return [cost.cold_s for cost in self._costs.resolve(draft)]


def compute_tables(network: Network, configurations: Sequence[tuple[Configuration, ...]], prices: Prices) -> list[np.ndarray]:
    """By layer, the seconds of forward and backward in each configuration."""
    known: dict[tuple, np.ndarray] = {}
    tables = []
    for layer, options in enumerate(configurations):
        key = (*(op.body.key(op) for op in local_ops(network, layer, Configuration(), 0)), options)
        if key not in known:
            known[key] = prices.compute_s(network, layer, options)
        tables.append(known[key])
    return tables


def works(network: Network, layer: int, options: Sequence[Configuration]) -> list[OpWork] | None:
    """The work of each op of a layer, forward and backward. None if an extent depends on several degrees."""
    alone = dict.fromkeys((dimension, degree) for c in options for dimension, degree in enumerate(c.degrees) if degree > 1)
    variants = [local_ops(network, layer, own, 0) for own in (Configuration(), *(Configuration.along(*each) for each in alone))]
    numbers = {each: number for number, each in enumerate(alone, 1)}
    chosen = np.array([[numbers.get(each, 0) for each in enumerate(c.degrees)] for c in options])
    result = [work for own in zip(*variants, strict=True) if (work := _work(own, chosen)) is not None]
    return result if len(result) == len(variants[0]) else None


def _work(variants: Sequence[Op], chosen: np.ndarray) -> OpWork | None:
    """The work of an op, of which the first variant is undivided. `chosen`: [configurations, dimensions], the variants that meet there."""
    first = variants[0]
    operands = (*first.inputs, *first.writes)
    rank = max((len(operand.shape) for operand in operands), default=0)

    def geometry(op: Op) -> Iterator[tuple[int, ...]]:
        """Yield of each operand whether the op has it, its shape and its strides, or those of the undivided op's."""
        for local, undivided in zip((*_aligned(first.inputs, op.inputs), *op.writes), operands, strict=True):
            own = local or undivided
            pad = (1,) * (rank - len(own.shape))
            yield local is not None, *own.shape, *pad, *own.strides, *pad

    rows = np.array([list(geometry(op)) for op in variants], float).reshape(len(variants), len(operands), 1 + 2 * rank)
    there, extents, steps = rows[..., 0], rows[..., 1 : 1 + rank], rows[..., 1 + rank :]
    read = np.where(steps, extents, 1.0)
    classes = [op.body.work(op).op_class for op in variants]
    quantities = (extents, read, there, [classes.index(own) for own in classes], [efficiencies.fast(op) for op in variants])
    combined = [own for each in quantities if (own := _sum(np.array(each, float), chosen)) is not None]
    if len(combined) < len(quantities):
        return None
    extents, read, there, op_class, fast = combined
    count, changed = len(first.inputs), len(first.mutates)
    times = np.array([*reads(first, first.body.target, first.body.args), *[1] * len(first.writes)], float)
    times[count - changed : count] += 1.0
    size = np.array([float(DTYPE_BYTES[operand.dtype]) for operand in operands])
    moved = (read.prod(axis=-1) * there * size * times).sum(axis=-1)
    elements = extents[:, count - changed :].prod(axis=-1).sum(axis=-1)
    flops = np.maximum(_product([op.body.flops for op in variants], chosen), elements)
    shared = [elements for op in variants if (elements := efficiencies.outputs(op)) is not None]
    return OpWork(
        op=first,
        classes=tuple(classes),
        op_class=op_class.astype(int),
        fast=fast > 0.5,
        flops=flops,
        bytes=moved,
        outputs=_product(shared, chosen) if shared else None,
        extents=_extents(variants, chosen),
    )


def _each(extents: Product | Channels, value: Callable[[str], np.ndarray]) -> Product | Channels:
    """The extents, with those that a division changes as `value` gives them by name."""
    if isinstance(extents, Channels):
        return extents._replace(images=value("images"), channels=value("channels"), pixels=value("pixels"))
    return extents._replace(batch=value("batch"), rows=value("rows"), columns=value("columns"), depth=value("depth"))


def _extents(variants: Sequence[Op], chosen: np.ndarray) -> Product | Channels | None:
    """The matrix products, or the channels, of an op's variants that meet in each configuration; None if the op has none."""
    own = [efficiencies.extents(op) for op in variants]
    if not isinstance(own[0], Product | Channels) or {*map(type, own)} != {type(own[0])}:
        return None
    return _each(own[0], lambda name: _product([getattr(each, name) for each in own], chosen))


def _sum(values: np.ndarray, chosen: np.ndarray) -> np.ndarray | None:
    """[configurations, ...], a quantity [variants, ...] that one dimension alone changes; None if several do."""
    changes = (values - values[0])[chosen]
    return values[0] + changes.sum(axis=1) if ((changes != 0).sum(axis=1) <= 1).all() else None


def _product(values: Sequence[float], chosen: np.ndarray) -> np.ndarray:
    """[configurations], a quantity by variant that each dimension divides, whatever the others do."""
    counted = np.array(values)
    return counted[0] * (counted[chosen] / counted[0]).prod(axis=1) if counted[0] else np.zeros(len(chosen))


def _aligned(inputs: Sequence[Operand], local: Sequence[Operand]) -> Iterator[Operand | None]:
    """Yield what a local op has of each input of the undivided op; None for those that it omits, as a concatenation does."""
    rest = list(local)
    for operand in inputs:
        yield rest.pop(0) if rest and rest[0].value == operand.value else None


def _operand(name: str, shape: tuple[int, ...], dtype: str = "float32") -> Operand:
    return Operand(name, shape, contiguous(shape), dtype)
