"""Calls one aten op."""

from collections.abc import Callable

from simulator.plan import Task

from ..binding import Binding, Instance
from .call import compile_call
from .lowering import lowered

KIND = "op"


def compile_task(task: Task, binding: Binding) -> Callable[[Instance], None]:
    """A function that runs the op, in the backend's form, on an instance's tensors and stores its results."""
    return lowered(task, binding) or compile_call(task, binding)
