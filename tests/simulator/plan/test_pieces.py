"""Where pieces of a tensor lie, and whether they are all of it."""

from itertools import product
from random import Random

import pytest

from simulator.plan.task import Operand, ViewStep
from simulator.plan.tensors import box_of, covered


def source(shape, *slices: str) -> Operand:
    """A source of `shape` after some slices of a tensor w."""
    return Operand("w", shape, (1,) * len(shape), "float32", tuple(ViewStep("aten.slice.Tensor", text) for text in slices))


def test_the_box_of_a_piece_follows_from_its_slices():
    assert box_of(source((6, 4))) == ((0, 6), (0, 4))
    assert box_of(source((3, 4), "[0, 3, 6]")) == ((3, 6), (0, 4))
    assert box_of(source((2, 1), "[0, 3, 6]", "[1, 2, 3]", "[0, 1, 3]")) == ((4, 6), (2, 3))
    assert box_of(source((3, 2), "[-1, 2]", "[0, null, 3]")) == ((0, 3), (2, 4))
    assert box_of(source(())) == ()


@pytest.mark.parametrize("text", ["[0, 0, 6, 2]", "[0, -2]", "[2, 0, 1]", '["0", 0, 1]', "[0, 0, 1, 1, 1]", "7", "[0.5, 1, 2]", "nothing"])
def test_other_views_are_no_pieces(text):
    with pytest.raises(ValueError, match=r"expected aten.slice.Tensor with a first place from 0 on and a step of 1"):
        box_of(source((3, 4), text))


def test_boxes_cover_a_tensor_if_every_element_is_in_one():
    """As counting every element says, for random boxes."""
    assert covered([()], ())
    assert not covered([], ())
    assert covered([], (0, 3))
    random, outcomes = Random(1), set()
    for _ in range(500):
        shape = (random.randint(1, 4), random.randint(1, 3))
        boxes = []
        for _ in range(random.randint(0, 4)):
            firsts = [random.randrange(extent) for extent in shape]
            boxes.append(tuple((first, random.randint(first, extent)) for first, extent in zip(firsts, shape, strict=True)))
        by_hand = all(
            any(all(first <= at < end for at, (first, end) in zip(element, box, strict=True)) for box in boxes)
            for element in product(*map(range, shape))
        )
        assert covered(boxes, shape) == by_hand, (boxes, shape)
        outcomes.add(by_hand)
    assert outcomes == {True, False}
