"""A level of a back-propagation scan: by batched matrix products, or on CUDA by one hand-written kernel."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from executors.binding import Binding, Instance
from executors.kernels.native import compile as native
from executors.kernels.native import scan_level as native_level
from simulator.bodies.scan_level import ScanLevel
from simulator.ops.recurrent.scan_order import order, prefix_order
from simulator.plan.task import Task

KIND = "scan-level"


def up(jacobians: Tensor, gradient: Tensor | None, elements: int) -> tuple[Tensor | None, Tensor | None]:
    """Jacobians [m, B, H, H] (with a gradient [B, H] one less) to those of the level above, and the gradient that is its first element."""
    pairs, skipped = elements // 2, int(gradient is not None)
    later = jacobians[elements - pairs - skipped :]
    first = None if gradient is None else _applied(later[0], gradient)
    if pairs == skipped:
        return None, first
    made = torch.bmm(later[skipped:].flatten(0, 1), jacobians[: pairs - skipped].flatten(0, 1))
    return made.view(-1, *jacobians.shape[1:]), first


def down(jacobians: Tensor | None, above: Tensor, gradient: Tensor | None, elements: int) -> Tensor:
    """Prefixes of the level above and the Jacobians of even place (and the last) to the prefixes of this level, as ScanLevel has them."""
    paired = elements % 2 == 0
    parts = [above[:-1] if paired else above]
    if gradient is not None:
        parts.append(gradient.unsqueeze(0))
    if jacobians is not None:
        parts.append(_applied(jacobians.flatten(0, 1), above[: len(jacobians)].flatten(0, 1)).view(-1, *above.shape[1:]))
    if paired:
        parts.append(above[-1:])
    return torch.cat(parts)


def linear(jacobians: Tensor, gradient: Tensor, sequence: list[int], places: list[int]) -> Tensor:
    """Every prefix one after another: [m + 1, B, H], of the leftmost batch [m, B, H]. Arguments as of `native.scan_level.linear`."""
    found = gradient.new_empty(len(places), *gradient.shape)
    transposed = jacobians.transpose(-1, -2).unbind()
    rows = found.unsqueeze(2).unbind()
    rows[places[0]].copy_(gradient.unsqueeze(1))
    for number, place in enumerate(sequence):
        torch.bmm(rows[places[number]], transposed[place], out=rows[places[number + 1]])
    return found


def _applied(jacobians: Tensor, gradients: Tensor) -> Tensor:
    """[N, H, H] times [N, H]; as a row times the transpose, which is what batched products are fast at."""
    return torch.bmm(gradients.unsqueeze(1), jacobians.transpose(1, 2)).squeeze(1)


def _sequence(elements: int, leftmost: bool) -> tuple[list[int], list[int]]:
    """Where each successive element's Jacobian lies, and where each successive prefix."""
    first = int(leftmost)
    stored = {place: where for where, place in enumerate(order(elements)[first:])}
    results = {place: where for where, place in enumerate(prefix_order(elements, leftmost))}
    return [stored[j] for j in range(first, elements)], [results[j] for j in range(first, elements + 1)]


def compile_task(task: Task, binding: Binding) -> Callable[[Instance], None]:
    """A function that runs the level on an instance's tensors: as one kernel where there is one, else as batched products."""
    body: ScanLevel = task.body
    get = [binding.getter(operand) for operand in task.reads]
    put = [binding.setter(operand) for operand in task.writes]
    real = native.usable(task, binding)
    shape = native_level.Shape(task.writes[0].shape[-1], real) if real else None
    if body.direction == "up":
        sweep = (shape and native_level.up(shape, body.elements, body.leftmost)) or partial(up, elements=body.elements)

        def run(instance: Instance) -> None:
            found = sweep(get[0](instance), get[1](instance) if body.leftmost else None)
            for setter, result in zip(put, (result for result in found if result is not None), strict=True):
                setter(instance, result)

    elif body.direction == "down":
        without = len(task.reads) == 1 + body.leftmost
        sweep = (shape and native_level.down(shape, body.elements)) or partial(down, elements=body.elements)

        def run(instance: Instance) -> None:
            read = [getter(instance) for getter in get]
            gradient = read.pop() if body.leftmost else None
            put[0](instance, sweep(None if without else read[0], read[-1], gradient))

    else:
        sequence, places = _sequence(body.elements, body.leftmost)
        device = binding.device(task.device)
        sweep = (shape and native_level.linear(shape, sequence, places, device)) or partial(linear, sequence=sequence, places=places)

        def run(instance: Instance) -> None:
            put[0](instance, sweep(get[0](instance), get[1](instance)))

    return run
