"""How a view of a divided tensor is divided: a device's part of the view is the view of its part."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from simulator.model.division.placement import PARTIAL, WHOLE, Placement, before, behind, cut_along
from simulator.plan.views import NotABoxError
from tests.support.view_chains import SHAPES, chains, numbered, part, placements, step, viewed

#: Two sequences of 8 tokens, of 12 features each.
TOKENS, ROWS = (2, 8, 12), (16, 12)
#: By name: a shape, how it is cut among two devices, view steps, and how the view is cut.
VIEWS = {
    "features of tokens as rows": (TOKENS, cut_along(2, 12), [step("view", [16, 12])], cut_along(1, 12)),
    "sequences as rows": (TOKENS, cut_along(0, 2), [step("view", [16, 12])], cut_along(0, 16)),
    "tokens of sequences as rows": (TOKENS, cut_along(1, 8), [step("view", [16, 12])], Placement(0, (8, 8))),
    "rows as tokens of sequences": (ROWS, Placement(0, (8, 8)), [step("view", [2, 8, 12])], cut_along(1, 8)),
    "heads": (ROWS, cut_along(1, 12), [step("view", [2, 8, 4, 3]), step("transpose", 1, 2)], cut_along(1, 4)),
    "a weight as it is read": ((6, 4), cut_along(0, 6), [step("t")], cut_along(1, 6)),
    "keys of a fused projection": (
        (16, 12), Placement(1, (4, 4, 4)), [step("view", [2, 8, 12]), step("split", 4, 2, output=1)], cut_along(2, 4),
    ),
    "queries of a dimension of three": (
        (16, 12), Placement(1, (4, 4, 4)), [step("view", [2, 8, 3, 2, 2]), step("unbind", 2, output=0)], cut_along(2, 2),
    ),
    "heads that are repeated": (
        (2, 2, 8, 3), cut_along(1, 2), [step("unsqueeze", 2), step("expand", [2, 2, 3, 8, 3]), step("view", [2, 6, 8, 3])], cut_along(1, 6),
    ),
    "rotary pairs": ((2, 8, 4, 2), cut_along(2, 4), [step("view_as_complex"), step("view_as_real")], cut_along(2, 4)),
    "the rows of two gates": ((8, 4), Placement(0, (4, 4)), [step("slice", 0, 4, 8)], cut_along(0, 4)),
    "without the first token": ((2, 8, 4), cut_along(2, 4), [step("slice", 1, 1, 8, 2), step("select", 1, -1)], cut_along(1, 4)),
}  # fmt: skip


def check_parts(shape, steps, placement, seen, degree):
    """Check that every device's part of the view is the view of its part."""
    result, local = behind(steps, shape, placement, degree)
    assert seen is None or result == seen
    tensor = numbered(shape)
    whole = viewed(tensor, steps)
    assert result.fits(whole.shape, degree)
    for rank in range(degree):
        own = viewed(part(tensor, placement, rank, degree), local)
        assert tuple(own.shape) == result.local(whole.shape, degree)
        assert torch.equal(own, part(whole, result, rank, degree)), rank


@pytest.mark.parametrize("name", VIEWS)
def test_parts_of_views(name):
    shape, placement, steps, seen = VIEWS[name]
    check_parts(shape, steps, placement, seen, 2)


@given(chains(), st.sampled_from([2, 3]), st.data())
def test_parts_of_any_view(chain, degree, data):
    shape, steps = chain
    for placement in placements(shape, degree):
        try:
            seen, _ = behind(steps, shape, placement, degree)
        except NotABoxError:
            continue
        check_parts(shape, steps, placement, seen, degree)
        found = list(before(steps, shape, seen, degree))
        assert {behind(steps, shape, each, degree)[0] for each in found} <= {seen}
        assert placement in found or len(placement.blocks) > 1


@given(SHAPES, st.data(), st.sampled_from([2, 3]))
def test_a_reshape_has_a_placement_if_there_is_any(shape, data, degree):
    """Brute force: a placement of the result with which every device has the elements that it has of the tensor, in their order."""
    tensor = numbered(shape)
    after = data.draw(st.permutations(shape))
    whole = tensor.reshape(after)
    for placement in placements(shape, degree):
        own = [part(tensor, placement, rank, degree).flatten() for rank in range(degree)]
        fitting = [
            p for p in placements(after, degree) if all(torch.equal(part(whole, p, r, degree).flatten(), own[r]) for r in range(degree))
        ]
        if fitting:
            assert behind([step("view", after)], shape, placement, degree)[0] in fitting
        else:
            with pytest.raises(NotABoxError):
                behind([step("view", after)], shape, placement, degree)


@pytest.mark.parametrize("name", ["heads", "a weight as it is read", "rows as tokens of sequences", "keys of a fused projection"])
def test_the_placement_before_a_view_is_that_which_gives_the_one_behind(name):
    shape, placement, steps, seen = VIEWS[name]
    assert list(before(steps, shape, seen, 2)) == [placement]


@pytest.mark.parametrize("placement", [WHOLE, PARTIAL])
def test_what_is_not_cut_is_viewed_as_it_is(placement):
    steps = [step("view", [24]), step("slice", 0, 1, 5)]
    assert behind(steps, (2, 12), placement, 2) == (placement, steps)


@pytest.mark.parametrize(
    ("placement", "steps"),
    [
        (cut_along(1, 12), [step("select", 1, 3)]),  # one device has it
        (cut_along(1, 12), [step("split", 4, 1, output=0)]),  # the first device has more of it
        (cut_along(1, 12), [step("slice", 1, 0, 12, 2)]),
        (cut_along(1, 12), [step("view", [16, 3, 4])]),  # three heads
        (cut_along(0, 16), [step("view", [2, 8, 12]), step("unbind", 0, output=1)]),
        (Placement(1, (4, 4, 4)), [step("split", 6, 1, output=0)]),
    ],
)
def test_what_has_no_placement_is_refused(placement, steps):
    with pytest.raises(NotABoxError, match="divided"):
        behind(steps, ROWS, placement, 2)


def test_a_part_fits_if_equal_blocks_divide():
    assert Placement(0, (4, 4)).fits((8, 3), 2)
    assert not Placement(0, (4, 4)).fits((8, 3), 3)
    assert not Placement(0, (4, 4)).fits((12, 3), 2)
    assert not Placement(0, (4, 8)).fits((12, 3), 2)
    assert not Placement(2, (4,)).fits((12, 3), 2)
    assert WHOLE.fits((), 8)
