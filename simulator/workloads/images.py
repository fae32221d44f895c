"""The random batch that every image classifier is built with."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn

#: Classes of the whole of ImageNet.
IMAGENET_22K = 21_841


def classification(module: "nn.Module", batch: int, image_size: int, channels: int = 3, classes: int = 1000) -> tuple:
    """Return `(module, (images,), labels)` with random images [batch, channels, image_size, image_size]."""
    import torch

    images = torch.randn(batch, channels, image_size, image_size)
    labels = torch.randint(classes, (batch,))
    return module.train(), (images,), labels
