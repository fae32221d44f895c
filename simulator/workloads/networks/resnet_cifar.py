"""ResNets for small images (He et al., 2015, section 4.2): 6n + 2 layers, shortcuts without parameters."""

from torch import Tensor, nn
from torch.nn import functional as F


class PlainBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut. One that changes the shape takes every second pixel and adds channels of zeros (option A)."""

    def __init__(self, inputs: int, width: int, stride: int):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.stride, self.new_channels = stride, width - inputs

    def forward(self, x: Tensor) -> Tensor:
        """[N, inputs, H, W] to [N, width, H/stride, W/stride]."""
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += self._shortcut(x)
        return self.relu(out)

    def _shortcut(self, x: Tensor) -> Tensor:
        if self.stride == 1 and not self.new_channels:
            return x
        before = self.new_channels // 2
        return F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, before, self.new_channels - before))


class SmallResNet(nn.Module):
    """A 3x3 stem of 16 channels, three groups of n blocks with 16, 32 and 64, global average pooling and a linear classifier."""

    def __init__(self, n: int, classes: int = 10):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.relu = nn.ReLU(inplace=True)
        groups = []
        for inputs, width, stride in ((16, 16, 1), (16, 32, 2), (32, 64, 2)):
            rest = (PlainBlock(width, width, 1) for _ in range(n - 1))
            groups.append(nn.Sequential(PlainBlock(inputs, width, stride), *rest))
        self.layer1, self.layer2, self.layer3 = groups
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
