"""Image classifiers of parallel branches, with torchvision's widths and module names.

GoogLeNet (Szegedy et al., 2014) and Inception-v3 (Szegedy et al., 2016).
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

#: Output channels of each module (table 1 of the paper): 1x1; reduction and 3x3; reduction and "5x5"; 1x1 after the pooling.
_INCEPTIONS = {
    "3a": (64, (96, 128), (16, 32), 32),
    "3b": (128, (128, 192), (32, 96), 64),
    "4a": (192, (96, 208), (16, 48), 64),
    "4b": (160, (112, 224), (24, 64), 64),
    "4c": (128, (128, 256), (24, 64), 64),
    "4d": (112, (144, 288), (32, 64), 64),
    "4e": (256, (160, 320), (32, 128), 128),
    "5a": (256, (160, 320), (32, 128), 128),
    "5b": (384, (192, 384), (48, 128), 128),
}
#: Share of the auxiliary classifier's loss in the loss.
_AUXILIARY_SHARE = 0.4
#: Side of the maps that the auxiliary classifier pools, for images of 299 pixels; of smaller ones it averages over overlapping bins.
_POOLED_SIDE = 17


class ConvNormRelu(nn.Module):
    """A convolution that keeps the map's size if its stride is 1, batch-norm, ReLU."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1):
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)
        self.bn = nn.BatchNorm2d(outputs, eps=0.001)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        """[N, inputs, H, W] to [N, outputs, H/stride, W/stride]."""
        return self.relu(self.bn(self.conv(x)))


class Inception(nn.Module):
    """Four branches over the same input; their outputs are concatenated.

    The "5x5" branch has a 3x3 convolution, because torchvision's weights come from such a model: the number of parameters shows it.
    """

    def __init__(self, inputs: int, plain: int, middle: tuple[int, int], wide: tuple[int, int], pooled: int):
        super().__init__()
        self.branch1 = ConvNormRelu(inputs, plain, 1)
        self.branch2 = nn.Sequential(ConvNormRelu(inputs, middle[0], 1), ConvNormRelu(*middle, 3))
        self.branch3 = nn.Sequential(ConvNormRelu(inputs, wide[0], 1), ConvNormRelu(*wide, 3))
        self.branch4 = nn.Sequential(nn.MaxPool2d(3, stride=1, padding=1), ConvNormRelu(inputs, pooled, 1))
        self.outputs = plain + middle[1] + wide[1] + pooled

    def forward(self, x: Tensor) -> Tensor:
        """[N, inputs, H, W] to [N, outputs, H, W]."""
        return torch.cat([self.branch1(x), self.branch2(x), self.branch3(x), self.branch4(x)], 1)


class GoogLeNet(nn.Module):
    """GoogLeNet with batch-norm and without auxiliary classifiers.

    A stem, nine inception modules in three groups, global average pooling, dropout and a linear classifier.
    """

    def __init__(self, classes: int = 1000):
        super().__init__()
        self.conv1 = ConvNormRelu(3, 64, 7, stride=2)
        self.maxpool1 = nn.MaxPool2d(3, stride=2, ceil_mode=True)
        self.conv2 = ConvNormRelu(64, 64, 1)
        self.conv3 = ConvNormRelu(64, 192, 3)
        self.maxpool2 = nn.MaxPool2d(3, stride=2, ceil_mode=True)
        channels = 192
        for name, widths in _INCEPTIONS.items():
            if name == "4a":
                self.maxpool3 = nn.MaxPool2d(3, stride=2, ceil_mode=True)
            elif name == "5a":
                self.maxpool4 = nn.MaxPool2d(2, stride=2, ceil_mode=True)
            inception = Inception(channels, *widths)
            self.add_module(f"inception{name}", inception)
            channels = inception.outputs
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.dropout = nn.Dropout(0.2)
        self.fc = nn.Linear(channels, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        """Images [N, 3, H, W] to logits [N, classes]."""
        *layers, classifier = self.children()  # in the order in which they were added
        x = images
        for layer in layers:
            x = layer(x)
        return classifier(x.flatten(1))


class BasicConv2d(nn.Module):
    """A convolution without bias, batch-norm, ReLU."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: int | tuple[int, int],
        padding: int | tuple[int, int] = 0,
        stride: int = 1,
        deviation: float = 0.1,
    ):
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, padding, bias=False)
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
        flat, tall = ((1, 7), (0, 3)), ((7, 1), (3, 0))  # kernel and padding
        self.branch1x1 = BasicConv2d(inputs, 192, 1)
        self.branch7x7_1 = BasicConv2d(inputs, width, 1)
        self.branch7x7_2 = BasicConv2d(width, width, *flat)
        self.branch7x7_3 = BasicConv2d(width, 192, *tall)
        self.branch7x7dbl_1 = BasicConv2d(inputs, width, 1)
        self.branch7x7dbl_2 = BasicConv2d(width, width, *tall)
        self.branch7x7dbl_3 = BasicConv2d(width, width, *flat)
        self.branch7x7dbl_4 = BasicConv2d(width, width, *tall)
        self.branch7x7dbl_5 = BasicConv2d(width, 192, *flat)
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
    """Branches of 1x1, 3x3, twice 3x3, and pooling; the last 3x3 convolution of a branch is a 1x3 next to a 3x1."""

    def __init__(self, inputs: int):
        super().__init__()
        flat, tall = ((1, 3), (0, 1)), ((3, 1), (1, 0))  # kernel and padding
        self.branch1x1 = BasicConv2d(inputs, 320, 1)
        self.branch3x3_1 = BasicConv2d(inputs, 384, 1)
        self.branch3x3_2a = BasicConv2d(384, 384, *flat)
        self.branch3x3_2b = BasicConv2d(384, 384, *tall)
        self.branch3x3dbl_1 = BasicConv2d(inputs, 448, 1)
        self.branch3x3dbl_2 = BasicConv2d(448, 384, 3, padding=1)
        self.branch3x3dbl_3a = BasicConv2d(384, 384, *flat)
        self.branch3x3dbl_3b = BasicConv2d(384, 384, *tall)
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
    """Inception-v3: a stem, eleven modules of branches, global average pooling, dropout and a linear classifier.

    `auxiliary`: with the auxiliary classifier, as it is trained; its loss is `total_loss`.
    """

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
    """Return the cross-entropy of the classifier, and of the auxiliary one by its share: logits [N, classes] of both, and targets [N]."""
    logits, auxiliary = output
    return F.cross_entropy(logits, target) + _AUXILIARY_SHARE * F.cross_entropy(auxiliary, target)
