"""DenseNets (Huang et al., 2016)."""

from collections import OrderedDict

import torch
from torch import Tensor, nn

_WIDTH = 4  # a bottleneck has as many times the channels that a layer adds


class DenseLayer(nn.Module):
    """A bottleneck 1x1 convolution and a 3x3 convolution over the concatenated feature maps of the block so far."""

    def __init__(self, inputs: int, growth: int):
        super().__init__()
        self.norm1 = nn.BatchNorm2d(inputs)
        self.relu1 = nn.ReLU(inplace=True)
        self.conv1 = nn.Conv2d(inputs, _WIDTH * growth, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(_WIDTH * growth)
        self.relu2 = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(_WIDTH * growth, growth, 3, padding=1, bias=False)

    def forward(self, maps: list[Tensor]) -> Tensor:
        """The block's feature maps so far to `growth` new ones."""
        bottleneck = self.conv1(self.relu1(self.norm1(torch.cat(maps, 1))))
        return self.conv2(self.relu2(self.norm2(bottleneck)))


class DenseBlock(nn.ModuleDict):
    """Layers that each read the block's input and the outputs of all layers before them."""

    def __init__(self, inputs: int, depth: int, growth: int):
        super().__init__({f"denselayer{index + 1}": DenseLayer(inputs + index * growth, growth) for index in range(depth)})

    def forward(self, x: Tensor) -> Tensor:
        """[N, inputs, H, W] to [N, inputs + depth · growth, H, W]."""
        maps = [x]
        for layer in self.values():
            maps.append(layer(maps))
        return torch.cat(maps, 1)


def _transition(inputs: int) -> nn.Sequential:
    return nn.Sequential(
        OrderedDict(
            norm=nn.BatchNorm2d(inputs),
            relu=nn.ReLU(inplace=True),
            conv=nn.Conv2d(inputs, inputs // 2, 1, bias=False),
            pool=nn.AvgPool2d(2),
        )
    )


class DenseNet(nn.Module):
    """A stem, four dense blocks with halving transitions between them, global average pooling and a linear classifier.

    `growth`: channels that each layer adds.
    """

    def __init__(self, depths: tuple[int, int, int, int], growth: int = 32, classes: int = 1000):
        super().__init__()
        layers: OrderedDict[str, nn.Module] = OrderedDict(
            conv0=nn.Conv2d(3, 2 * growth, 7, stride=2, padding=3, bias=False),
            norm0=nn.BatchNorm2d(2 * growth),
            relu0=nn.ReLU(inplace=True),
            pool0=nn.MaxPool2d(3, stride=2, padding=1),
        )
        channels = 2 * growth
        for number, depth in enumerate(depths, 1):
            layers[f"denseblock{number}"] = DenseBlock(channels, depth, growth)
            channels += depth * growth
            if number < len(depths):
                layers[f"transition{number}"] = _transition(channels)
                channels //= 2
        layers["norm5"] = nn.BatchNorm2d(channels)
        self.features = nn.Sequential(layers)
        self.classifier = nn.Linear(channels, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight)
        nn.init.zeros_(self.classifier.bias)

    def forward(self, images: Tensor) -> Tensor:
        """Images [N, 3, H, W] to logits [N, classes]."""
        features = nn.functional.relu(self.features(images), inplace=True)
        return self.classifier(nn.functional.adaptive_avg_pool2d(features, 1).flatten(1))
