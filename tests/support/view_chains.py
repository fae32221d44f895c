"""Random chains of views, and placements of the tensors that they view, as hypothesis draws them."""

import json
from collections.abc import Callable, Sequence
from functools import reduce
from itertools import pairwise
from math import prod

import torch
from hypothesis import strategies as st

from executors.binding import view_function
from simulator.model.division.placement import Placement
from simulator.plan.task import ViewStep

_OVERLOADS = {"slice": "Tensor", "split": "Tensor", "transpose": "int", "select": "int", "unbind": "int", "squeeze": "dim"}
_CPU = torch.device("cpu")


def step(name: str, *arguments: object, output: int | None = None) -> ViewStep:
    """The view step that calls this op of aten."""
    return ViewStep(f"aten.{name}.{_OVERLOADS.get(name, 'default')}", json.dumps(arguments), output)


def viewed(tensor: torch.Tensor, steps: Sequence[ViewStep]) -> torch.Tensor:
    """The tensor after the steps. A `view` that its strides do not allow is a copy."""
    return reduce(lambda seen, each: view_function(_copying(each), _CPU)(seen), steps, tensor)


def _copying(each: ViewStep) -> ViewStep:
    return ViewStep("aten.reshape.default", each.args) if each.target == "aten.view.default" else each


def numbered(shape: Sequence[int]) -> torch.Tensor:
    """A contiguous tensor whose elements are their own numbers."""
    return torch.arange(prod(shape), dtype=torch.float64).view(*shape)


SHAPES = st.lists(st.sampled_from([1, 2, 3, 4, 6]), min_size=1, max_size=4).map(tuple)


def _shape(draw: Callable, tensor: torch.Tensor) -> list[int]:
    """A shape with as many elements; one extent may be -1."""
    left, shape = tensor.numel(), []
    while left > 1 or not shape:
        shape.append(draw(st.sampled_from([d for d in range(1, left + 1) if left % d == 0 and (d > 1 or left == 1)])))
        left //= shape[-1]
    if draw(st.booleans()):
        shape.insert(draw(st.integers(0, len(shape))), 1)
    if draw(st.booleans()):
        shape[draw(st.integers(0, len(shape) - 1))] = -1
    return shape


def _expanded(draw: Callable, tensor: torch.Tensor) -> list[int]:
    own = [draw(st.integers(1, 3)) if extent == 1 else draw(st.sampled_from([-1, extent])) for extent in tensor.shape]
    return [*draw(st.lists(st.integers(1, 2), max_size=1)), *own]


def _next(draw: Callable, tensor: torch.Tensor) -> ViewStep:
    """A step that the tensor allows, except that a `view` may need a copy."""
    rank, real = tensor.dim(), not tensor.is_complex()
    names = ["view", "view", "unsqueeze", "expand", "detach"]
    names += ["permute", "transpose", "squeeze", "slice", "slice", "select", "split", "split_with_sizes", "unbind"] if rank else []
    names += ["t"] if rank == 2 else []
    pairs = rank > 1 and tensor.shape[-1] == 2 and tensor.is_contiguous() and tensor.storage_offset() % 2 == 0
    names += ["view_as_complex"] * (2 if real and pairs else 0)
    names += [] if real else ["_conj"] if tensor.is_conj() else ["view_as_real", "_conj"]
    name = draw(st.sampled_from(names))
    if name in ("view", "expand"):
        return step(name, (_shape if name == "view" else _expanded)(draw, tensor))
    if name in ("detach", "t", "view_as_complex", "view_as_real", "_conj"):
        return step(name)
    if name == "permute":
        return step(name, [dim - draw(st.sampled_from([0, rank])) for dim in draw(st.permutations(range(rank)))])
    if name == "unsqueeze":
        return step(name, draw(st.integers(-rank - 1, rank)))
    dim = draw(st.integers(-rank, rank - 1))
    extent = tensor.shape[dim]
    if name == "transpose":
        return step(name, dim, draw(st.integers(-rank, rank - 1)))
    if name == "slice":
        first = draw(st.integers(0, extent - 1))
        end = draw(st.sampled_from([*range(first + 1, extent + 1), 2**63 - 1]))
        return step(name, dim, draw(st.sampled_from([first, first - extent])), end, draw(st.sampled_from([1, 1, 2])))
    if name == "split":
        size = draw(st.integers(1, extent))
        return step(name, size, dim, output=draw(st.integers(0, -(-extent // size) - 1)))
    if name == "split_with_sizes":
        cuts = [0, *sorted(draw(st.sets(st.integers(1, extent - 1), max_size=2))), extent] if extent > 1 else [0, 1]
        sizes = [end - first for first, end in pairwise(cuts)]
        return step(name, sizes, dim, output=draw(st.integers(0, len(sizes) - 1)))
    if name == "select":
        return step(name, dim, draw(st.integers(-extent, extent - 1)))
    if name == "unbind":
        return step(name, dim, output=draw(st.integers(0, extent - 1)))
    return step(name, dim)  # squeeze


@st.composite
def chains(draw: Callable, most: int = 4) -> tuple[tuple[int, ...], list[ViewStep]]:
    """A shape, and up to `most` view steps of a tensor of this shape."""
    shape = draw(SHAPES)
    tensor, steps = numbered(shape), []
    for _ in range(draw(st.integers(1, most))):
        steps.append(_next(draw, tensor))
        tensor = viewed(tensor, steps[-1:])
    return shape, steps


def placements(shape: Sequence[int], degree: int) -> list[Placement]:
    """The ways to cut one dimension of a tensor among so many devices."""
    return [
        Placement(dim, (extent // count,) * count)
        for dim, extent in enumerate(shape)
        for count in range(1, extent + 1)
        if extent % (count * degree) == 0
    ]


def part(tensor: torch.Tensor, placement: Placement, rank: int, degree: int) -> torch.Tensor:
    """The part of a tensor that device `rank` has: that of each block, one behind another."""
    if placement.dim is None:
        return tensor
    return torch.cat([block.chunk(degree, placement.dim)[rank] for block in tensor.split(placement.blocks, placement.dim)], placement.dim)
