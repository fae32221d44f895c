"""Layers with a fixed pruning mask. A captured graph says which: the op `stepcast::pruned` makes the weight that the layer uses.

Its gradient is masked by the same op, so that pruned elements stay as they are whatever the optimizer does with zeros.
"""

from functools import lru_cache

import torch
from torch import Tensor, nn
from torch.nn import functional

from simulator.bodies.csr.mask import Mask


def _pruned(weight: Tensor, keep: float, seed: int) -> Tensor:
    return weight * _factors(Mask(keep, seed), weight.shape, weight.dtype, weight.device)


@lru_cache(256)
def _factors(mask: Mask, shape: torch.Size, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Ones where the mask keeps, else zeros. Made on the first call: not inside a CUDA graph, which comes after a call outside one."""
    found = torch.zeros(shape, dtype=dtype)
    found.view(-1)[torch.from_numpy(mask.kept(tuple(shape)))] = 1
    return found.to(device)


def _keep_arguments(ctx, inputs: tuple, output: Tensor) -> None:
    _, ctx.keep, ctx.seed = inputs


def _backward(ctx, grad: Tensor) -> tuple[Tensor, None, None]:
    return torch.ops.stepcast.pruned(grad, ctx.keep, ctx.seed), None, None


torch.library.define("stepcast::pruned", "(Tensor weight, float keep, int seed) -> Tensor")
torch.library.impl("stepcast::pruned", "CompositeExplicitAutograd")(_pruned)
torch.library.register_fake("stepcast::pruned")(lambda weight, keep, seed: torch.empty_like(weight))
torch.library.register_autograd("stepcast::pruned", _backward, setup_context=_keep_arguments)


class PrunedConv2d(nn.Conv2d):
    """A convolution that uses only the part of its weight which `mask` keeps."""

    def __init__(self, *args, mask: Mask, **kwargs):
        super().__init__(*args, **kwargs)
        self.mask = mask

    def forward(self, x: Tensor) -> Tensor:
        """As nn.Conv2d."""
        return self._conv_forward(x, torch.ops.stepcast.pruned(self.weight, self.mask.keep, self.mask.seed), self.bias)


class PrunedLinear(nn.Linear):
    """A linear layer that uses only the part of its weight which `mask` keeps."""

    def __init__(self, *args, mask: Mask, **kwargs):
        super().__init__(*args, **kwargs)
        self.mask = mask

    def forward(self, x: Tensor) -> Tensor:
        """As nn.Linear."""
        return functional.linear(x, torch.ops.stepcast.pruned(self.weight, self.mask.keep, self.mask.seed), self.bias)
