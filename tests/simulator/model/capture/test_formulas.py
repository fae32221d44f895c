"""Shape functions of our own give what the real ops give."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from simulator.model.capture.aten_calls import SHAPES

NORMALIZE, DIFFERENTIATE = torch.ops.aten.native_batch_norm.default, torch.ops.aten.native_batch_norm_backward.default
FORMATS = {
    "contiguous": lambda: torch.randn(2, 3, 4, 5),
    "channels last": lambda: torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "rows": lambda: torch.randn(6, 3),
    "with gaps": lambda: torch.randn(2, 3, 4, 10)[..., ::2],
}


def alike(real, fake) -> None:
    assert [(each.shape, each.stride(), each.dtype) for each in real] == [(each.shape, each.stride(), each.dtype) for each in fake]


@pytest.mark.parametrize("of", FORMATS)
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("affine", [True, False])
def test_batch_norm_and_its_backward(of, training, affine):
    inputs = FORMATS[of]()
    weight, bias = (torch.ones(3), torch.zeros(3)) if affine else (None, None)
    mean, variance = torch.zeros(3), torch.ones(3)
    forward = (inputs, weight, bias, mean, variance, training, 0.1, 1e-5)
    real = NORMALIZE(*forward)
    backward = (torch.randn_like(real[0]), inputs, weight, mean, variance, *real[1:], training, 1e-5, [True, affine, affine])
    back = [each for each in DIFFERENTIATE(*backward) if each is not None]
    with FakeTensorMode(allow_non_fake_inputs=False) as mode:

        def faked(arguments):
            return [mode.from_tensor(each) if isinstance(each, torch.Tensor) else each for each in arguments]

        alike(real, SHAPES[NORMALIZE](*faked(forward)))
        wanted = SHAPES[DIFFERENTIATE](*faked(backward))
        alike(back, [each for each in wanted if each is not None])
