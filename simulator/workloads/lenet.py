"""LeNet-5 (LeCun et al., 1998), in today's usual form: ReLU, max-pooling, every feature map connected."""

from torch import Tensor, nn

from simulator.workloads.digits import digits
from simulator.workloads.images import classification
from simulator.workloads.registry import workload

_MAPS = 5  # height and width of the last feature maps of a 32x32 image


class LeNet5(nn.Module):
    """Two convolutions and three linear layers. Images of another size than 32 are average-pooled to the same 5x5 maps."""

    def __init__(self, image_size: int = 32, classes: int = 10):
        super().__init__()
        fit = [] if image_size == 32 else [nn.AdaptiveAvgPool2d(_MAPS)]
        self.features = nn.Sequential(
            nn.Conv2d(1, 6, 5),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            nn.Conv2d(6, 16, 5),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            *fit,
        )
        self.classifier = nn.Sequential(
            nn.Linear(16 * _MAPS * _MAPS, 120),
            nn.ReLU(inplace=True),
            nn.Linear(120, 84),
            nn.ReLU(inplace=True),
            nn.Linear(84, classes),
        )

    def forward(self, images: Tensor) -> Tensor:
        """Images [N, 1, H, W] to logits [N, classes]."""
        return self.classifier(self.features(images).flatten(1))


@workload(
    "lenet5",
    image_size=32,
    least_size=16,
    parameters=61_706,
    about="LeNet-5: LeCun et al. 1998, Gradient-based learning applied to document recognition",
    data=digits(channels=1),
)
def lenet5(batch: int, image_size: int) -> tuple:
    """Grey images, 10 classes."""
    return classification(LeNet5(image_size), batch, image_size, channels=1, classes=10)
