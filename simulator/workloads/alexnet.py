"""AlexNet: with one tower (Krizhevsky, 2014), with two towers (Krizhevsky et al., 2012), and CaffeNet (Jia et al., 2014)."""

from functools import partial

from simulator.workloads.digits import digits
from simulator.workloads.images import IMAGENET_22K, classification
from simulator.workloads.registry import workload


@workload(
    "alexnet",
    image_size=224,
    least_size=31,
    parameters=61_100_840,
    about="AlexNet, one tower: Krizhevsky 2014, One weird trick for parallelizing convolutional neural networks",
)
def alexnet(batch: int, image_size: int) -> tuple:
    """Build AlexNet. Most of its parameters are in the first linear layer (classifier.1, fc6 in the papers)."""
    from simulator.workloads.networks.chains import AlexNet

    return classification(AlexNet(image_size), batch, image_size)


@workload(
    "alexnet_22k",
    image_size=224,
    least_size=31,
    parameters=61_100_840 + 20_841 * 4_097,
    about="AlexNet, one tower, for ImageNet-22K: Krizhevsky 2014, One weird trick for parallelizing convolutional neural networks",
)
def alexnet_22k(batch: int, image_size: int) -> tuple:
    """Build AlexNet for 21,841 classes."""
    from simulator.workloads.networks.chains import AlexNet

    return classification(AlexNet(image_size, IMAGENET_22K), batch, image_size, classes=IMAGENET_22K)


@workload(
    "alexnet_cifar",
    image_size=32,
    least_size=15,
    parameters=23_272_266,
    about="AlexNet for CIFAR, with 3x3 convolutions: Krizhevsky 2014, One weird trick for parallelizing convolutional neural networks",
    data=partial(digits, 3),
    batch=128,
)
def alexnet_cifar(batch: int, image_size: int) -> tuple:
    """Build AlexNet for small images of 10 classes."""
    from simulator.workloads.networks.chains import SmallAlexNet

    return classification(SmallAlexNet(), batch, image_size, classes=10)


@workload(
    "alexnet_grouped",
    image_size=224,
    least_size=31,
    parameters=60_965_224,
    about="AlexNet, two towers: Krizhevsky et al. 2012, ImageNet classification with deep convolutional neural networks",
)
def alexnet_grouped(batch: int, image_size: int) -> tuple:
    """Build the two-tower AlexNet: grouped convolutions, and local response normalization before each of the first two pooling layers."""
    from simulator.workloads.networks.chains import TwoTowerAlexNet

    return classification(TwoTowerAlexNet(image_size), batch, image_size)


@workload(
    "caffenet",
    image_size=224,
    least_size=31,
    parameters=60_965_224,
    about="CaffeNet, pools before it normalises: Jia et al. 2014, Caffe: Convolutional architecture for fast feature embedding",
)
def caffenet(batch: int, image_size: int) -> tuple:
    """Build CaffeNet: `alexnet_grouped` with each of the first two pooling layers before its normalization."""
    from simulator.workloads.networks.chains import TwoTowerAlexNet

    return classification(TwoTowerAlexNet(image_size, pool_first=True), batch, image_size)
