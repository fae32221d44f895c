"""Runs aten ops: one as a task, several as a task, and what a forward op saves for its backward ops beyond the plan's values."""

import json
from collections.abc import Callable, Iterable
from typing import Any

import torch

from executors.binding import Binding, Instance, op_tasks
from executors.kernels.registry import lowered
from simulator.model.ops.aten_json import resolve
from simulator.plan.task import Task


def compile_call(task: Task, binding: Binding) -> Callable[[Instance], None]:
    """A function that runs the op on an instance's tensors and stores its results."""
    body = task.body
    op: Any = resolve(body.target)
    fill = binding.arguments(task)
    if not task.writes:

        def run(instance: Instance) -> None:
            args, kwargs = fill(instance)
            op(*args, **kwargs)

    elif body.outputs == (0,) and len(op._schema.returns) == 1 and "[]" not in str(op._schema.returns[0].type):
        put = binding.setter(task.writes[0])

        def run(instance: Instance) -> None:
            args, kwargs = fill(instance)
            put(instance, op(*args, **kwargs))

    else:
        store = binding.results(task)

        def run(instance: Instance) -> None:
            args, kwargs = fill(instance)
            store(instance, op(*args, **kwargs))

    return run


def compile_op(task: Task, binding: Binding) -> Callable[[Instance], None]:
    """A function that runs the op in the backend's form on an instance's tensors and stores its results."""
    return lowered(task, binding) or compile_call(task, binding)


def compile_ops(task: Task, binding: Binding) -> Callable[[Instance], None]:
    """A function that runs the ops in order and frees the values that exist only inside the list after their last use."""
    calls = [compile_op(step, binding) for step in op_tasks(task)]
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


#: The position of the forward op's second result (save_mean, logsumexp) in the arguments of the backward ops of batch-norm and attention.
#: The slot is named after that value.
_POSITION = 5


def second_result(backward: Task) -> str | None:
    """The value that a backward op reads as its forward op's second result; None if it has no such argument."""
    argument = json.loads(backward.body.args)[_POSITION]
    return backward.inputs[argument["$"]].value if argument is not None else None


class SavedResults:
    """The slot of one forward op. The last of its backward ops frees the slot; without any, nothing is saved.

    `has_forward`: whether the plan contains the forward op on the same device. It does not if a backward op is timed alone, or gets the
    forward op's results from another device; then there is nothing to take.
    """

    def __init__(self, binding: Binding, value: str, forward: str, backward: str):
        """`value`: the forward op's second result. `forward`, `backward`: the targets of the two ops."""
        self.users = sum(op.body.target == backward and second_result(op) == value for op in binding.ops)
        self.has_forward = any(op.body.target == forward and write.value == value for op in binding.ops for write in op.writes)
        #: Whether another device runs the forward op.
        self.received = not self.has_forward and any(write.value == value for task in binding.plan.tasks for write in task.writes)
        self._own: tuple | None = None
        self._slot = binding.local_slot(f"{value}::saved")

    def save(self, instance: Instance, items: Iterable) -> None:
        if self.users:
            instance.slots[self._slot] = (tuple(items), [self.users])

    def recomputed(self, forward: Callable[[], tuple]) -> tuple:
        """What `forward` returns, which runs the forward op: in every call if it ran on another device, from where what is saved beyond the
        plan's values does not come, and in the first call for an op that is timed alone.
        """
        if self.received:
            return forward()
        if self._own is None:
            self._own = forward()
        return self._own

    def take(self, instance: Instance) -> tuple:
        """The items that the forward op saved. The last backward op's call frees them."""
        items, users_left = instance.slots[self._slot]
        users_left[0] -= 1
        if not users_left[0]:
            instance.slots[self._slot] = None
        for item in items:
            if isinstance(item, torch.Tensor) and item.is_cuda:  # the backward op may run on another stream than the forward op
                item.record_stream(torch.cuda.current_stream(item.device))
        return items


HANDLERS = {"op": compile_op, "ops": compile_ops}
