"""Runs several ops as one task."""

from collections.abc import Callable

from executors.binding import Binding, Instance, op_tasks
from executors.kernels import opcall
from simulator.plan.task import Task

KIND = "ops"


def compile_task(task: Task, binding: Binding) -> Callable[[Instance], None]:
    """A function that runs the ops in order and then frees the values that exist only inside the list."""
    calls = [opcall.compile_task(step, binding) for step in op_tasks(task)]
    outside = {operand.value for operand in (*task.inputs, *task.writes)}
    inner = [binding.local_slot(o.value) for step in task.body.steps for o in step.writes if o.value not in outside]

    def run(instance: Instance) -> None:
        for call in calls:
            call(instance)
        for slot in inner:
            instance.slots[slot] = None

    return run
