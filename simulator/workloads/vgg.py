"""VGG networks (Simonyan and Zisserman, 2014)."""

from functools import partial

from simulator.workloads.digits import digits
from simulator.workloads.images import IMAGENET_22K, classification
from simulator.workloads.registry import workload

_PAPER = "Simonyan and Zisserman 2014, Very deep convolutional networks"


@workload("vgg11", image_size=224, least_size=32, parameters=132_863_336, about=f"VGG-11 (A): {_PAPER}", data=partial(digits, 3))
def vgg11(batch: int, image_size: int) -> tuple:
    """Build VGG-11: eight convolutions."""
    from simulator.workloads.networks.vgg import VGG, VGG11

    return classification(VGG(VGG11), batch, image_size)


@workload("vgg13", image_size=224, least_size=32, parameters=133_047_848, about=f"VGG-13 (B): {_PAPER}")
def vgg13(batch: int, image_size: int) -> tuple:
    """Build VGG-13: ten convolutions."""
    from simulator.workloads.networks.vgg import VGG, VGG13

    return classification(VGG(VGG13), batch, image_size)


@workload("vgg16", image_size=224, least_size=32, parameters=138_357_544, about=f"VGG-16 (D): {_PAPER}")
def vgg16(batch: int, image_size: int) -> tuple:
    """Build VGG-16: thirteen convolutions."""
    from simulator.workloads.networks.vgg import VGG, VGG16

    return classification(VGG(VGG16), batch, image_size)


@workload(
    "vgg16_22k", image_size=224, least_size=32, parameters=138_357_544 + 20_841 * 4_097, about=f"VGG-16 (D) for ImageNet-22K: {_PAPER}"
)
def vgg16_22k(batch: int, image_size: int) -> tuple:
    """Build VGG-16 for 21,841 classes."""
    from simulator.workloads.networks.vgg import VGG, VGG16

    return classification(VGG(VGG16, classes=IMAGENET_22K), batch, image_size, classes=IMAGENET_22K)


@workload(
    "vgg16_cifar",
    image_size=32,
    least_size=32,
    parameters=15_245_130,
    about=f"VGG-16 (D) for CIFAR, with linear layers of 512: {_PAPER}",
    data=partial(digits, 3),
    batch=128,
)
def vgg16_cifar(batch: int, image_size: int) -> tuple:
    """Build VGG-16 for small images of 10 classes: its linear layers have 512, 512 and 10 outputs."""
    from simulator.workloads.networks.vgg import VGG, VGG16

    return classification(VGG(VGG16, classes=10, pooled=1, hidden=512), batch, image_size, classes=10)


@workload("vgg19", image_size=224, least_size=32, parameters=143_667_240, about=f"VGG-19 (E): {_PAPER}")
def vgg19(batch: int, image_size: int) -> tuple:
    """Build VGG-19: sixteen convolutions."""
    from simulator.workloads.networks.vgg import VGG, VGG19

    return classification(VGG(VGG19), batch, image_size)


@workload("vgg19_bn", image_size=224, least_size=32, parameters=143_678_248, about=f"VGG-19 (E) with batch-norm: {_PAPER}")
def vgg19_bn(batch: int, image_size: int) -> tuple:
    """Build VGG-19 with batch-norm: sixteen convolutions, each followed by a batch-norm."""
    from simulator.workloads.networks.vgg import VGG, VGG19

    return classification(VGG(VGG19, batch_norm=True), batch, image_size)
