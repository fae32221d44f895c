"""GoogLeNet (Szegedy et al., 2014)."""

from simulator.workloads.images import classification
from simulator.workloads.registry import workload


@workload(
    "googlenet",
    image_size=224,
    least_size=15,
    parameters=6_624_904,
    about="GoogLeNet with batch-norm, no auxiliary heads: Szegedy et al. 2014, Going deeper with convolutions",
)
def googlenet(batch: int, image_size: int) -> tuple:
    """Build GoogLeNet: nine modules of four parallel branches; 57 convolutions, most of them small."""
    from simulator.workloads.networks.googlenet import GoogLeNet

    return classification(GoogLeNet(), batch, image_size)
