"""Memory that the library of matrix products keeps for each stream on which it has run one, as long as the process lives."""

from simulator.bodies.op_class import op_class
from simulator.machine.machine import Machine
from simulator.plan.plan import Plan
from simulator.plan.task import Task

#: The classes of ops that run matrix products of cuBLAS, also within other kernels. Convolutions are cuDNN's.
_WITH_PRODUCTS = frozenset({"matmul", "recurrent"})


def workspace_bytes(plan: Plan, machine: Machine) -> dict[str, int]:
    """Bytes of the workspaces of the plan's lanes by device; a device without any is left out."""
    lanes = {task.lane for task in plan.tasks if _has_product(task)}
    total: dict[str, int] = {}
    for device, _ in lanes:
        total[device] = total.get(device, 0) + machine.device(device).workspace_bytes
    return {device: size for device, size in total.items() if size}


def _has_product(task: Task) -> bool:
    targets = [step.body.target for step in task.body.inner_ops] or [getattr(task.body, "target", "")]
    return task.body.kind == "scan-level" or not _WITH_PRODUCTS.isdisjoint(map(op_class, targets))
