"""What every image classifier shares: how its random batch looks."""

import torch
from torch import Tensor, nn


def classification(module: nn.Module, batch: int, image_size: int, channels: int = 3, classes: int = 1000) -> tuple:
    """`(module, (images,), labels)` with random images [batch, channels, image_size, image_size]."""
    images: Tensor = torch.randn(batch, channels, image_size, image_size)
    labels: Tensor = torch.randint(classes, (batch,))
    return module.train(), (images,), labels
