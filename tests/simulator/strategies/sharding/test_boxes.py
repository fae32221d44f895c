"""The boxes behind views: the elements that torch's own views show."""

import json

import pytest
import torch

from executors.binding import apply_views
from simulator.plan.task import Operand, ViewStep
from simulator.strategies.sharding.boxes import NotABoxError, behind_views, parts, shape_of

VIEWS = {
    "a flattened image": ((4, 6, 2, 2), [("view", [[4, 24]])]),
    "a sequence as rows": ((4, 3, 8), [("view", [[12, 8]])]),
    "rows as a sequence": ((12, 8), [("view", [[4, 3, 8]])]),
    "heads": ((4, 3, 8), [("view", [[4, 3, 2, 4]]), ("transpose", [1, 2])]),
    "a transposed matrix": ((4, 6), [("t", [])]),
    "permuted": ((2, 4, 6), [("permute", [[2, 0, 1]])]),
    "channels cut out": ((4, 8, 2), [("slice", [1, 2, 6])]),
    "every second row": ((4, 9, 2), [("slice", [1, 0, 9223372036854775807, 2])]),
    "expanded": ((4, 1, 2), [("unsqueeze", [0]), ("expand", [[3, 4, 6, 2]])]),
    "trailing ones": ((4, 8, 1, 1), [("view", [[4, 8]])]),
}
OVERLOADS = {"slice": "Tensor", "transpose": "int"}


def viewed(shape, steps):
    """An operand with the view steps, and the tensor that it views: its elements are numbered."""
    views = tuple(ViewStep(f"aten.{name}.{OVERLOADS.get(name, 'default')}", json.dumps(arguments)) for name, arguments in steps)
    tensor = torch.arange(torch.Size(shape).numel()).view(shape)
    seen = apply_views(tensor, Operand("x", (), (), "int64", views))
    return Operand("x", tuple(seen.shape), seen.stride(), "int64", views), tensor, seen


def cut(tensor, box):
    return tensor[tuple(slice(*part) for part in box)]


@pytest.mark.parametrize("name", VIEWS)
def test_behind_a_box_of_a_view_lies_the_box_with_its_elements(name):
    shape, steps = VIEWS[name]
    operand, tensor, seen = viewed(shape, steps)
    tried = 0
    for dim, extent in enumerate(seen.shape):
        for degree in (d for d in range(1, extent + 1) if extent % d == 0):
            for box in parts(operand.shape, tuple(degree if d == dim else 1 for d in range(seen.dim()))):
                try:
                    behind, local = behind_views(operand, shape, box)
                except NotABoxError:
                    continue
                again = apply_views(cut(tensor, behind).contiguous(), Operand("x", shape_of(box), (), "int64", local))
                assert torch.equal(again, cut(seen, box)), (box, behind)
                tried += 1
    assert tried > seen.dim()


def test_features_of_a_flattened_image_are_no_box_of_it_unless_they_are_whole_channels():
    operand, _, _ = viewed(*VIEWS["a flattened image"])
    assert behind_views(operand, (4, 6, 2, 2), ((0, 4), (8, 16)))[0] == ((0, 4), (2, 4), (0, 2), (0, 2))
    with pytest.raises(NotABoxError):
        behind_views(operand, (4, 6, 2, 2), ((0, 4), (0, 6)))
