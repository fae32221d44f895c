"""Seconds of forward and backward of a layer in each configuration, and of its update: the sum of the ops that a worker runs.

Every op is priced at the shapes of the worker's part, as a task of a plan would be; nothing is divided. The first worker stands for all.
Layers with equal ops are priced once.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from simulator.bodies.copy import KERNEL, Copy
from simulator.bodies.update import STATE, Update, hyper_parameters, state_shape
from simulator.costs.cost import PlanCosts
from simulator.costs.model import CostModel
from simulator.graph import Op
from simulator.machine.machine import Machine
from simulator.plan.plan import Plan
from simulator.plan.task import Operand, Segment, Task
from simulator.plan.views import contiguous
from simulator.shards.configuration import Configuration
from simulator.shards.costs.work import OpWork, works
from simulator.shards.local import local_ops
from simulator.shards.network import Network


class Prices:
    """Solo seconds of tasks on the machine's first device, without what the host and the executor add."""

    def __init__(self, machine: Machine, costs: PlanCosts | None):
        """`costs`: those that strategies get; without them, the cost model's own estimates."""
        self._device, self._costs = machine.devices[0].name, costs or CostModel(machine)

    def ops_s(self, ops: Iterable[Op]) -> list[float]:
        """The seconds of each op."""
        return self._seconds([self._task(op) for op in ops])

    @property
    def by_work(self) -> bool:
        """Whether the seconds of an op depend on its class, FLOPs and bytes alone."""
        return self._costs.by_work

    def work_s(self, work: OpWork) -> np.ndarray:
        """By configuration, the seconds of an op."""
        task, seconds = self._task(work.op), np.empty(len(work.flops))
        for number, fast in sorted({*zip(work.op_class.tolist(), work.fast.tolist(), strict=True)}):
            own = (work.op_class == number) & (work.fast == fast)
            outputs = None if work.outputs is None else work.outputs[own]
            seconds[own] = self._costs.work_cold_s(task, work.classes[number], fast, work.flops[own], work.bytes[own], outputs)
        return seconds

    def copy_s(self, moved_bytes: float, add: bool = False) -> float:
        """The seconds of a kernel that copies this many bytes of float32, or adds them."""
        operand = _vector(max(1, round(moved_bytes / 4)))
        copy = Copy(self._device, self._device, add, KERNEL)
        own = {"mutates": (operand,)} if add else {"writes": (operand,)}
        return self._seconds([Task("copy", copy, self._device, reads=(operand,), **own)])[0]

    def update_s(self, held: Sequence[tuple[int, ...]], optimizer: str, form: str) -> float:
        """The seconds of one update of parameters with these shapes."""
        if not held:
            return 0.0
        names = tuple(f"p{number}" for number in range(len(held)))
        mutated = [
            _operand(f"{name}.{part}", *(state_shape(optimizer, part, shape, "float32") if part else (shape, "float32")))
            for name, shape in zip(names, held, strict=True)
            for part in ("", *STATE[optimizer])
        ]
        gradients = tuple(_operand(f"{name}.grad", shape, "float32") for name, shape in zip(names, held, strict=True))
        body = Update(optimizer, form, names, hyper_parameters(optimizer))
        return self._seconds([Task("update", body, self._device, reads=gradients, mutates=tuple(mutated))])[0]

    def _task(self, op: Op) -> Task:
        return Task(op.name, op.body, self._device, reads=op.reads, writes=op.writes, mutates=op.mutates, phase=op.phase)

    def _seconds(self, tasks: list[Task]) -> list[float]:
        draft = Plan("draft", (Segment(tuple(tasks)),), {}, {})
        return [cost.cold_s for cost in self._costs.resolve(draft)]


def compute_tables(network: Network, configurations: Sequence[tuple[Configuration, ...]], prices: Prices) -> list[np.ndarray]:
    """By layer, the seconds of forward and backward in each configuration."""
    known: dict[tuple, np.ndarray] = {}
    tables = []
    for layer, options in enumerate(configurations):
        key = (*_keys(local_ops(network, layer, Configuration(), 0)), options)
        if key not in known:
            known[key] = compute_s(network, layer, options, prices)
        tables.append(known[key])
    return tables


def compute_s(network: Network, layer: int, options: Sequence[Configuration], prices: Prices) -> np.ndarray:
    """The seconds of forward and backward of a layer in each configuration.

    Costs that depend on FLOPs and bytes alone are computed for all configurations at once.
    """
    if prices.by_work and (all_works := works(network, layer, options)) is not None:
        return np.sum([prices.work_s(work) for work in all_works], axis=0)
    lists = [local_ops(network, layer, configuration, 0) for configuration in options]
    seconds = iter(prices.ops_s(op for ops in lists for op in ops))
    return np.array([sum(next(seconds) for _ in ops) for ops in lists])


def _keys(ops: Sequence[Op]) -> tuple[str, ...]:
    return tuple(op.body.key(op) for op in ops)


def _vector(elements: int) -> Operand:
    return _operand("x", (elements,), "float32")


def _operand(name: str, shape: tuple[int, ...], dtype: str) -> Operand:
    return Operand(name, shape, contiguous(shape), dtype)
