"""ResNets for small images (He et al., 2015, section 4.2): 6n + 2 layers, shortcuts without parameters."""

from torch import Tensor, nn
from torch.nn import functional as F

from simulator.workloads.networks.shortcuts import BasicBlock


class PaddedShortcut(nn.Module):
    """Takes every `stride`-th pixel of each row and column, and adds channels of zeros (option A)."""

    def __init__(self, new_channels: int, stride: int):
        super().__init__()
        self.new_channels, self.stride = new_channels, stride

    def forward(self, x: Tensor) -> Tensor:
        """[N, C, H, W] to [N, C + new_channels, H/stride, W/stride]."""
        before = self.new_channels // 2
        return F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, before, self.new_channels - before))


def padded_shortcut(inputs: int, width: int, stride: int) -> PaddedShortcut | None:
    """The shortcut of a block, None if it is the identity."""
    return PaddedShortcut(width - inputs, stride) if stride != 1 or width != inputs else None


class SmallResNet(nn.Module):
    """A 3x3 stem of 16 channels, three groups of n blocks with 16, 32 and 64, global average pooling and a linear classifier."""

    def __init__(self, n: int, classes: int = 10):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.relu = nn.ReLU(inplace=True)
        groups = []
        for inputs, width, stride in ((16, 16, 1), (16, 32, 2), (32, 64, 2)):
            rest = (BasicBlock(width, width, 1) for _ in range(n - 1))
            groups.append(nn.Sequential(BasicBlock(inputs, width, stride, padded_shortcut), *rest))
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
