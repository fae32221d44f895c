"""Compiles the call of one aten op in its canonical form."""

from collections.abc import Callable
from typing import Any

from executors.binding import Binding, Instance
from simulator.model.ops.aten_json import resolve
from simulator.plan.task import Task


def compile_call(task: Task, binding: Binding) -> Callable[[Instance], None]:
    """A function that runs the op on an instance's tensors and stores its results."""
    body = task.body
    op: Any = resolve(body.target)
    fill = binding.arguments(task, body.args, body.kwargs, binding.device(task.device))
    setters = [(position, binding.setter(write)) for position, write in zip(body.outputs, task.writes, strict=True)]
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
