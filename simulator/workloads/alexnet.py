"""AlexNet in its one-tower form (Krizhevsky, 2014), with the widths that torchvision uses."""

from torch import Tensor, nn

from . import workload
from .images import classification

_LEAST_FOR_LAST_POOL = 63  # smaller images leave less than the 3x3 map that the last pooling needs


class AlexNet(nn.Module):
    """Five convolutions, adaptive average pooling to 6x6, three linear layers. Under 63 pixels the last pooling is left out."""

    def __init__(self, image_size: int = 224, classes: int = 1000):
        super().__init__()
        last_pool = [nn.MaxPool2d(3, stride=2)] if image_size >= _LEAST_FOR_LAST_POOL else []
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
            *last_pool,
        )
        self.avgpool = nn.AdaptiveAvgPool2d(6)
        self.classifier = nn.Sequential(
            nn.Dropout(0.5),
            nn.Linear(256 * 6 * 6, 4096),
            nn.ReLU(inplace=True),
            nn.Dropout(0.5),
            nn.Linear(4096, 4096),
            nn.ReLU(inplace=True),
            nn.Linear(4096, classes),
        )

    def forward(self, images: Tensor) -> Tensor:
        """Images [N, 3, H, W] to logits [N, classes]."""
        return self.classifier(self.avgpool(self.features(images)).flatten(1))


@workload(
    "alexnet",
    image_size=224,
    parameters=61_100_840,
    about="AlexNet, one tower: Krizhevsky 2014, One weird trick for parallelizing convolutional neural networks",
)
def alexnet(batch: int, image_size: int) -> tuple:
    """Most parameters in the first linear layer (classifier.1, fc6 of the papers)."""
    return classification(AlexNet(image_size), batch, image_size)
