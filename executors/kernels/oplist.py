"""Runs several ops as one task."""

from collections.abc import Callable

from executors.binding import Binding, Instance, op_tasks
from executors.kernels import opcall
from simulator.plan.task import Task

KIND = "ops"


def compile_task(task: Task, binding: Binding) -> Callable[[Instance], None]:
    """A function that runs the ops in order and frees the values that exist only inside the list after their last use."""
    calls = [opcall.compile_task(step, binding) for step in op_tasks(task)]
    outside = {operand.value for operand in (*task.inputs, *task.writes)}
    last = {o.value: position for position, step in enumerate(task.body.steps) for o in (*step.inputs, *step.writes)}
    freed: list[list[int]] = [[] for _ in calls]
    for value, position in last.items():
        if value not in outside:
            freed[position].append(binding.local_slot(value))
    steps = list(zip(calls, freed, strict=True))

    def run(instance: Instance) -> None:
        slots = instance.slots
        for call, done in steps:
            call(instance)
            for slot in done:
                slots[slot] = None

    return run
