"""VGG networks (Simonyan and Zisserman, 2014)."""

from torch import Tensor, nn

#: Convolutions per group; every group ends with max-pooling.
VGG11, VGG13, VGG16, VGG19 = (1, 1, 2, 2, 2), (2, 2, 2, 2, 2), (2, 2, 3, 3, 3), (2, 2, 4, 4, 4)


class VGG(nn.Module):
    """3x3 convolutions in five groups, adaptive average pooling, which also allows small images, and three linear layers.

    `pooled`: the side of the maps behind the pooling; `hidden`: the width of the first two linear layers.
    """

    def __init__(self, depths: tuple[int, ...], batch_norm: bool = False, classes: int = 1000, pooled: int = 7, hidden: int = 4096):
        super().__init__()
        layers: list[nn.Module] = []
        inputs = 3
        for width, depth in zip((64, 128, 256, 512, 512), depths, strict=True):
            for _ in range(depth):
                layers.append(nn.Conv2d(inputs, width, 3, padding=1))
                if batch_norm:
                    layers.append(nn.BatchNorm2d(width))
                layers.append(nn.ReLU(inplace=True))
                inputs = width
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        self.avgpool = nn.AdaptiveAvgPool2d(pooled)
        self.classifier = nn.Sequential(
            nn.Linear(512 * pooled * pooled, hidden),
            nn.ReLU(inplace=True),
            nn.Dropout(0.5),
            nn.Linear(hidden, hidden),
            nn.ReLU(inplace=True),
            nn.Dropout(0.5),
            nn.Linear(hidden, classes),
        )
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
                nn.init.zeros_(module.bias)
            elif isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, 0.0, 0.01)
                nn.init.zeros_(module.bias)

    def forward(self, images: Tensor) -> Tensor:
        """Images [N, 3, H, W] to logits [N, classes]."""
        return self.classifier(self.avgpool(self.features(images)).flatten(1))
