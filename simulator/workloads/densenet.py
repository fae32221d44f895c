"""DenseNets (Huang et al., 2016)."""

from simulator.workloads.images import classification
from simulator.workloads.registry import workload

_PAPER = "Huang et al. 2016, Densely connected convolutional networks"


@workload("densenet121", image_size=224, least_size=29, parameters=7_978_856, about=f"DenseNet-121: {_PAPER}")
def densenet121(batch: int, image_size: int) -> tuple:
    """Build DenseNet-121: 58 dense layers."""
    from simulator.workloads.networks.densenet import DenseNet

    return classification(DenseNet((6, 12, 24, 16)), batch, image_size)


@workload("densenet161", image_size=224, least_size=29, parameters=28_681_000, about=f"DenseNet-161, which grows by 48: {_PAPER}")
def densenet161(batch: int, image_size: int) -> tuple:
    """Build DenseNet-161: 78 dense layers of 48 channels each."""
    from simulator.workloads.networks.densenet import DenseNet

    return classification(DenseNet((6, 12, 36, 24), growth=48), batch, image_size)


@workload("densenet201", image_size=224, least_size=29, parameters=20_013_928, about=f"DenseNet-201: {_PAPER}")
def densenet201(batch: int, image_size: int) -> tuple:
    """Build DenseNet-201: 98 dense layers, with a path through each block for every subset of its layers."""
    from simulator.workloads.networks.densenet import DenseNet

    return classification(DenseNet((6, 12, 48, 32)), batch, image_size)
