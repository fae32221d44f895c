"""Dropout, and random numbers that a model draws itself (torch.randn_like).

With "keyed" draws (`executors.binding.Forms`) they follow from (seed, step, index), so that every order of execution, and plain PyTorch,
draws the same ones. `index` numbers the draws of one step, from 0, over all its microbatches. On the CPU, `mask` makes dropout masks. All
other draws, and on CUDA all of them, are made by the op itself, after the device's generator has been seeded for the draw. With "stream"
draws they come from the device's generator, and the op runs in its canonical form.
"""

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from hashlib import blake2b
from typing import TypeVar

import torch
from torch import Tensor

from executors.binding import Binding, Instance
from executors.kernels.ops import compile_call
from simulator.plan.bodies.opcall import DrawnPart, drawn_part
from simulator.plan.ops import ROWS
from simulator.plan.task import Task
from traces.errors import SchedcastError

_T = TypeVar("_T")

_CPU_GENERATOR = threading.Lock()


def draw_seed(seed: int, step: int, index: int) -> int:
    """The seed of a generator for one draw."""
    return int.from_bytes(blake2b(f"{seed} {step} {index}".encode(), digest_size=8).digest(), "big")


def mask(shape: tuple[int, ...], p: float, seed: int, step: int, index: int, device: torch.device | str = "cpu") -> Tensor:
    """The elements to keep: a bool tensor, False with probability `p`.

    The mask is the same on all devices of one kind, whatever the precision.
    """
    generator = torch.Generator(device)
    generator.manual_seed(draw_seed(seed, step, index))
    return torch.rand(shape, generator=generator, dtype=torch.float32, device=device) >= p


def drop(x: Tensor, keep: Tensor, p: float) -> Tensor:
    """Zero the elements that `keep` does not mark and scale the others, as aten.native_dropout does."""
    return x.mul(keep).mul_(0.0 if p == 1.0 else 1.0 / (1.0 - p))


def run_seeded(draw_key: int, run: Callable[[], _T]) -> _T:
    """Run an op after the CPU's default generator has been seeded for it. One thread at a time: they share the generator."""
    with _CPU_GENERATOR:
        torch.default_generator.manual_seed(draw_key)
        return run()


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
    seed, index, p = seed_of(task, binding), task.body.draw, json.loads(task.body.args)[1]
    get = binding.getter(task.inputs[0])
    store = binding.results(task)

    def run(instance: Instance) -> None:
        x = get(instance)
        whole = torch.empty(part.of, dtype=x.dtype, device=x.device, memory_format=_format_of(x))
        seed(draw_seed(binding.seed, instance.iteration, index))
        keep = _cut(torch.ops.aten.native_dropout.default(whole, p, True)[1], part)
        store(instance, (drop(x, keep, p), keep))

    return run


def _format_of(x: torch.Tensor) -> torch.memory_format:
    channels_last = x.dim() == 4 and not x.is_contiguous() and x.is_contiguous(memory_format=torch.channels_last)
    return torch.channels_last if channels_last else torch.contiguous_format


def seed_of(task: Task, binding: Binding) -> Callable[[int], None]:
    if binding.forms.seed is None:
        raise ValueError(f"{task.name} draws a mask by key; expected Forms with the function that seeds the device's generator")
    return binding.forms.seed


def _seeded(task: Task, binding: Binding) -> Callable[[Instance], None]:
    """The op in its canonical form, after the device's generator has been seeded for this draw."""
    call, seed, index = compile_call(task, binding), seed_of(task, binding), task.body.draw

    def run(instance: Instance) -> None:
        seed(draw_seed(binding.seed, instance.iteration, index))
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
    store = binding.results(task)

    def run(instance: Instance) -> None:
        x = get(instance)
        keep = draw(instance, x.shape, p)
        store(instance, (drop(x, keep, p), keep))

    return run


def _bernoulli(task: Task, binding: Binding) -> Callable[[Instance], None]:
    """The mask of dropout on whole features, which has no canonical op."""
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
    store = binding.results(task)

    def run(instance: Instance) -> None:
        x = get(instance)
        scaled = torch.empty_like(x).bernoulli_(keep).div_(keep)
        store(instance, (x * scaled, scaled))

    return run


def _own_backward(task: Task, binding: Binding) -> Callable[[Instance], None]:
    """The backward of `_own_dropout`: one product."""
    get_grad, get_mask = (binding.getter(operand) for operand in task.inputs)
    put = binding.setter(task.writes[0])
    return lambda instance: put(instance, get_grad(instance) * get_mask(instance))


def _own_draw(task: Task, binding: Binding) -> Callable[[Instance], None]:
    """A draw by the model itself on the CPU."""
    call, index = compile_call(task, binding), task.body.draw
    return lambda instance: run_seeded(draw_seed(binding.seed, instance.iteration, index), lambda: call(instance))


def _overloads(name: str) -> list[str]:
    packet = getattr(torch.ops.aten, name)
    return [str(getattr(packet, overload)) for overload in packet.overloads()]


def _as_pytorch_on_cpu(binding: Binding) -> bool:
    return not binding.forms.cuda and binding.forms.draws == "stream"


_DROPOUT: dict[str, Callable[[Task, Binding], Callable[[Instance], None] | None]] = {
    "aten.native_dropout.default": lambda task, binding: (
        _own_dropout(task, binding) if _as_pytorch_on_cpu(binding) else lower(task, binding, _dropout)
    ),
    "aten.native_dropout_backward.default": lambda task, binding: _own_backward(task, binding) if _as_pytorch_on_cpu(binding) else None,
    "aten.bernoulli_.float": lambda task, binding: lower(task, binding, _bernoulli),
}
TARGETS = _DROPOUT | {
    target: lambda task, binding: lower(task, binding, _own_draw)
    for name, row in ROWS.items()
    if row.draws
    for target in _overloads(name)
    if target not in _DROPOUT
}
