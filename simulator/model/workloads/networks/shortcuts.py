"""Image classifiers whose layers also read the outputs of earlier layers.

ResNets (He et al., 2015) and ResNeXts (Xie et al., 2016), MobileNetV2 (Sandler et al., 2018) and DenseNets (Huang et al., 2016).
"""

from collections import OrderedDict
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

#: Expansion, output channels, repeats and first stride of each group of inverted residuals (table 2 of the paper).
_RESIDUALS = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
#: A bottleneck of a DenseNet has this many times the channels that a layer adds.
_DENSE_WIDTH = 4


def _projection(inputs: int, outputs: int, stride: int) -> nn.Sequential | None:
    if stride == 1 and inputs == outputs:
        return None
    return nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut, made by `shortcut` from inputs, width and stride; None stands for the identity."""

    def __init__(self, inputs: int, width: int, stride: int, shortcut: Callable[[int, int, int], nn.Module | None] = _projection):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = shortcut(inputs, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        """[N, inputs, H, W] to [N, width, H/stride, W/stride]."""
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += x if self.downsample is None else self.downsample(x)
        return self.relu(out)


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions and a shortcut; the last convolution has four times as many channels.

    The stride is in the 3x3 convolution, as in torchvision ("v1.5"), or in the first one, as in the paper ("v1"). `groups`: those of the
    3x3 convolution. `inner_share`: its channels as a multiple of `width`.
    """

    def __init__(self, inputs: int, width: int, stride: int, strided_first: bool = False, groups: int = 1, inner_share: int = 1):
        super().__init__()
        outputs, inner = width * 4, width * inner_share
        first, second = (stride, 1) if strided_first else (1, stride)
        self.conv1 = nn.Conv2d(inputs, inner, 1, first, bias=False)
        self.bn1 = nn.BatchNorm2d(inner)
        self.conv2 = nn.Conv2d(inner, inner, 3, second, padding=1, groups=groups, bias=False)
        self.bn2 = nn.BatchNorm2d(inner)
        self.conv3 = nn.Conv2d(inner, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = _projection(inputs, outputs, stride)

    def forward(self, x: Tensor) -> Tensor:
        """[N, inputs, H, W] to [N, 4·width, H/stride, W/stride]."""
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        out += x if self.downsample is None else self.downsample(x)
        return self.relu(out)


def _groups(
    block: Callable[[int, int, int], nn.Module], widths: tuple[int, ...], depths: tuple[int, ...], expansion: int = 1
) -> list[nn.Sequential]:
    """Groups of blocks, all but the first of which halve the maps. `expansion`: a block's outputs as a multiple of its width."""
    groups: list[nn.Sequential] = []
    inputs = widths[0]
    for width, depth in zip(widths, depths, strict=True):
        blocks = []
        for index in range(depth):
            blocks.append(block(inputs, width, 2 if groups and index == 0 else 1))
            inputs = width * expansion
        groups.append(nn.Sequential(*blocks))
    return groups


class ResNet(nn.Module):
    """A stem, four groups of `depths` blocks, global average pooling and a linear classifier.

    The blocks are bottlenecks with the options after `classes`, or basic ones.
    """

    def __init__(
        self,
        depths: tuple[int, int, int, int],
        bottleneck: bool = True,
        classes: int = 1000,
        strided_first: bool = False,
        groups: int = 1,
        inner_share: int = 1,
    ):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        deep = partial(Bottleneck, strided_first=strided_first, groups=groups, inner_share=inner_share)
        block, expansion = (deep, 4) if bottleneck else (BasicBlock, 1)
        self.layer1, self.layer2, self.layer3, self.layer4 = _groups(block, (64, 128, 256, 512), depths, expansion)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(512 * expansion, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        """Images [N, 3, H, W] to logits [N, classes]."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(images))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(self.avgpool(x).flatten(1))


class PaddedShortcut(nn.Module):
    """Take every `stride`-th pixel of each row and column, and add channels of zeros (option A)."""

    def __init__(self, new_channels: int, stride: int):
        super().__init__()
        self.new_channels, self.stride = new_channels, stride

    def forward(self, x: Tensor) -> Tensor:
        """[N, C, H, W] to [N, C + new_channels, H/stride, W/stride]."""
        before = self.new_channels // 2
        return F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, before, self.new_channels - before))


def padded_shortcut(inputs: int, width: int, stride: int) -> PaddedShortcut | None:
    """Return the shortcut of a block, None if it is the identity."""
    return PaddedShortcut(width - inputs, stride) if stride != 1 or width != inputs else None


class SmallResNet(nn.Module):
    """The ResNet of 6n + 2 layers for small images (section 4.2), whose shortcuts have no parameters.

    A 3x3 stem of 16 channels, three groups of n blocks with 16, 32 and 64, global average pooling and a linear classifier.
    """

    def __init__(self, n: int, classes: int = 10):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.relu = nn.ReLU(inplace=True)
        self.layer1, self.layer2, self.layer3 = _groups(partial(BasicBlock, shortcut=padded_shortcut), (16, 32, 64), (n, n, n))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(64, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.kaiming_normal_(module.weight)

    def forward(self, images: Tensor) -> Tensor:
        """Images [N, 3, H, W] to logits [N, classes]."""
        x = self.relu(self.bn1(self.conv1(images)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.fc(self.avgpool(x).flatten(1))


def _conv_bn_relu(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU6(inplace=True),
    )


class InvertedResidual(nn.Module):
    """Expand by a 1x1 convolution, filter each channel by 3x3, project by 1x1; with a shortcut if input and output have one shape."""

    def __init__(self, inputs: int, outputs: int, stride: int, expansion: int):
        super().__init__()
        hidden = inputs * expansion
        widen = [] if expansion == 1 else [_conv_bn_relu(inputs, hidden, 1)]
        self.conv = nn.Sequential(
            *widen,
            _conv_bn_relu(hidden, hidden, 3, stride, groups=hidden),
            nn.Conv2d(hidden, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.shortcut = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        """[N, inputs, H, W] to [N, outputs, H/stride, W/stride]."""
        return x + self.conv(x) if self.shortcut else self.conv(x)


class MobileNetV2(nn.Module):
    """Width 1.0: a stem, 17 inverted residuals, a 1x1 convolution, global average pooling, dropout and a linear classifier."""

    def __init__(self, classes: int = 1000):
        super().__init__()
        layers: list[nn.Module] = [_conv_bn_relu(3, 32, 3, stride=2)]
        inputs = 32
        for expansion, outputs, repeats, stride in _RESIDUALS:
            for index in range(repeats):
                layers.append(InvertedResidual(inputs, outputs, stride if index == 0 else 1, expansion))
                inputs = outputs
        layers.append(_conv_bn_relu(inputs, 1280, 1))
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(1280, classes))
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out")
            elif isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, 0.0, 0.01)
                nn.init.zeros_(module.bias)

    def forward(self, images: Tensor) -> Tensor:
        """Images [N, 3, H, W] to logits [N, classes]."""
        return self.classifier(F.adaptive_avg_pool2d(self.features(images), 1).flatten(1))


class DenseLayer(nn.Module):
    """A bottleneck 1x1 convolution and a 3x3 convolution over the concatenated feature maps of the block so far."""

    def __init__(self, inputs: int, growth: int):
        super().__init__()
        self.norm1 = nn.BatchNorm2d(inputs)
        self.relu1 = nn.ReLU(inplace=True)
        self.conv1 = nn.Conv2d(inputs, _DENSE_WIDTH * growth, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(_DENSE_WIDTH * growth)
        self.relu2 = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(_DENSE_WIDTH * growth, growth, 3, padding=1, bias=False)

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
        features = F.relu(self.features(images), inplace=True)
        return self.classifier(F.adaptive_avg_pool2d(features, 1).flatten(1))
