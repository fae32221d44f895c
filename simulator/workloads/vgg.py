"""VGG networks (Simonyan and Zisserman, 2014)."""

from torch import Tensor, nn

from simulator.workloads.digits import digits
from simulator.workloads.images import classification
from simulator.workloads.registry import workload

_PAPER = "Simonyan and Zisserman 2014, Very deep convolutional networks"
#: Convolutions per group; every group ends in max-pooling.
VGG11, _VGG16, _VGG19 = (1, 1, 2, 2, 2), (2, 2, 3, 3, 3), (2, 2, 4, 4, 4)


class VGG(nn.Module):
    """3x3 convolutions in five groups, adaptive average pooling to 7x7 (so that small images work too), three linear layers."""

    def __init__(self, depths: tuple[int, ...], batch_norm: bool = False, classes: int = 1000):
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
        self.avgpool = nn.AdaptiveAvgPool2d(7)
        self.classifier = nn.Sequential(
            nn.Linear(512 * 7 * 7, 4096),
            nn.ReLU(inplace=True),
            nn.Dropout(0.5),
            nn.Linear(4096, 4096),
            nn.ReLU(inplace=True),
            nn.Dropout(0.5),
            nn.Linear(4096, classes),
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


@workload("vgg11", image_size=224, least_size=32, parameters=132_863_336, about=f"VGG-11 (A): {_PAPER}", data=digits(channels=3))
def vgg11(batch: int, image_size: int) -> tuple:
    """Eight convolutions."""
    return classification(VGG(VGG11), batch, image_size)


@workload("vgg16", image_size=224, least_size=32, parameters=138_357_544, about=f"VGG-16 (D): {_PAPER}")
def vgg16(batch: int, image_size: int) -> tuple:
    """Thirteen convolutions."""
    return classification(VGG(_VGG16), batch, image_size)


@workload("vgg19_bn", image_size=224, least_size=32, parameters=143_678_248, about=f"VGG-19 (E) with batch-norm: {_PAPER}")
def vgg19_bn(batch: int, image_size: int) -> tuple:
    """Sixteen convolutions, each with batch-norm."""
    return classification(VGG(_VGG19, batch_norm=True), batch, image_size)
