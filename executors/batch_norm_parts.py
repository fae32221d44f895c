"""Batch-norm whose statistics are those of parts of its input, as shards have them, in plain PyTorch."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain, repeat
from types import TracebackType

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm  # the one private name: the base class of all batch-norm layers

from traces.errors import SchedcastError

#: The dimensions along which an input is divided: images, height and width. Channels have statistics of their own anyway.
_DIMENSIONS = (0, 2, 3)


class BatchNormParts:
    """A context in which some batch-norm layers of a module normalize each part of their input by itself.

    `degrees`: by path of a layer, the number of equal parts along images, height and width. Running statistics are those of the first part.
    """

    def __init__(self, module: nn.Module, degrees: Mapping[str, Sequence[int]]):
        """Raises SchedcastError if a path is not that of a batch-norm layer."""
        modules = dict(module.named_modules())
        self._layers = [(modules.get(path), tuple(own)) for path, own in degrees.items()]
        for path in degrees:
            if not isinstance(modules.get(path), _BatchNorm):
                raise SchedcastError(
                    f"{path} is no batch-norm layer of the model, so plain PyTorch cannot normalize parts there; make it an nn.BatchNorm,"
                    " or synchronize the statistics"
                )

    def __enter__(self) -> "BatchNormParts":
        """Replace the layers' forward."""
        for layer, degrees in self._layers:
            layer.forward = partial(_by_parts, layer, layer.forward, degrees)
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None) -> None:
        """Restore it."""
        for layer, _ in self._layers:
            del layer.forward


def _by_parts(layer: _BatchNorm, whole: Callable[[Tensor], Tensor], degrees: Sequence[int], x: Tensor) -> Tensor:
    if not layer.training:
        return whole(x)

    def alone(part: Tensor) -> Tensor:
        return F.batch_norm(part, None, None, layer.weight, layer.bias, True, 0.0, layer.eps)

    normalize = chain([whole], repeat(alone))  # the first part updates the running statistics

    def joined(part: Tensor, divided: Sequence[tuple[int, int]]) -> Tensor:
        if not divided:
            return next(normalize)(part)
        (dim, degree), *inner = divided
        return torch.cat([joined(chunk, inner) for chunk in part.chunk(degree, dim)], dim)

    return joined(x, [(dim, degree) for dim, degree in zip(_DIMENSIONS, degrees, strict=False) if degree > 1])
