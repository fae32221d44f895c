"""DenseNet-201 (Huang et al., 2016)."""

from simulator.workloads.images import classification
from simulator.workloads.registry import workload


@workload(
    "densenet201",
    image_size=224,
    least_size=29,
    parameters=20_013_928,
    about="DenseNet-201: Huang et al. 2016, Densely connected convolutional networks",
)
def densenet201(batch: int, image_size: int) -> tuple:
    """Build DenseNet-201: 98 dense layers, with a path through each block for every subset of its layers."""
    from simulator.workloads.networks.densenet import DenseNet

    return classification(DenseNet((6, 12, 48, 32)), batch, image_size)
