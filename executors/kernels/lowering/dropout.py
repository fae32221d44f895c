"""Dropout. With "keyed" draws a mask depends on (seed, step, op) only; with "stream" draws it comes from the device's generator.

See `executors.forms`. With "stream" draws the op runs in its canonical form.
"""

import json
from collections.abc import Callable

import torch

from executors.binding import Binding, Instance
from executors.dropout import drop, key, mask
from executors.kernels.call import compile_call
from simulator.plan.task import Task


def _draw(task: Task, binding: Binding) -> Callable[[Instance, tuple[int, ...], float], object]:
    """A function that draws the mask of an instance: `draw(instance, shape, p)`."""
    device, index = binding.device(task.device), binding.draw_index[task.name]
    return lambda instance, shape, p: mask(shape, p, binding.seed, instance.iteration, index, device)


def _seeded(task: Task, binding: Binding) -> Callable[[Instance], None]:
    """The op in its canonical form, after the device's generator has been seeded for this draw."""
    call, seed, index = compile_call(task, binding), binding.forms.seed, binding.draw_index[task.name]
    if seed is None:
        raise ValueError(f"{task.name} draws a mask by key; expected Forms with the function that seeds the device's generator")

    def run(instance: Instance) -> None:
        seed(key(binding.seed, instance.iteration, index))
        call(instance)

    return run


def lower(task: Task, binding: Binding, on_cpu: Callable[[Task, Binding], Callable[[Instance], None]]) -> Callable[[Instance], None] | None:
    """The draw in the form of the binding's backend, which on the CPU is `on_cpu(task, binding)`; None for the canonical form."""
    if task.name not in binding.draw_index or binding.forms.draws == "stream":
        return None
    return _seeded(task, binding) if binding.forms.cuda else on_cpu(task, binding)


def _dropout(task: Task, binding: Binding) -> Callable[[Instance], None]:
    p = json.loads(task.body.args)[1]
    get, draw = binding.getter(task.inputs[0]), _draw(task, binding)
    setters = [(position, binding.setter(write)) for position, write in zip(task.body.outputs, task.writes, strict=True)]

    def run(instance: Instance) -> None:
        x = get(instance)
        keep = draw(instance, x.shape, p)
        results = (drop(x, keep, p), keep)
        for position, put in setters:
            put(instance, results[position])

    return run


def _bernoulli(task: Task, binding: Binding) -> Callable[[Instance], None]:
    """The mask of dropout on whole features, which has no canonical op of its own."""
    keep = [*json.loads(task.body.args), 0.5][1]
    get, draw = binding.getter(task.mutates[0]), _draw(task, binding)

    def run(instance: Instance) -> None:
        target = get(instance)
        target.copy_(draw(instance, target.shape, 1.0 - keep))

    return run


def _own_dropout(task: Task, binding: Binding) -> Callable[[Instance], None]:
    """F.dropout on the CPU, where PyTorch has no kernel for the whole op: a mask that contains the scale, and a product."""
    keep = 1.0 - json.loads(task.body.args)[1]
    get = binding.getter(task.inputs[0])
    setters = [(position, binding.setter(write)) for position, write in zip(task.body.outputs, task.writes, strict=True)]

    def run(instance: Instance) -> None:
        x = get(instance)
        scaled = torch.empty_like(x).bernoulli_(keep).div_(keep)
        results = (x * scaled, scaled)
        for position, put in setters:
            put(instance, results[position])

    return run


def _own_backward(task: Task, binding: Binding) -> Callable[[Instance], None]:
    """The backward of `_own_dropout`: one product."""
    get_grad, get_mask = (binding.getter(operand) for operand in task.inputs)
    put = binding.setter(task.writes[0])
    return lambda instance: put(instance, get_grad(instance) * get_mask(instance))


def _as_pytorch_on_cpu(binding: Binding) -> bool:
    return not binding.forms.cuda and binding.forms.draws == "stream"


TARGETS = {
    "aten.native_dropout.default": lambda task, binding: (
        _own_dropout(task, binding) if _as_pytorch_on_cpu(binding) else lower(task, binding, _dropout)
    ),
    "aten.native_dropout_backward.default": lambda task, binding: _own_backward(task, binding) if _as_pytorch_on_cpu(binding) else None,
    "aten.bernoulli_.float": lambda task, binding: lower(task, binding, _bernoulli),
}
