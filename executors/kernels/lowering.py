"""Canonical ops that a backend runs in a form of its own: dropout, whose mask depends on (seed, step, op) and on nothing else."""

import json
from collections.abc import Callable

from simulator.plan import Task

from ..binding import Binding, Instance
from ..dropout import mask


def lowered(task: Task, binding: Binding) -> Callable[[Instance], None] | None:
    """A run function for a canonical op that needs lowering, else None."""
    if task.body.target != "aten.native_dropout.default":
        return None
    p = json.loads(task.body.args)[1]
    get, device, index = binding.getter(task.inputs[0]), binding.device(task.device), binding.dropout_index[task.name]
    setters = [(position, binding.setter(write)) for position, write in zip(task.body.outputs, task.writes, strict=True)]
    scale = 0.0 if p == 1 else 1 / (1 - p)

    def run(instance: Instance) -> None:
        x = get(instance)
        kept = mask(x.shape, p, binding.seed, instance.iteration, index, device, x.dtype)
        results = (x * kept * scale, kept)
        for position, put in setters:
            put(instance, results[position])

    return run
