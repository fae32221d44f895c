"""How a tensor is placed on the devices of a group: each has all of it, a part, or an addend of a sum; and the placement of its views.

These are the placements of DTensor (Replicate, Shard, Partial) for one dimension of a mesh. A tensor that is cut may consist of blocks
along the dimension, each of which is cut separately: queries, keys and values that one product computes, or the tokens of several
sequences.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from simulator.plan.task import ViewStep
from simulator.plan.views import (
    PERMUTING,
    RESHAPING,
    SAME,
    SPLITTING,
    NotABoxError,
    arguments_of_view,
    equal_ranges,
    geometry,
    inferred,
    order_of,
    slice_arguments,
    split_range,
    view_step,
)


@dataclass(frozen=True, slots=True)
class Placement:
    """`dim` is cut, block by block, whose equal extents are `blocks`; without a `dim`, every device has all of it, or an addend of it.

    `balanced`: each block is cut into twice as many chunks as there are devices, of which a device has one of the first half and its mirror
    image of the second (`LocalTensors.chunks`); else into one part for each device.

    >>> Placement(dim=1, blocks=(8,)).local((4, 8), degree=2)
    (4, 4)
    >>> Placement(dim=1, blocks=(8,)).fits((4, 8), degree=3)
    False
    """

    dim: int | None = None
    blocks: tuple[int, ...] = ()
    partial: bool = False
    balanced: bool = False

    @property
    def axis(self) -> int:
        """The dimension that is cut. Raises ValueError if every device has all of the tensor."""
        if self.dim is None:
            raise ValueError("every device has all of the tensor, or an addend of it; expected a placement that cuts a dimension")
        return self.dim

    def at(self, dim: int, blocks: tuple[int, ...]) -> "Placement":
        """The same along another dimension, or with other blocks."""
        return Placement(dim, blocks, balanced=self.balanced)

    def local(self, shape: Sequence[int], degree: int) -> tuple[int, ...]:
        """The shape of a device's part of a tensor of `shape`."""
        return tuple(extent // degree if dim == self.dim else extent for dim, extent in enumerate(shape))

    def fits(self, shape: Sequence[int], degree: int) -> bool:
        """Whether a tensor of `shape` can be placed so on `degree` devices."""
        if self.dim is None:
            return True
        alike, chunks = len(set(self.blocks)) == 1, degree * (1 + self.balanced)
        return alike and self.dim < len(shape) and sum(self.blocks) == shape[self.dim] > 0 and self.blocks[0] % chunks == 0


WHOLE, PARTIAL = Placement(), Placement(partial=True)


def cut_along(dim: int, extent: int) -> Placement:
    """The placement that cuts one dimension as a single block."""
    return Placement(dim, (extent,))


def behind(steps: Sequence[ViewStep], shape: tuple[int, ...], placement: Placement, degree: int) -> tuple[Placement, Sequence[ViewStep]]:
    """How a view of a tensor of `shape` is placed, and the steps that make a device's part of it.

    Raises NotABoxError if the view has no such placement, or a step is of an unknown kind.
    """
    if placement.dim is None:
        return placement, steps
    local: list[ViewStep] = []
    for step in steps:
        after = geometry_of_shape(step, shape)
        placement, own = _through(step, shape, after, placement, degree)
        local.append(own)
        shape = after
    return placement, local


def before(steps: Sequence[ViewStep], shape: tuple[int, ...], wanted: Placement, degree: int) -> Iterator[Placement]:
    """Yield the placements of a tensor of `shape` whose view is placed as `wanted`."""
    for dim, extent in enumerate(shape):
        repeated = ((block,) * (extent // block) for block in wanted.blocks[:1])
        for placement in dict.fromkeys(wanted.at(dim, own) for own in ((extent,), wanted.blocks, *repeated)):
            if not placement.fits(shape, degree):
                continue
            try:
                if behind(steps, shape, placement, degree)[0] == wanted:
                    yield placement
            except NotABoxError:
                continue


@lru_cache(maxsize=1 << 14)  # layers repeat
def geometry_of_shape(step: ViewStep, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape after a view step, whatever the strides."""
    name, arguments = arguments_of_view(step)
    if name in RESHAPING:
        return inferred(tuple(arguments[0]), prod(shape))
    return geometry(step, shape, (0,) * len(shape))[0]


@lru_cache(maxsize=1 << 14)
def _through(
    step: ViewStep, shape: tuple[int, ...], after: tuple[int, ...], placement: Placement, degree: int
) -> tuple[Placement, ViewStep]:
    """The placement behind a step, and the step on a device's part."""
    name, arguments = arguments_of_view(step)
    dim, rank = placement.axis, len(shape)
    if name in RESHAPING:
        reshaped = _reshaped(shape, after, placement, degree)
        return reshaped, view_step(step.target, list(reshaped.local(after, degree)))
    if name in PERMUTING:
        return placement.at(order_of(name, arguments, rank).index(dim), placement.blocks), step
    if name in SAME or name == "view_as_real" or (name == "view_as_complex" and dim != rank - 1):
        return placement, step
    if name == "unsqueeze":
        return placement.at(dim + (arguments[0] % (rank + 1) <= dim), placement.blocks), step
    if name == "expand":
        moved = placement.at(dim + len(after) - rank, placement.blocks)
        return moved, view_step(step.target, list(moved.local(after, degree)))
    if name in ("select", "unbind", "squeeze"):
        gone = (arguments[0] if arguments else 0) % rank
        if gone != dim:
            return placement.at(dim - (gone < dim and len(after) < rank), placement.blocks), step
    if name == "slice" or name in SPLITTING:
        along, first, end, by = slice_arguments(arguments, shape) if name == "slice" else (*split_range(step, shape), 1)
        if along != dim:
            return placement, step
        borders = [sum(placement.blocks[:count]) for count in range(len(placement.blocks) + 1)]
        if by == 1 and first in borders and end in borders:
            kept = placement.blocks[borders.index(first) : borders.index(end)]
            return placement.at(dim, kept), view_step("aten.slice.Tensor", dim, first // degree, end // degree)
    raise NotABoxError(f"{step.target} of {shape}, of which dimension {dim} is divided")


def _reshaped(shape: tuple[int, ...], after: tuple[int, ...], placement: Placement, degree: int) -> Placement:
    """The placement of a contiguous tensor that is seen as another shape."""
    axis = placement.axis
    for (first, end), (start, stop) in equal_ranges(shape, after):
        if not first <= axis < end:
            continue
        block = placement.blocks[0] * prod(shape[axis + 1 : end])
        count = len(placement.blocks) * prod(shape[first:axis])
        for dim in range(start, stop):
            repeats, step = prod(after[start:dim]), prod(after[dim + 1 : stop])
            seen = placement.at(dim, (block // step,) * (count // repeats))
            if count % repeats == 0 and block % (step * degree) == 0 and seen.fits(after, degree):
                return seen
    raise NotABoxError(f"{shape} seen as {after}, with dimension {placement.dim} divided")
