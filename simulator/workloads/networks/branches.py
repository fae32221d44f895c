"""Inception-v3 (Szegedy et al., 2016) with torchvision's widths and module names, with or without its auxiliary classifier."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

#: Share of the auxiliary classifier's loss in the loss.
AUXILIARY_SHARE = 0.4
#: Side of the maps that the auxiliary classifier pools, for images of 299 pixels; of smaller ones it averages over overlapping bins.
_POOLED_SIDE = 17


class BasicConv2d(nn.Module):
    """A convolution without bias, batch-norm, ReLU."""

    def __init__(self, inputs: int, outputs: int, kernel: int | tuple[int, int], deviation: float = 0.1, **others: int | tuple[int, int]):
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, bias=False, **others)
        self.bn = nn.BatchNorm2d(outputs, eps=0.001)
        nn.init.normal_(self.conv.weight, 0.0, deviation)

    def forward(self, x: Tensor) -> Tensor:
        """[N, inputs, H, W] to [N, outputs, H', W']."""
        return F.relu(self.bn(self.conv(x)), inplace=True)


def _average(x: Tensor) -> Tensor:
    """Average pooling that keeps the map's size."""
    return F.avg_pool2d(x, 3, stride=1, padding=1)


class InceptionA(nn.Module):
    """Branches of 1x1, 5x5, twice 3x3, and pooling."""

    def __init__(self, inputs: int, pooled: int):
        super().__init__()
        self.branch1x1 = BasicConv2d(inputs, 64, 1)
        self.branch5x5_1 = BasicConv2d(inputs, 48, 1)
        self.branch5x5_2 = BasicConv2d(48, 64, 5, padding=2)
        self.branch3x3dbl_1 = BasicConv2d(inputs, 64, 1)
        self.branch3x3dbl_2 = BasicConv2d(64, 96, 3, padding=1)
        self.branch3x3dbl_3 = BasicConv2d(96, 96, 3, padding=1)
        self.branch_pool = BasicConv2d(inputs, pooled, 1)

    def forward(self, x: Tensor) -> Tensor:
        """[N, inputs, H, W] to [N, 224 + pooled, H, W]."""
        wide = self.branch5x5_2(self.branch5x5_1(x))
        double = self.branch3x3dbl_3(self.branch3x3dbl_2(self.branch3x3dbl_1(x)))
        return torch.cat([self.branch1x1(x), wide, double, self.branch_pool(_average(x))], 1)


class InceptionB(nn.Module):
    """Branches of 3x3, twice 3x3, and pooling, all with stride 2."""

    def __init__(self, inputs: int):
        super().__init__()
        self.branch3x3 = BasicConv2d(inputs, 384, 3, stride=2)
        self.branch3x3dbl_1 = BasicConv2d(inputs, 64, 1)
        self.branch3x3dbl_2 = BasicConv2d(64, 96, 3, padding=1)
        self.branch3x3dbl_3 = BasicConv2d(96, 96, 3, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        """[N, inputs, H, W] to [N, 480 + inputs, H/2, W/2]."""
        double = self.branch3x3dbl_3(self.branch3x3dbl_2(self.branch3x3dbl_1(x)))
        return torch.cat([self.branch3x3(x), double, F.max_pool2d(x, 3, stride=2)], 1)


class InceptionC(nn.Module):
    """Branches of 1x1, 7x7, twice 7x7, and pooling; a 7x7 convolution is a 1x7 and a 7x1."""

    def __init__(self, inputs: int, width: int):
        super().__init__()
        flat, tall = {"kernel": (1, 7), "padding": (0, 3)}, {"kernel": (7, 1), "padding": (3, 0)}
        self.branch1x1 = BasicConv2d(inputs, 192, 1)
        self.branch7x7_1 = BasicConv2d(inputs, width, 1)
        self.branch7x7_2 = BasicConv2d(width, width, **flat)
        self.branch7x7_3 = BasicConv2d(width, 192, **tall)
        self.branch7x7dbl_1 = BasicConv2d(inputs, width, 1)
        self.branch7x7dbl_2 = BasicConv2d(width, width, **tall)
        self.branch7x7dbl_3 = BasicConv2d(width, width, **flat)
        self.branch7x7dbl_4 = BasicConv2d(width, width, **tall)
        self.branch7x7dbl_5 = BasicConv2d(width, 192, **flat)
        self.branch_pool = BasicConv2d(inputs, 192, 1)

    def forward(self, x: Tensor) -> Tensor:
        """[N, inputs, H, W] to [N, 768, H, W]."""
        wide = self.branch7x7_3(self.branch7x7_2(self.branch7x7_1(x)))
        double = self.branch7x7dbl_3(self.branch7x7dbl_2(self.branch7x7dbl_1(x)))
        double = self.branch7x7dbl_5(self.branch7x7dbl_4(double))
        return torch.cat([self.branch1x1(x), wide, double, self.branch_pool(_average(x))], 1)


class InceptionD(nn.Module):
    """Branches of 3x3, 7x7 and 3x3, and pooling, all with stride 2."""

    def __init__(self, inputs: int):
        super().__init__()
        self.branch3x3_1 = BasicConv2d(inputs, 192, 1)
        self.branch3x3_2 = BasicConv2d(192, 320, 3, stride=2)
        self.branch7x7x3_1 = BasicConv2d(inputs, 192, 1)
        self.branch7x7x3_2 = BasicConv2d(192, 192, (1, 7), padding=(0, 3))
        self.branch7x7x3_3 = BasicConv2d(192, 192, (7, 1), padding=(3, 0))
        self.branch7x7x3_4 = BasicConv2d(192, 192, 3, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        """[N, inputs, H, W] to [N, 512 + inputs, H/2, W/2]."""
        wide = self.branch7x7x3_4(self.branch7x7x3_3(self.branch7x7x3_2(self.branch7x7x3_1(x))))
        return torch.cat([self.branch3x3_2(self.branch3x3_1(x)), wide, F.max_pool2d(x, 3, stride=2)], 1)


class InceptionE(nn.Module):
    """Branches of 1x1, 3x3, twice 3x3, and pooling; the last 3x3 convolution of a branch is a 1x3 beside a 3x1."""

    def __init__(self, inputs: int):
        super().__init__()
        flat, tall = {"kernel": (1, 3), "padding": (0, 1)}, {"kernel": (3, 1), "padding": (1, 0)}
        self.branch1x1 = BasicConv2d(inputs, 320, 1)
        self.branch3x3_1 = BasicConv2d(inputs, 384, 1)
        self.branch3x3_2a = BasicConv2d(384, 384, **flat)
        self.branch3x3_2b = BasicConv2d(384, 384, **tall)
        self.branch3x3dbl_1 = BasicConv2d(inputs, 448, 1)
        self.branch3x3dbl_2 = BasicConv2d(448, 384, 3, padding=1)
        self.branch3x3dbl_3a = BasicConv2d(384, 384, **flat)
        self.branch3x3dbl_3b = BasicConv2d(384, 384, **tall)
        self.branch_pool = BasicConv2d(inputs, 192, 1)

    def forward(self, x: Tensor) -> Tensor:
        """[N, inputs, H, W] to [N, 2048, H, W]."""
        single = self.branch3x3_1(x)
        single = torch.cat([self.branch3x3_2a(single), self.branch3x3_2b(single)], 1)
        double = self.branch3x3dbl_2(self.branch3x3dbl_1(x))
        double = torch.cat([self.branch3x3dbl_3a(double), self.branch3x3dbl_3b(double)], 1)
        return torch.cat([self.branch1x1(x), single, double, self.branch_pool(_average(x))], 1)


class InceptionAux(nn.Module):
    """The auxiliary classifier: pooling, two convolutions and a linear layer."""

    def __init__(self, inputs: int, classes: int):
        super().__init__()
        self.conv0 = BasicConv2d(inputs, 128, 1)
        self.conv1 = BasicConv2d(128, 768, 5, deviation=0.01)
        self.fc = nn.Linear(768, classes)
        nn.init.normal_(self.fc.weight, 0.0, 0.001)

    def forward(self, x: Tensor) -> Tensor:
        """[N, inputs, H, W] to logits [N, classes]."""
        x = F.avg_pool2d(x, 5, stride=3) if min(x.shape[-2:]) >= _POOLED_SIDE else F.adaptive_avg_pool2d(x, 5)
        x = self.conv1(self.conv0(x))
        return self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))


class Inception3(nn.Module):
    """A stem, eleven modules of parallel branches, global average pooling, dropout and a linear classifier."""

    def __init__(self, classes: int = 1000, auxiliary: bool = True):
        super().__init__()
        self.Conv2d_1a_3x3 = BasicConv2d(3, 32, 3, stride=2)
        self.Conv2d_2a_3x3 = BasicConv2d(32, 32, 3)
        self.Conv2d_2b_3x3 = BasicConv2d(32, 64, 3, padding=1)
        self.maxpool1 = nn.MaxPool2d(3, stride=2)
        self.Conv2d_3b_1x1 = BasicConv2d(64, 80, 1)
        self.Conv2d_4a_3x3 = BasicConv2d(80, 192, 3)
        self.maxpool2 = nn.MaxPool2d(3, stride=2)
        self.Mixed_5b = InceptionA(192, 32)
        self.Mixed_5c = InceptionA(256, 64)
        self.Mixed_5d = InceptionA(288, 64)
        self.Mixed_6a = InceptionB(288)
        self.Mixed_6b = InceptionC(768, 128)
        self.Mixed_6c = InceptionC(768, 160)
        self.Mixed_6d = InceptionC(768, 160)
        self.Mixed_6e = InceptionC(768, 192)
        self.AuxLogits = InceptionAux(768, classes) if auxiliary else None
        self.Mixed_7a = InceptionD(768)
        self.Mixed_7b = InceptionE(1280)
        self.Mixed_7c = InceptionE(2048)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.dropout = nn.Dropout(0.5)
        self.fc = nn.Linear(2048, classes)
        nn.init.normal_(self.fc.weight, 0.0, 0.1)

    def forward(self, images: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        """Images [N, 3, H, W] to logits [N, classes], and those of the auxiliary classifier if there is one."""
        x = self.maxpool1(self.Conv2d_2b_3x3(self.Conv2d_2a_3x3(self.Conv2d_1a_3x3(images))))
        x = self.maxpool2(self.Conv2d_4a_3x3(self.Conv2d_3b_1x1(x)))
        x = self.Mixed_5d(self.Mixed_5c(self.Mixed_5b(x)))
        x = self.Mixed_6e(self.Mixed_6d(self.Mixed_6c(self.Mixed_6b(self.Mixed_6a(x)))))
        auxiliary = None if self.AuxLogits is None else self.AuxLogits(x)
        x = self.Mixed_7c(self.Mixed_7b(self.Mixed_7a(x)))
        logits = self.fc(self.dropout(self.avgpool(x)).flatten(1))
        return logits if auxiliary is None else (logits, auxiliary)


def total_loss(output: tuple[Tensor, Tensor], target: Tensor) -> Tensor:
    """The cross-entropy of the classifier, and of the auxiliary one by its share."""
    logits, auxiliary = output
    return F.cross_entropy(logits, target) + AUXILIARY_SHARE * F.cross_entropy(auxiliary, target)
