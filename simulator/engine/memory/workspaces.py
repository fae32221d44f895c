"""Memory that the library of matrix products keeps for each stream on which it has run one, as long as the process lives."""

from simulator.machine.machine import Machine
from simulator.plan.plan import Plan


def workspace_bytes(plan: Plan, machine: Machine) -> dict[str, int]:
    """Bytes of the workspaces of the plan's lanes by device; a device without any is left out."""
    lanes = {task.lane for task in plan.tasks if task.body.has_products}
    total: dict[str, int] = {}
    for device, _ in lanes:
        total[device] = total.get(device, 0) + machine.device(device).workspace_bytes
    return {device: size for device, size in total.items() if size}
