"""The geometry of view steps, compared with torch's own views."""

import pytest
import torch
from hypothesis import given

from executors.binding import same_strides, view_function
from simulator.plan.task import Operand, ViewStep
from simulator.plan.views import NotABoxError, dense, geometry, with_views
from tests.support.view_chains import chains, numbered, step


@given(chains(5))
def test_shapes_and_strides_are_torchs(chain):
    """A `view` that torch refuses is refused; where it may choose the strides, those of dimensions of extent 1, they do not matter."""
    shape, steps = chain
    seen = numbered(shape)
    for each in steps:
        own = tuple(seen.shape), seen.stride()
        try:
            seen = view_function(each, torch.device("cpu"))(seen)
        except RuntimeError:
            with pytest.raises(NotABoxError):
                geometry(each, *own)
            return
        after, strides = geometry(each, *own)
        assert after == tuple(seen.shape)
        assert same_strides(seen, strides), each


def test_an_operand_collects_its_steps():
    operand = with_views(Operand("x", (2, 6), (6, 1), "float32"), [step("view", [2, 2, 3]), step("transpose", 0, 1)])
    assert (operand.shape, operand.strides) == ((2, 2, 3), (3, 6, 1))
    assert with_views(operand, [step("t"), step("select", 0, 1)][1:]).views == (*operand.views, step("select", 0, 1))


def test_an_unknown_step_is_refused():
    with pytest.raises(NotABoxError, match="unfold"):
        geometry(ViewStep("aten.unfold.default", "[0,2,1]"), (4,), (1,))


def test_a_dense_tensor_keeps_the_order_of_dimensions():
    """Half the channels of an image whose channels are last."""
    assert dense((2, 4, 3, 3), torch.empty(2, 8, 3, 3).to(memory_format=torch.channels_last).stride()) == (36, 1, 12, 4)
