"""The backward of a convolution, also grouped or transposed, has its forward's FLOPs for each requested gradient."""

import pytest
import torch

from simulator.model.capture.aten_calls import flops

aten = torch.ops.aten


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("groups", [1, 2])
def test_each_gradient_costs_one_forward(groups, transposed):
    channels = (4, 6 // groups) if transposed else (6, 4 // groups)
    x, w = torch.empty(2, 4, 8, 8, device="meta"), torch.empty(*channels, 3, 3, device="meta")
    geometry = ([2, 2], [1, 1], [1, 1], transposed, [0, 0], groups)
    y = aten.convolution(x, w, None, *geometry)
    forward = flops(aten.convolution.default, (x, w, None, *geometry), {}, [y])
    for mask, gradients in (([True, False, False], 1), ([False, True, True], 1), ([True, True, False], 2)):
        args = (y, x, w, [0], *geometry, mask)
        assert flops(aten.convolution_backward.default, args, {}, aten.convolution_backward(*args)) == gradients * forward
