"""ResNets for CIFAR's small images (He et al., 2015), and the deeper ones of the papers on pipelined training."""

from functools import partial

from simulator.workloads.digits import digits
from simulator.workloads.images import classification
from simulator.workloads.registry import workload

_PAPER = "He et al. 2015, Deep residual learning for image recognition"
_PIPELINED = "Zhang and Abdelrahman 2021, Pipelined training with stale weights"
#: What all of them have in common: the size of CIFAR's images, the papers' batch, and handwritten digits to train on.
_SMALL = {"image_size": 32, "batch": 128, "data": partial(digits, 3)}


@workload("resnet20", parameters=269_722, about=f"ResNet-20 for CIFAR: {_PAPER}", **_SMALL)
def resnet20(batch: int, image_size: int) -> tuple:
    """Build ResNet-20: three groups of 3 blocks."""
    return _build(3, batch, image_size)


@workload("resnet56", parameters=853_018, about=f"ResNet-56 for CIFAR: {_PAPER}", **_SMALL)
def resnet56(batch: int, image_size: int) -> tuple:
    """Build ResNet-56: three groups of 9 blocks."""
    return _build(9, batch, image_size)


@workload("resnet110", parameters=1_727_962, about=f"ResNet-110 for CIFAR: {_PAPER}", **_SMALL)
def resnet110(batch: int, image_size: int) -> tuple:
    """Build ResNet-110: three groups of 18 blocks."""
    return _build(18, batch, image_size)


@workload("resnet224", parameters=3_575_066, about=f"ResNet-224 for CIFAR: {_PIPELINED}", **_SMALL)
def resnet224(batch: int, image_size: int) -> tuple:
    """Build ResNet-224: three groups of 37 blocks."""
    return _build(37, batch, image_size)


@workload("resnet362", parameters=5_811_034, about=f"ResNet-362 for CIFAR: {_PIPELINED}", **_SMALL)
def resnet362(batch: int, image_size: int) -> tuple:
    """Build ResNet-362: three groups of 60 blocks."""
    return _build(60, batch, image_size)


def _build(n: int, batch: int, image_size: int) -> tuple:
    """Build the ResNet of 6n + 2 layers."""
    from simulator.workloads.networks.resnet_cifar import SmallResNet

    return classification(SmallResNet(n), batch, image_size, classes=10)
