"""Calls one aten op."""

from collections.abc import Callable

import torch

from simulator.aten_json import resolve
from simulator.plan import Task

from ..binding import Binding, Instance
from .lowering import lowered

KIND = "op"


def compile_task(task: Task, binding: Binding) -> Callable[[Instance], None]:
    """A function that runs the op on an instance's tensors and stores its results."""
    special = lowered(task, binding)
    return special if special is not None else compile_call(task, binding, binding.device(task.device))


def compile_call(task_like, binding: Binding, device: torch.device) -> Callable[[Instance], None]:
    """The same for anything with `body`, `inputs` and `writes` (a task, or a step of an OpList)."""
    body = task_like.body
    op = resolve(body.target)
    fill = binding.arguments(task_like, body.args, body.kwargs, device)
    setters = [(position, binding.setter(write)) for position, write in zip(body.outputs, task_like.writes, strict=True)]
    if not setters:

        def run(instance: Instance) -> None:
            args, kwargs = fill(instance)
            op(*args, **kwargs)

    elif body.outputs == (0,) and len(op._schema.returns) == 1 and "[]" not in str(op._schema.returns[0].type):
        put = setters[0][1]

        def run(instance: Instance) -> None:
            args, kwargs = fill(instance)
            put(instance, op(*args, **kwargs))

    else:

        def run(instance: Instance) -> None:
            args, kwargs = fill(instance)
            results = op(*args, **kwargs)
            for position, put in setters:
                put(instance, results[position])

    return run
