"""Inception-v3 (Szegedy et al., 2016)."""

from simulator.workloads.images import IMAGENET_22K, classification
from simulator.workloads.registry import workload

_PAPER = "Szegedy et al. 2016, Rethinking the Inception architecture"


@workload("inception_v3", image_size=299, least_size=75, parameters=27_161_264, about=f"Inception-v3 with its auxiliary head: {_PAPER}")
def inception_v3(batch: int, image_size: int) -> tuple:
    """Build Inception-v3 as it is trained: the loss includes 0.4 of the auxiliary classifier's."""
    from simulator.workloads.networks.branches import Inception3, total_loss

    return *classification(Inception3(), batch, image_size), total_loss


@workload(
    "inception_v3_no_aux", image_size=299, least_size=75, parameters=23_834_568, about=f"Inception-v3 without its auxiliary head: {_PAPER}"
)
def inception_v3_no_aux(batch: int, image_size: int) -> tuple:
    """Build Inception-v3 without the auxiliary classifier, as DeePa counts it."""
    from simulator.workloads.networks.branches import Inception3

    return classification(Inception3(auxiliary=False), batch, image_size)


@workload(
    "inception_v3_no_aux_22k",
    image_size=299,
    least_size=75,
    parameters=23_834_568 + 20_841 * 2_049,
    about=f"Inception-v3 for ImageNet-22K, without its auxiliary head: {_PAPER}",
)
def inception_v3_no_aux_22k(batch: int, image_size: int) -> tuple:
    """Build Inception-v3 for 21,841 classes."""
    from simulator.workloads.networks.branches import Inception3

    return classification(Inception3(IMAGENET_22K, auxiliary=False), batch, image_size, classes=IMAGENET_22K)
