"""A small residual network with batch-norm whose two blocks share their convolution weights but not their norms."""

import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width)

    def forward(self, x):
        return F.relu(x + self.norm(self.conv(x)))


class TiedResNet(nn.Module):
    def __init__(self, width=12, classes=10):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, stride=2, padding=1)
        self.stem_norm = nn.BatchNorm2d(width)
        self.blocks = nn.ModuleList([Block(width), Block(width)])
        self.blocks[1].conv.weight = self.blocks[0].conv.weight
        self.depthwise = nn.Conv2d(width, width, 3, padding=1, groups=width)
        self.classifier = nn.Linear(width, classes)

    def forward(self, images):
        x = F.relu(self.stem_norm(self.stem(images)), inplace=True)
        for block in self.blocks:
            x = block(x)
        x = x * self.depthwise(x).sigmoid()
        return self.classifier(x.mean(dim=(2, 3)))


def make(batch_size):
    return TiedResNet(), (torch.randn(batch_size, 3, 12, 12),), torch.randint(0, 10, (batch_size,))
