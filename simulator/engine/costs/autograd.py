"""What PyTorch's own loop adds to a task: modules and autograd's graph in forward, autograd's engine in backward, and the optimizer.

A profile measures it as the difference between the loop and the executor's calls of the same ops, so it may be negative: in backward
autograd issues ops from C++, and the executor from Python. On a GPU it is time of the host, on a CPU of the task itself.
"""

from dataclasses import replace

from simulator.engine.costs.cost import Cost
from simulator.machine.machine import HostLane
from simulator.plan.task import BACKWARD, Task
from traces.documents.profile import LoopCosts


def with_loop(cost: Cost, task: Task, loop: LoopCosts, on_host: bool) -> Cost:
    """The cost of a task in PyTorch's own loop. `on_host`: a host issues the task. A task never takes less than half its own time."""
    added_s = _added_s(task, loop)
    if not on_host:
        return replace(cost, overhead_s=max(added_s, -cost.warm_s / 2))
    return cost if cost.issue_s is None else replace(cost, issue_s=max(cost.issue_s + added_s, cost.issue_s / 2))


def with_assumed_loop(cost: Cost, task: Task, host: HostLane) -> Cost:
    """The cost of a task in PyTorch's own loop on a machine without measurements: each op but updates takes `loop_s` more of the host."""
    if task.body.is_update or not host.loop_s:
        return cost
    return replace(
        cost, issue_s=(cost.launches - 1) * host.dispatch_s + _ops(task) * host.loop_s, issue_error=host.errors.get("loop_s", 0.0)
    )


def _added_s(task: Task, loop: LoopCosts) -> float:
    if task.body.is_update:
        return loop.update_s + loop.parameter_s * len(task.body.parameters)
    return _ops(task) * (loop.backward_s if task.phase == BACKWARD else loop.forward_s) + task.view_calls * loop.view_s


def _ops(task: Task) -> int:
    return len(task.body.inner_ops) or 1
