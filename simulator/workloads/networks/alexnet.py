"""AlexNet: in its one-tower form (Krizhevsky, 2014) with torchvision's widths, and in the form of 2012 with two towers, and Caffe's."""

from torch import Tensor, nn

_LEAST_FOR_LAST_POOL = 63  # smaller images leave less than the 3x3 map that the last pooling needs


def _last_pool(image_size: int) -> list[nn.Module]:
    return [nn.MaxPool2d(3, stride=2)] if image_size >= _LEAST_FOR_LAST_POOL else []


def _classifier(hidden: int, classes: int) -> list[nn.Module]:
    """The three linear layers, fc6 to fc8 of the papers, each of the first two behind dropout."""
    return [
        nn.Dropout(0.5),
        nn.Linear(256 * 6 * 6, hidden),
        nn.ReLU(inplace=True),
        nn.Dropout(0.5),
        nn.Linear(hidden, hidden),
        nn.ReLU(inplace=True),
        nn.Linear(hidden, classes),
    ]


class AlexNet(nn.Module):
    """Five convolutions, adaptive average pooling to 6x6, three linear layers. Under 63 pixels the last pooling is left out."""

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


class TwoTowerAlexNet(nn.Module):
    """AlexNet with local response normalisation; conv2, conv4 and conv5 see only their own tower, the other layers both.

    `pool_first` pools before it normalises, as Caffe's reference network does: on a quarter of the numbers. The two also write the
    normalisation differently. The paper has (2 + 1e-4 · sum)^0.75 over five channels; Caffe has (1 + 1e-4 · mean)^0.75, and `alpha` is
    the factor of a mean here too. Conv1 is padded by 2, which makes 55x55 maps of 224 pixels; unpadded, it would take 227.
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
        self.avgpool = nn.AdaptiveAvgPool2d(6)  # changes nothing at 224 pixels, where the maps are 6x6 already
        self.classifier = nn.Sequential(*_classifier(hidden, classes))

    def forward(self, images: Tensor) -> Tensor:
        """Images [N, 3, H, W] to logits [N, classes]."""
        return self.classifier(self.avgpool(self.features(images)).flatten(1))
