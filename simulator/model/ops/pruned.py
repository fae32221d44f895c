"""Layers with a fixed pruning mask. In a captured graph, the op `schedcast::pruned` produces the masked weight that such a layer uses.

The same op masks the weight's gradient, so that pruned elements keep their value whatever the optimizer does with zero gradients.
"""

from functools import lru_cache

import torch
from torch import Tensor, nn
from torch.nn import functional

from simulator.plan.bodies.csr.mask import Mask


def _pruned(weight: Tensor, keep: float, seed: int) -> Tensor:
    return weight * _factors(Mask(keep, seed), weight.shape, weight.dtype, weight.device)


@lru_cache(256)
def _factors(mask: Mask, shape: torch.Size, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Ones where the mask keeps an element, else zeros.

    The tensor is made on the first call, which is never inside a CUDA graph, since a call outside one precedes every capture.
    """
    factors = torch.zeros(shape, dtype=dtype)
    factors.view(-1)[torch.from_numpy(mask.kept(tuple(shape)))] = 1
    return factors.to(device)


def _keep_arguments(ctx, inputs: tuple, output: Tensor) -> None:
    _, ctx.keep, ctx.seed = inputs


def _backward(ctx, grad: Tensor) -> tuple[Tensor, None, None]:
    return torch.ops.schedcast.pruned(grad, ctx.keep, ctx.seed), None, None


torch.library.define("schedcast::pruned", "(Tensor weight, float keep, int seed) -> Tensor")
torch.library.impl("schedcast::pruned", "CompositeExplicitAutograd")(_pruned)
torch.library.register_fake("schedcast::pruned")(lambda weight, keep, seed: torch.empty_like(weight))
torch.library.register_autograd("schedcast::pruned", _backward, setup_context=_keep_arguments)


class PrunedConv2d(nn.Conv2d):
    """A convolution that uses only the elements of its weight that `mask` keeps."""

    def __init__(self, *args, mask: Mask, **kwargs):
        super().__init__(*args, **kwargs)
        self.mask = mask

    def forward(self, x: Tensor) -> Tensor:
        """Same as nn.Conv2d, with the masked weight."""
        return self._conv_forward(x, torch.ops.schedcast.pruned(self.weight, self.mask.keep, self.mask.seed), self.bias)


class PrunedLinear(nn.Linear):
    """A linear layer that uses only the elements of its weight that `mask` keeps."""

    def __init__(self, *args, mask: Mask, **kwargs):
        super().__init__(*args, **kwargs)
        self.mask = mask

    def forward(self, x: Tensor) -> Tensor:
        """Same as nn.Linear, with the masked weight."""
        return functional.linear(x, torch.ops.schedcast.pruned(self.weight, self.mask.keep, self.mask.seed), self.bias)
