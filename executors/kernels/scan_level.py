"""Runs a level of a back-propagation scan, with batched matrix products, or on CUDA with one hand-written kernel.

Shapes: m = Jacobians of the batch, B = samples, H = units.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from executors.binding import Binding, Instance
from executors.kernels import scan_kernels
from simulator.model.ops.scan_order import order, prefix_order
from simulator.plan.bodies.scan import ScanLevel
from simulator.plan.task import Task


def up(jacobians: Tensor, gradient: Tensor | None, elements: int) -> tuple[Tensor | None, Tensor | None]:
    """The up-sweep: multiplies pairs of successive elements.

    `jacobians`: [m, B, H, H], in scan order. `gradient`: [B, H], the first of the `elements` elements of a leftmost batch, otherwise None.
    Returns the Jacobians of the level above (None if it has none) and the gradient that is its first element (None without a gradient).
    """
    pairs, skipped = elements // 2, int(gradient is not None)
    later = jacobians[elements - pairs - skipped :]
    first = None if gradient is None else _apply(later[0], gradient)
    if pairs == skipped:
        return None, first
    products = torch.bmm(later[skipped:].flatten(0, 1), jacobians[: pairs - skipped].flatten(0, 1))
    return products.view(-1, *jacobians.shape[1:]), first


def down(jacobians: Tensor | None, above: Tensor, gradient: Tensor | None, elements: int) -> Tensor:
    """The down-sweep: computes this level's prefixes, in the order that `ScanLevel` documents.

    `jacobians`: those at even places of this level, and the last one; None if there are none. `above`: [m, B, H], the prefixes of the level
    above. `gradient`: [B, H] for the leftmost batch, otherwise None.
    """
    paired = elements % 2 == 0
    prefixes = [above[:-1] if paired else above]
    if gradient is not None:
        prefixes.append(gradient.unsqueeze(0))
    if jacobians is not None:
        prefixes.append(_apply(jacobians.flatten(0, 1), above[: len(jacobians)].flatten(0, 1)).view(-1, *above.shape[1:]))
    if paired:
        prefixes.append(above[-1:])
    return torch.cat(prefixes)


def linear(jacobians: Tensor, gradient: Tensor, sequence: list[int], places: list[int]) -> Tensor:
    """Computes every prefix one after another, [m + 1, B, H]. See `scan_kernels.linear` for the arguments."""
    prefixes = gradient.new_empty(len(places), *gradient.shape)
    transposed = jacobians.transpose(-1, -2).unbind()
    rows = prefixes.unsqueeze(2).unbind()
    rows[places[0]].copy_(gradient.unsqueeze(1))
    for number, place in enumerate(sequence):
        torch.bmm(rows[places[number]], transposed[place], out=rows[places[number + 1]])
    return prefixes


def _apply(jacobians: Tensor, gradients: Tensor) -> Tensor:
    """[N, H, H] times [N, H], computed as a row vector times the transpose, for which batched products are faster."""
    return torch.bmm(gradients.unsqueeze(1), jacobians.transpose(1, 2)).squeeze(1)


def _sequence(elements: int, leftmost: bool) -> tuple[list[int], list[int]]:
    """The position of each successive element's Jacobian in its batch, and of each successive prefix in the result."""
    first = int(leftmost)
    stored = {element: position for position, element in enumerate(order(elements)[first:])}
    results = {element: position for position, element in enumerate(prefix_order(elements, leftmost))}
    return [stored[j] for j in range(first, elements)], [results[j] for j in range(first, elements + 1)]


def compile_level(task: Task, binding: Binding) -> Callable[[Instance], None]:
    """A function that runs the level on an instance's tensors: with the hand-written kernel if it is usable, else with batched products."""
    body: ScanLevel = task.body
    get = [binding.getter(operand) for operand in task.reads]
    put = [binding.setter(operand) for operand in task.writes]
    c_type = scan_kernels.cuda_type(task, binding)
    shape = scan_kernels.Shape(task.writes[0].shape[-1], c_type) if c_type else None
    if body.direction == "up":
        sweep_up = (shape and scan_kernels.up(shape, body.elements, body.leftmost)) or partial(up, elements=body.elements)

        def run(instance: Instance) -> None:
            results = sweep_up(get[0](instance), get[1](instance) if body.leftmost else None)
            for setter, result in zip(put, (result for result in results if result is not None), strict=True):
                setter(instance, result)

    elif body.direction == "down":
        no_jacobians = len(task.reads) == 1 + body.leftmost
        sweep_down = (shape and scan_kernels.down(shape, body.elements)) or partial(down, elements=body.elements)

        def run(instance: Instance) -> None:
            tensors = [getter(instance) for getter in get]
            gradient = tensors.pop() if body.leftmost else None
            put[0](instance, sweep_down(None if no_jacobians else tensors[0], tensors[-1], gradient))

    else:
        sequence, places = _sequence(body.elements, body.leftmost)
        device = binding.device(task.device)
        run_all = (shape and scan_kernels.linear(shape, sequence, places, device)) or partial(linear, sequence=sequence, places=places)

        def run(instance: Instance) -> None:
            put[0](instance, run_all(get[0](instance), get[1](instance)))

    return run


HANDLERS = {"scan-level": compile_level}
