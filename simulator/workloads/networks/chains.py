"""AlexNet with one tower (Krizhevsky, 2014) and torchvision's widths, and with two towers (Krizhevsky et al., 2012; CaffeNet)."""

from torch import Tensor, nn

_LEAST_FOR_LAST_POOL = 63  # for smaller images, the last feature map is smaller than the 3x3 that the last pooling needs


def _last_pool(image_size: int) -> list[nn.Module]:
    return [nn.MaxPool2d(3, stride=2)] if image_size >= _LEAST_FOR_LAST_POOL else []


def _classifier(hidden: int, classes: int, pooled: int = 6) -> list[nn.Module]:
    """The three linear layers, fc6 to fc8 in the papers, with dropout before each of the first two. `pooled`: side of the last maps."""
    return [
        nn.Dropout(0.5),
        nn.Linear(256 * pooled * pooled, hidden),
        nn.ReLU(inplace=True),
        nn.Dropout(0.5),
        nn.Linear(hidden, hidden),
        nn.ReLU(inplace=True),
        nn.Linear(hidden, classes),
    ]


class AlexNet(nn.Module):
    """Five convolutions, adaptive average pooling to 6x6, three linear layers. Images under 63 pixels skip the last pooling."""

    def __init__(self, image_size: int = 224, classes: int = 1000):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 64, 11, stride=4, padding=2),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, stride=2),
            nn.Conv2d(64, 192, 5, padding=2),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, stride=2),
            nn.Conv2d(192, 384, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(384, 256, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(256, 256, 3, padding=1),
            nn.ReLU(inplace=True),
            *_last_pool(image_size),
        )
        self.avgpool = nn.AdaptiveAvgPool2d(6)
        self.classifier = nn.Sequential(*_classifier(4096, classes))

    def forward(self, images: Tensor) -> Tensor:
        """Images [N, 3, H, W] to logits [N, classes]."""
        return self.classifier(self.avgpool(self.features(images)).flatten(1))


class SmallAlexNet(nn.Module):
    """AlexNet with one tower as usual for CIFAR: 3x3 convolutions of the same widths, and maps of 2x2 before the linear layers."""

    def __init__(self, classes: int = 10):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 64, 3, stride=2, padding=1),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            nn.Conv2d(64, 192, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            nn.Conv2d(192, 384, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(384, 256, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(256, 256, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
        )
        self.avgpool = nn.AdaptiveAvgPool2d(2)  # has no effect at 32 pixels, where the maps are 2x2 already
        self.classifier = nn.Sequential(*_classifier(4096, classes, pooled=2))

    def forward(self, images: Tensor) -> Tensor:
        """Images [N, 3, H, W] to logits [N, classes]."""
        return self.classifier(self.avgpool(self.features(images)).flatten(1))


class TwoTowerAlexNet(nn.Module):
    """AlexNet with local response normalization; conv2, conv4 and conv5 read only their own tower, the other layers read both.

    `pool_first` pools before it normalizes, as Caffe's reference network does, so that it normalizes a quarter of the elements. The two
    also define normalization differently: the paper uses (2 + 1e-4 · sum)^0.75 over five channels, Caffe uses (1 + 1e-4 · mean)^0.75.
    `alpha` is the factor of the mean here too. Conv1 is padded by 2, which gives 55x55 maps for 224 pixels; without padding it would need
    227.
    """

    def __init__(self, image_size: int = 224, pool_first: bool = False, hidden: int = 4096, classes: int = 1000):
        super().__init__()

        def shrink() -> list[nn.Module]:
            pool = nn.MaxPool2d(3, stride=2)
            if pool_first:
                return [pool, nn.LocalResponseNorm(5, alpha=1e-4, beta=0.75, k=1.0)]
            return [nn.LocalResponseNorm(5, alpha=5 * 1e-4, beta=0.75, k=2.0), pool]

        self.features = nn.Sequential(
            nn.Conv2d(3, 96, 11, stride=4, padding=2),
            nn.ReLU(inplace=True),
            *shrink(),
            nn.Conv2d(96, 256, 5, padding=2, groups=2),
            nn.ReLU(inplace=True),
            *shrink(),
            nn.Conv2d(256, 384, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(384, 384, 3, padding=1, groups=2),
            nn.ReLU(inplace=True),
            nn.Conv2d(384, 256, 3, padding=1, groups=2),
            nn.ReLU(inplace=True),
            *_last_pool(image_size),
        )
        self.avgpool = nn.AdaptiveAvgPool2d(6)  # has no effect at 224 pixels, where the maps are 6x6 already
        self.classifier = nn.Sequential(*_classifier(hidden, classes))

    def forward(self, images: Tensor) -> Tensor:
        """Images [N, 3, H, W] to logits [N, classes]."""
        return self.classifier(self.avgpool(self.features(images)).flatten(1))
