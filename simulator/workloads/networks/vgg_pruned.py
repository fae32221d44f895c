"""VGG-11 for 32x32 images with 97 % of its weights pruned: the retraining workload of BPPSA (Wang et al., 2020, section 4.3)."""

import math
from itertools import pairwise

from torch import Tensor, nn

from simulator.bodies.csr.mask import Mask
from simulator.ops.pruned import PrunedConv2d, PrunedLinear
from simulator.workloads.networks.vgg import VGG11

_KEEP = 0.03


class PrunedVGG11(nn.Module):
    """Eight 3x3 convolutions in five groups that end with max-pooling, and three linear layers as usual for CIFAR-10.

    The feature maps of images of 64x64 and more are average-pooled before the linear layers. In every convolution and every linear layer,
    3 % of the weight are kept, at random positions that depend on the layer's number and the weight's shape.
    """

    def __init__(self, image_size: int = 32, classes: int = 10):
        super().__init__()
        layers: list[nn.Module] = []
        inputs, number = 3, 0
        for width, depth in zip((64, 128, 256, 512, 512), VGG11, strict=True):
            for _ in range(depth):
                layers += [PrunedConv2d(inputs, width, 3, padding=1, mask=Mask(_KEEP, number)), nn.ReLU(inplace=True)]
                inputs, number = width, number + 1
            layers.append(nn.MaxPool2d(2))
        fit = [] if image_size < 64 else [nn.AdaptiveAvgPool2d(1)]
        self.features = nn.Sequential(*layers, *fit)
        sizes = (512, 512, 512, classes)
        head: list[nn.Module] = []
        for wide, narrow in pairwise(sizes):
            head += [PrunedLinear(wide, narrow, mask=Mask(_KEEP, number)), nn.ReLU(inplace=True)]
            number += 1
        self.classifier = nn.Sequential(*head[:-1])
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                # The initialization of He et al., with the number of inputs that are kept.
                fan_in = module.weight[0].numel()
                nn.init.normal_(module.weight, 0.0, math.sqrt(2 / (fan_in * _KEEP)))
                nn.init.zeros_(module.bias)

    def forward(self, images: Tensor) -> Tensor:
        """Images [N, 3, H, W] to logits [N, classes]."""
        return self.classifier(self.features(images).flatten(1))
