"""Image classifiers without branches.

LeNet-5 (LeCun et al., 1998), AlexNets (Krizhevsky et al., 2012; Krizhevsky, 2014) and VGGs (Simonyan and Zisserman, 2014).
"""

import math
from collections.abc import Callable
from functools import partial
from itertools import count

import torch
from torch import Tensor, nn

from simulator.model.ops.pruned import PrunedConv2d, PrunedLinear
from simulator.plan.bodies.csr.mask import Mask

#: Side of the last maps of LeNet-5 for images of 32 pixels.
_LENET_MAPS = 5
#: For smaller images, the last feature map of AlexNet is smaller than the 3x3 that the last pooling needs.
_LEAST_FOR_LAST_POOL = 63
#: Share of the weights that the pruned VGG-11 keeps.
_KEEP = 0.03


class Chain(nn.Module):
    """Layers over feature maps, adaptive average pooling to `pooled` x `pooled` if it is given, and layers over vectors."""

    def __init__(self, features: list[nn.Module], classifier: list[nn.Module], pooled: int | None = None):
        super().__init__()
        self.features = nn.Sequential(*features)
        if pooled is not None:
            self.avgpool = nn.AdaptiveAvgPool2d(pooled)
        self.classifier = nn.Sequential(*classifier)

    def forward(self, images: Tensor) -> Tensor:
        """Images [N, C, H, W] to logits [N, classes]."""
        *layers, classifier = self.children()  # in the order in which they were added
        x = images
        for layer in layers:
            x = layer(x)
        return classifier(x.flatten(1))


def _conv(inputs: int, outputs: int, kernel: int, stride: int = 1, padding: int = 0, groups: int = 1) -> list[nn.Module]:
    return [nn.Conv2d(inputs, outputs, kernel, stride, padding, groups=groups), nn.ReLU(inplace=True)]


def _linear(inputs: int, outputs: int) -> list[nn.Module]:
    return [nn.Linear(inputs, outputs), nn.ReLU(inplace=True)]


class LeNet5(Chain):
    """LeNet-5 in its modern form: ReLU, max-pooling, and fully connected feature maps. `image_size` [pixels]: others than 32 are pooled."""

    def __init__(self, image_size: int = 32, classes: int = 10):
        fit = [] if image_size == 32 else [nn.AdaptiveAvgPool2d(_LENET_MAPS)]
        super().__init__(
            [*_conv(1, 6, 5), nn.MaxPool2d(2), *_conv(6, 16, 5), nn.MaxPool2d(2), *fit],
            [*_linear(16 * _LENET_MAPS * _LENET_MAPS, 120), *_linear(120, 84), nn.Linear(84, classes)],
        )


def _last_pool(image_size: int) -> list[nn.Module]:
    return [nn.MaxPool2d(3, stride=2)] if image_size >= _LEAST_FOR_LAST_POOL else []


def _alexnet_classifier(hidden: int, classes: int, pooled: int = 6) -> list[nn.Module]:
    """The three linear layers, fc6 to fc8 in the papers, with dropout before each of the first two. `pooled`: side of the last maps."""
    head = [nn.Dropout(0.5), *_linear(256 * pooled * pooled, hidden), nn.Dropout(0.5), *_linear(hidden, hidden)]
    return [*head, nn.Linear(hidden, classes)]


class AlexNet(Chain):
    """AlexNet with one tower (Krizhevsky, 2014) and torchvision's widths. Images under 63 pixels skip the last pooling.

    Most of the parameters are in the first linear layer (classifier.1, fc6 in the papers).
    """

    def __init__(self, image_size: int = 224, classes: int = 1000):
        features = [
            *_conv(3, 64, 11, stride=4, padding=2),
            nn.MaxPool2d(3, stride=2),
            *_conv(64, 192, 5, padding=2),
            nn.MaxPool2d(3, stride=2),
            *_conv(192, 384, 3, padding=1),
            *_conv(384, 256, 3, padding=1),
            *_conv(256, 256, 3, padding=1),
            *_last_pool(image_size),
        ]
        super().__init__(features, _alexnet_classifier(4096, classes), pooled=6)


class SmallAlexNet(Chain):
    """AlexNet with one tower as usual for CIFAR: 3x3 convolutions of the same widths, and maps of 2x2 before the linear layers."""

    def __init__(self, classes: int = 10):
        features = [
            *_conv(3, 64, 3, stride=2, padding=1),
            nn.MaxPool2d(2),
            *_conv(64, 192, 3, padding=1),
            nn.MaxPool2d(2),
            *_conv(192, 384, 3, padding=1),
            *_conv(384, 256, 3, padding=1),
            *_conv(256, 256, 3, padding=1),
            nn.MaxPool2d(2),
        ]
        super().__init__(features, _alexnet_classifier(4096, classes, pooled=2), pooled=2)  # the maps of 32 pixels are 2x2 already


class TwoTowerAlexNet(Chain):
    """AlexNet with two towers (Krizhevsky et al., 2012): local response normalization before each of the first two pooling layers.

    Conv2, conv4 and conv5 read only their own tower, the other layers read both. `pool_first` pools before it normalizes, as CaffeNet does
    (Jia et al., 2014), so that it normalizes a quarter of the elements. The two also define normalization differently: the paper uses
    (2 + 1e-4 · sum)^0.75 over five channels, Caffe uses (1 + 1e-4 · mean)^0.75. `alpha` is the factor of the mean here too. Conv1 is padded
    by 2, which gives 55x55 maps for 224 pixels; without padding it would need 227.
    """

    def __init__(self, image_size: int = 224, pool_first: bool = False, hidden: int = 4096, classes: int = 1000):
        def shrink() -> list[nn.Module]:
            pool = nn.MaxPool2d(3, stride=2)
            if pool_first:
                return [pool, nn.LocalResponseNorm(5, alpha=1e-4, beta=0.75, k=1.0)]
            return [nn.LocalResponseNorm(5, alpha=5 * 1e-4, beta=0.75, k=2.0), pool]

        features = [
            *_conv(3, 96, 11, stride=4, padding=2),
            *shrink(),
            *_conv(96, 256, 5, padding=2, groups=2),
            *shrink(),
            *_conv(256, 384, 3, padding=1),
            *_conv(384, 384, 3, padding=1, groups=2),
            *_conv(384, 256, 3, padding=1, groups=2),
            *_last_pool(image_size),
        ]
        super().__init__(features, _alexnet_classifier(hidden, classes), pooled=6)  # the maps of 224 pixels are 6x6 already


def _groups(depths: tuple[int, ...], convolution: Callable[..., nn.Module] = nn.Conv2d, batch_norm: bool = False) -> list[nn.Module]:
    """The five groups of 3x3 convolutions of a VGG, `depths` in each; every group ends with max-pooling."""
    layers: list[nn.Module] = []
    inputs = 3
    for width, depth in zip((64, 128, 256, 512, 512), depths, strict=True):
        for _ in range(depth):
            norm = [nn.BatchNorm2d(width)] if batch_norm else []
            layers += [convolution(inputs, width, 3, padding=1), *norm, nn.ReLU(inplace=True)]
            inputs = width
        layers.append(nn.MaxPool2d(2))
    return layers


class VGG(Chain):
    """3x3 convolutions in five groups, adaptive average pooling, which also allows small images, and three linear layers.

    `depths`: convolutions per group. `pooled`: the side of the maps behind the pooling. `hidden`: the width of the first two linear layers.
    """

    def __init__(self, depths: tuple[int, ...], batch_norm: bool = False, classes: int = 1000, pooled: int = 7, hidden: int = 4096):
        features = _groups(depths, batch_norm=batch_norm)
        head = [*_linear(512 * pooled * pooled, hidden), nn.Dropout(0.5), *_linear(hidden, hidden), nn.Dropout(0.5)]
        super().__init__(features, [*head, nn.Linear(hidden, classes)], pooled)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            elif isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, 0.0, 0.01)
                nn.init.zeros_(module.bias)


class PrunedVGG11(Chain):
    """VGG-11 with three linear layers as usual for CIFAR-10, 97 % of its weights pruned (BPPSA, Wang et al., 2020, section 4.3).

    The feature maps of images of 64x64 and more are average-pooled before the linear layers. In every convolution and every linear layer,
    3 % of the weight is retained, at random positions that depend on the layer's number and the weight's shape.
    """

    def __init__(self, image_size: int = 32, classes: int = 10):
        masks = map(partial(Mask, _KEEP), count())
        fit = [] if image_size < 64 else [nn.AdaptiveAvgPool2d(1)]
        features = _groups((1, 1, 2, 2, 2), lambda *arguments, **options: PrunedConv2d(*arguments, **options, mask=next(masks)))
        first, second = ([PrunedLinear(512, 512, mask=next(masks)), nn.ReLU(inplace=True)] for _ in range(2))
        super().__init__([*features, *fit], [*first, *second, PrunedLinear(512, classes, mask=next(masks))])
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                # The initialization of He et al., with the number of inputs that are kept.
                fan_in = module.weight[0].numel()
                nn.init.normal_(module.weight, 0.0, math.sqrt(2 / (fan_in * _KEEP)))
                if module.bias is not None:
                    nn.init.zeros_(module.bias)


def tanh_layers(batch: int, layers: int, width: int = 32) -> tuple[nn.Module, Tensor, Tensor]:
    """`layers` equal linear layers of `width` units with tanh; the results of the last one are logits. A model for `MODULE:FACTORY`."""
    made = [layer for _ in range(layers) for layer in (nn.Linear(width, width), nn.Tanh())]
    return nn.Sequential(*made), torch.randn(batch, width), torch.randint(width, (batch,))


tanh_4, tanh_8, tanh_16, tanh_32 = (partial(tanh_layers, layers=layers) for layers in (4, 8, 16, 32))
