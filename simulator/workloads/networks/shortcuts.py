"""ResNets and ResNeXts for ImageNet (He et al., 2015; Xie et al., 2016)."""

from collections.abc import Callable

from torch import Tensor, nn


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut, made by `shortcut` from inputs, width and stride; None stands for the identity."""

    expansion = 1

    def __init__(self, inputs: int, width: int, stride: int, shortcut: Callable[[int, int, int], nn.Module | None] | None = None):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = (shortcut or _projection)(inputs, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        """[N, inputs, H, W] to [N, width, H/stride, W/stride]."""
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += x if self.downsample is None else self.downsample(x)
        return self.relu(out)


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions and a shortcut; the last convolution has four times as many channels.

    The stride is in the 3x3 convolution, as in torchvision ("v1.5"). `groups`: those of the 3x3 convolution. `inner_share`: its channels as
    a multiple of `width`.
    """

    expansion = 4
    groups = 1
    inner_share = 1
    strided_first = False

    def __init__(self, inputs: int, width: int, stride: int):
        super().__init__()
        outputs, inner = width * self.expansion, width * self.inner_share
        first, second = (stride, 1) if self.strided_first else (1, stride)
        self.conv1 = nn.Conv2d(inputs, inner, 1, first, bias=False)
        self.bn1 = nn.BatchNorm2d(inner)
        self.conv2 = nn.Conv2d(inner, inner, 3, second, padding=1, groups=self.groups, bias=False)
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


class OriginalBottleneck(Bottleneck):
    """The bottleneck of the paper, whose first 1x1 convolution has the stride ("v1")."""

    strided_first = True


class GroupedBottleneck(Bottleneck):
    """The bottleneck of a ResNeXt 32x4d: its 3x3 convolution has 32 groups and twice the channels."""

    groups = 32
    inner_share = 2


def _projection(inputs: int, outputs: int, stride: int) -> nn.Sequential | None:
    if stride == 1 and inputs == outputs:
        return None
    return nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))


class ResNet(nn.Module):
    """A stem, four groups of `depths` blocks, global average pooling and a linear classifier."""

    def __init__(self, block: type[BasicBlock] | type[Bottleneck], depths: tuple[int, int, int, int], classes: int = 1000):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        inputs = 64
        groups = []
        for width, depth, stride in zip((64, 128, 256, 512), depths, (1, 2, 2, 2), strict=True):
            blocks = []
            for index in range(depth):
                blocks.append(block(inputs, width, stride if index == 0 else 1))
                inputs = width * block.expansion
            groups.append(nn.Sequential(*blocks))
        self.layer1, self.layer2, self.layer3, self.layer4 = groups
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(inputs, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        """Images [N, 3, H, W] to logits [N, classes]."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(images))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(self.avgpool(x).flatten(1))
