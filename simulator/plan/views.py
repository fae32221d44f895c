"""View steps: the geometry of a tensor after them, without torch."""

import json
from collections.abc import Iterator, Sequence
from functools import lru_cache
from math import prod

from simulator.plan.task import Operand, ViewStep
from simulator.plan.tensors import contiguous

#: Names of view ops: of those that keep the order of elements; that exchange dimensions; that cut one of them into several results; and
#: that leave the geometry as it is.
RESHAPING, PERMUTING, SPLITTING = ("view", "_unsafe_view", "reshape"), ("t", "transpose", "permute"), ("split", "split_with_sizes")
SAME = ("_conj", "alias", "detach")


class NotABoxError(ValueError):
    """A view is not supported: its part is not a box of the tensor, its strides do not allow it, or its kind is unknown."""


def arguments_of_view(step: ViewStep) -> tuple[str, list]:
    """The name of a view step's op, and its arguments after the tensor."""
    return step.target.split(".")[1], json.loads(step.args)


def view_step(target: str, *arguments: object) -> ViewStep:
    """The step that calls the aten op `target` with `arguments` after the tensor."""
    return ViewStep(target, json.dumps(arguments, separators=(",", ":")))


def geometry(step: ViewStep, shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shape and strides of a tensor after a view step.

    Raises NotABoxError for a `view` that the strides do not allow, and for a step of another kind than those known here.
    """
    name, arguments = arguments_of_view(step)
    if name in RESHAPING:
        result = inferred(tuple(arguments[0]), prod(shape))
        return result, _reshaped_strides(shape, strides, result)
    if name == "expand":
        result = tuple(shape[d - len(arguments[0])] if e == -1 else e for d, e in enumerate(arguments[0]))
        new = len(result) - len(shape)
        return result, (*(0,) * new, *(s if e == n else 0 for e, n, s in zip(shape, result[new:], strides, strict=True)))
    if name in PERMUTING:
        order = order_of(name, arguments, len(shape))
        return tuple(shape[d] for d in order), tuple(strides[d] for d in order)
    if name == "unsqueeze":
        at = arguments[0] % (len(shape) + 1)
        stride = shape[at] * strides[at] if at < len(shape) else 1
        return (*shape[:at], 1, *shape[at:]), (*strides[:at], stride, *strides[at:])
    if name == "slice" or (name in SPLITTING and step.output is not None):
        dim, first, end, by = slice_arguments(arguments, shape) if name == "slice" else (*split_range(step, shape), 1)
        return (*shape[:dim], -(-(end - first) // by), *shape[dim + 1 :]), (*strides[:dim], strides[dim] * by, *strides[dim + 1 :])
    if name == "select" or (name == "unbind" and step.output is not None):
        dim = (arguments[0] if arguments else 0) % len(shape)
        return (*shape[:dim], *shape[dim + 1 :]), (*strides[:dim], *strides[dim + 1 :])
    if name == "squeeze" and arguments and isinstance(arguments[0], int):
        dim = arguments[0] % len(shape)
        return (shape, strides) if shape[dim] > 1 else ((*shape[:dim], *shape[dim + 1 :]), (*strides[:dim], *strides[dim + 1 :]))
    if name in SAME:
        return shape, strides
    if name == "view_as_complex":
        return shape[:-1], tuple(stride // 2 for stride in strides[:-1])
    if name == "view_as_real":
        return (*shape, 2), (*(stride * 2 for stride in strides), 1)
    raise NotABoxError(f"{step.target} is not known")


def split_range(step: ViewStep, shape: tuple[int, ...]) -> tuple[int, int, int]:
    """The dimension that `split` or `split_with_sizes` cuts, and the range of the result that the step picks."""
    name, arguments = arguments_of_view(step)
    dim = (arguments[1] if len(arguments) > 1 else 0) % len(shape)
    if name == "split":
        first = step.output * arguments[0]
        return dim, first, min(shape[dim], first + arguments[0])
    first = sum(arguments[0][: step.output])
    return dim, first, first + arguments[0][step.output]


@lru_cache(maxsize=4096)
def dense(shape: tuple[int, ...], like: tuple[int, ...]) -> tuple[int, ...]:
    """Strides, in elements, of a tensor of `shape` without gaps whose dimensions are in the order of those with strides `like`."""
    strides = [1] * len(shape)
    step = 1
    for dim in sorted(range(len(shape)), key=lambda d: (like[d], -d)):
        strides[dim] = step
        step *= shape[dim]
    return tuple(strides)


def with_views(operand: Operand, steps: Sequence[ViewStep]) -> Operand:
    """The operand with more view steps. Raises NotABoxError for a `view` that its strides do not allow, and for an unknown step."""
    if not steps:
        return operand
    shape, strides = operand.shape, operand.strides
    for step in steps:
        shape, strides = geometry(step, shape, strides)
    return Operand(operand.value, shape, strides, operand.dtype, (*operand.views, *steps))


def inferred(shape: tuple[int, ...], count: int) -> tuple[int, ...]:
    """A shape whose extent -1, if there is one, is what the number of elements leaves."""
    known = prod(extent for extent in shape if extent != -1)
    return tuple(count // known if extent == -1 else extent for extent in shape)


def equal_ranges(before: tuple[int, ...], after: tuple[int, ...]) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """Yield ranges of dimensions of two shapes, as short as possible, with equally many elements."""
    a = b = 0
    while a < len(before) or b < len(after):
        first_a, first_b, count_a, count_b = a, b, 1, 1
        while a == first_a or b == first_b or count_a != count_b:
            if a < len(before) and (count_a <= count_b or b == len(after)):
                count_a, a = count_a * before[a], a + 1
            elif b < len(after):
                count_b, b = count_b * after[b], b + 1
            else:
                break
        yield (first_a, a), (first_b, b)


def order_of(name: str, arguments: list, rank: int) -> list[int]:
    """The dimension of the tensor behind each dimension of a permuted one."""
    order = list(range(rank))
    if name == "permute":
        return [d % rank for d in arguments[0]]
    a, b = (d % rank for d in arguments) if name == "transpose" else (0, rank - 1)
    order[a], order[b] = order[b], order[a]
    return order


def slice_arguments(arguments: list, shape: tuple[int, ...]) -> tuple[int, int, int, int]:
    """Dimension, first, end and step of a slice."""
    known = [*arguments, *(0, None, None, 1)[len(arguments) :]]
    dim, first, end, by = known
    dim, extent = dim % len(shape), shape[dim]
    first, end = 0 if first is None else first, extent if end is None else end
    first, end = (min(max(0, place + extent if place < 0 else place), extent) for place in (first, end))
    return dim, first, max(first, end), by


def _reshaped_strides(shape: tuple[int, ...], strides: tuple[int, ...], result: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of a tensor seen as shape `result`, by PyTorch's rule: what is merged must lie without gaps."""
    if 0 in shape:
        return contiguous(result)
    chunks: list[tuple[int, int]] = []  # (elements, stride of the last one), from the last dimension on
    for extent, stride in zip(reversed(shape), reversed(strides), strict=True):
        if extent == 1:
            continue
        if chunks and stride == chunks[-1][0] * chunks[-1][1]:
            chunks[-1] = (chunks[-1][0] * extent, chunks[-1][1])
        else:
            chunks.append((extent, stride))
    new: list[int] = []
    left, stride = chunks.pop(0) if chunks else (1, 1)
    for extent in reversed(result):
        if left == 1 and extent > 1 and chunks:
            left, stride = chunks.pop(0)
        if left % extent:
            raise NotABoxError(f"a tensor of shape {shape} with strides {strides} cannot be seen as {result}")
        new.append(stride)
        stride *= extent
        left //= extent
    return tuple(reversed(new))
