"""Dropout. With "keyed" draws a mask depends on (seed, step, op) only; with "stream" draws it comes from the device's generator.

See `executors.forms`. With "stream" draws the op runs in its canonical form.
"""

import json
from collections.abc import Callable
from dataclasses import replace

import torch

from executors.binding import Binding, Instance
from executors.dropout import drop, key, mask
from executors.kernels.call import compile_call
from simulator.plan.bodies.drawn_part import DrawnPart, drawn_part
from simulator.plan.task import Task
from traces.errors import SchedcastError


def _draw(task: Task, binding: Binding) -> Callable[[Instance, tuple[int, ...], float], torch.Tensor]:
    """A function that draws the mask of an instance, or the op's part of it: `draw(instance, shape, p)`."""
    device, index, part = binding.device(task.device), task.body.draw, drawn_part(task.body.kwargs)
    if part is None:
        return lambda instance, shape, p: mask(shape, p, binding.seed, instance.iteration, index, device)
    return lambda instance, shape, p: _cut(mask(part.of, p, binding.seed, instance.iteration, index, device), part)


def _cut(whole: torch.Tensor, part: DrawnPart) -> torch.Tensor:
    """A copy of the part, so that the whole mask can be freed."""
    return whole[tuple(slice(first, end) for first, end in part.box)].clone(memory_format=torch.contiguous_format)


def _seeded_part(task: Task, binding: Binding, part: DrawnPart) -> Callable[[Instance], None]:
    """The op's part of what the canonical op draws for the whole tensor.

    A kernel's numbers depend on dtype and layout, so the op runs on a whole tensor like its part. Only the mask of that counts.
    """
    seed, index, p = _seed_of(task, binding), task.body.draw, json.loads(task.body.args)[1]
    get = binding.getter(task.inputs[0])
    setters = [(position, binding.setter(write)) for position, write in zip(task.body.outputs, task.writes, strict=True)]

    def run(instance: Instance) -> None:
        x = get(instance)
        whole = torch.empty(part.of, dtype=x.dtype, device=x.device, memory_format=_format_of(x))
        seed(key(binding.seed, instance.iteration, index))
        keep = _cut(torch.ops.aten.native_dropout.default(whole, p, True)[1], part)
        results = (drop(x, keep, p), keep)
        for position, put in setters:
            put(instance, results[position])

    return run


def _format_of(x: torch.Tensor) -> torch.memory_format:
    channels_last = x.dim() == 4 and not x.is_contiguous() and x.is_contiguous(memory_format=torch.channels_last)
    return torch.channels_last if channels_last else torch.contiguous_format


def _seed_of(task: Task, binding: Binding) -> Callable[[int], None]:
    if binding.forms.seed is None:
        raise ValueError(f"{task.name} draws a mask by key; expected Forms with the function that seeds the device's generator")
    return binding.forms.seed


def _seeded(task: Task, binding: Binding) -> Callable[[Instance], None]:
    """The op in its canonical form, after the device's generator has been seeded for this draw."""
    call, seed, index = compile_call(task, binding), _seed_of(task, binding), task.body.draw

    def run(instance: Instance) -> None:
        seed(key(binding.seed, instance.iteration, index))
        call(instance)

    return run


def lower(task: Task, binding: Binding, on_cpu: Callable[[Task, Binding], Callable[[Instance], None]]) -> Callable[[Instance], None] | None:
    """The draw in the form of the binding's backend, which on the CPU is `on_cpu(task, binding)`; None for the canonical form.

    Raises SchedcastError for a part of a mask in a CUDA graph, whose draws follow one another.
    """
    part = drawn_part(task.body.kwargs)
    if not task.body.random:
        return None if part is None else compile_call(replace(task, body=task.body.as_measured), binding)
    if part is not None and binding.forms.draws == "stream":
        raise SchedcastError(f"{task.name} draws a part of a dropout mask, which a CUDA graph cannot; use --mode eager")
    if binding.forms.draws == "stream":
        return None
    if not binding.forms.cuda:
        return on_cpu(task, binding)
    return _seeded(task, binding) if part is None else _seeded_part(task, binding, part)


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
