"""Calls one aten op."""

from collections.abc import Callable

from executors.binding import Binding, Instance
from executors.kernels.call import compile_call
from executors.kernels.lowering.registry import lowered
from simulator.plan.task import Task

KIND = "op"


def compile_task(task: Task, binding: Binding) -> Callable[[Instance], None]:
    """A function that runs the op in the backend's form on an instance's tensors and stores its results."""
    return lowered(task, binding) or compile_call(task, binding)
