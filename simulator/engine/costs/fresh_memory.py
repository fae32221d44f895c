"""Memory that each step of plain PyTorch obtains again from the system: its pages fault when they are first touched.

An executor keeps the memory of tensors between steps. PyTorch on a CPU leaves that to glibc's malloc, which returns free memory at the end
of its heap to the system (M_TRIM_THRESHOLD in mallopt(3)), so a step obtains much of it again. Each allocation of `MAPPED_BYTES` or more is
a separate mapping (the upper limit of M_MMAP_THRESHOLD) and always fresh. Of the smaller ones, how much is fresh depends on how the heap
happens to be laid out. It is assumed to be `SHARE` of the most that a step holds of them at a time, divided among the tasks by the bytes
that they allocate.

Where several ops give a gradient of one tensor, autograd adds to the first of them in place if nothing else references it
(`InputBuffer::accumulate`): such a sum allocates nothing.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from simulator.engine.costs.cost import Cost
from simulator.plan.plan import Plan
from simulator.plan.task import BACKWARD, INPUT, Task

#: Smallest allocation that always gets its own mapping: DEFAULT_MMAP_THRESHOLD_MAX of glibc on 64-bit systems.
MAPPED_BYTES = 32 << 20
#: Share of the smaller allocations' peak that is fresh in each step, and the standard deviation of its logarithm. Fitted on the page faults
#: of lenet5, resnet18, mobilenet_v2 and vgg11; `python -m tools.fresh_memory` compares them and other models with it.
SHARE, SHARE_ERROR = 0.65, 0.6


class Fresh(NamedTuple):
    """Fresh bytes of one task: `mapped` in separate mappings, and `heap`, which is uncertain."""

    mapped: float
    heap: float


def added(plan: Plan, costs: Sequence[Cost], s_per_byte: float) -> list[Cost]:
    """The costs with the time that fresh memory takes; `s_per_byte`: `LoopCosts.fresh_s_per_byte`."""
    return [_with_fresh(*pair, s_per_byte) for pair in zip(costs, fresh_bytes(plan), strict=True)] if s_per_byte else list(costs)


def _with_fresh(cost: Cost, fresh: Fresh, s_per_byte: float) -> Cost:
    size = fresh.mapped + fresh.heap
    if not size:
        return cost
    fresh_s = size * s_per_byte
    return replace(cost, overhead_s=cost.overhead_s + fresh_s, fresh_s=fresh_s, fresh_error=SHARE_ERROR * fresh.heap / size)


def fresh_bytes(plan: Plan) -> tuple[Fresh, ...]:
    """The fresh bytes of each task of a plan with one stream and without lags."""
    return plan.derived(_fresh_bytes)


def _fresh_bytes(plan: Plan) -> tuple[Fresh, ...]:
    fed = {value.storage for value in plan.values.values() if value.kind == INPUT}
    accessed = [[name for name in names if name not in fed] for names in plan.instances]
    last = {name: index for index, names in enumerate(accessed) for name in names}
    live: set[str] = set()
    held = peak = 0
    mapped, heap = [], []
    for index, (task, names) in enumerate(zip(plan.tasks, accessed, strict=True)):
        scratch = task.body.made(task)
        new = [name for name in names if name not in live]
        live.update(names)
        ended = [name for name in names if last[name] == index]
        if _sums_gradients(task) and (first := plan.values[task.reads[0].value].storage) in ended:
            new, ended = [], [name for name in ended if name != first]  # the sum takes the place of its first term
        sizes = scratch + [plan.storages[name].bytes for name in new]
        mapped.append(sum(size for size in sizes if size >= MAPPED_BYTES))
        heap.append(sum(size for size in sizes if size < MAPPED_BYTES))
        held += heap[-1]
        peak = max(peak, held)
        freed = scratch + [plan.storages[name].bytes for name in ended]
        held -= sum(size for size in freed if size < MAPPED_BYTES)
    share = min(1.0, SHARE * peak / sum(heap)) if sum(heap) else 0.0
    return tuple(Fresh(own, share * rest) for own, rest in zip(mapped, heap, strict=True))


def _sums_gradients(task: Task) -> bool:
    return task.phase == BACKWARD and task.body.op == "aten.add.Tensor"
