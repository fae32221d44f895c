"""MobileNetV2 (Sandler et al., 2018), width 1.0."""

from torch import Tensor, nn

#: Expansion, output channels, repeats and first stride of each group of inverted residuals (table 2 of the paper).
_GROUPS = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


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
    """A stem, 17 inverted residuals, a 1x1 convolution, global average pooling, dropout and a linear classifier."""

    def __init__(self, classes: int = 1000):
        super().__init__()
        layers: list[nn.Module] = [_conv_bn_relu(3, 32, 3, stride=2)]
        inputs = 32
        for expansion, outputs, repeats, stride in _GROUPS:
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
        return self.classifier(nn.functional.adaptive_avg_pool2d(self.features(images), 1).flatten(1))
