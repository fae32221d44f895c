"""Canonical ops that a backend runs in a form of its own: dropout, whose mask depends on (seed, step, op) and on nothing else."""

import json
from collections.abc import Callable

from simulator.plan import Task

from ..binding import Binding, Instance
from ..dropout import drop, mask


def lowered(task: Task, binding: Binding) -> Callable[[Instance], None] | None:
    """A run function for an op that draws a dropout mask, else None."""
    lower = {"aten.native_dropout.default": _dropout, "aten.bernoulli_.float": _bernoulli}.get(task.body.target)
    return lower(task, binding) if lower is not None else None


def _draw(task: Task, binding: Binding) -> Callable[[Instance, tuple[int, ...], float], object]:
    device, index = binding.device(task.device), binding.draw_index[task.name]
    return lambda instance, shape, p: mask(shape, p, binding.seed, instance.iteration, index, device)


def _dropout(task: Task, binding: Binding) -> Callable[[Instance], None]:
    p = json.loads(task.body.args)[1]
    get, draw = binding.getter(task.inputs[0]), _draw(task, binding)
    setters = [(position, binding.setter(write)) for position, write in zip(task.body.outputs, task.writes, strict=True)]

    def run(instance: Instance) -> None:
        x = get(instance)
        kept = draw(instance, x.shape, p)
        results = (drop(x, kept, p), kept)
        for position, put in setters:
            put(instance, results[position])

    return run


def _bernoulli(task: Task, binding: Binding) -> Callable[[Instance], None]:
    """Masks of dropout on whole features, which have no canonical op of their own."""
    keep = [*json.loads(task.body.args), 0.5][1]
    get, draw = binding.getter(task.mutates[0]), _draw(task, binding)

    def run(instance: Instance) -> None:
        target = get(instance)
        target.copy_(draw(instance, target.shape, 1.0 - keep))

    return run
