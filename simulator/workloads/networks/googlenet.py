"""GoogLeNet (Szegedy et al., 2014) with batch-norm and without auxiliary classifiers, as in torchvision.

The "5x5" branch has a 3x3 convolution, because torchvision's weights come from such a model: the number of parameters shows it.
"""

import torch
from torch import Tensor, nn

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
    """Four branches over the same input; their outputs are concatenated."""

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
    """A stem, nine inception modules in three groups, global average pooling, dropout and a linear classifier."""

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
            module = Inception(channels, *widths)
            self.add_module(f"inception{name}", module)
            channels = module.outputs
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.dropout = nn.Dropout(0.2)
        self.fc = nn.Linear(channels, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        """Images [N, 3, H, W] to logits [N, classes]."""
        *layers, classifier = self.children()  # modules run in the order in which they were added
        x = images
        for layer in layers:
            x = layer(x)
        return classifier(x.flatten(1))
