"""LeNet-5 (LeCun et al., 1998) in its modern form: ReLU, max-pooling, and fully connected feature maps."""

from torch import Tensor, nn

_MAPS = 5  # height and width of the last feature maps of a 32x32 image


class LeNet5(nn.Module):
    """Two convolutions and three linear layers. Images of other sizes than 32 are average-pooled to the same 5x5 maps."""

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
