"""VGG-11 for 32x32 images with 97 % of its weights pruned: the retraining workload of BPPSA (Wang et al., 2020, section 4.3)."""

from functools import partial

from simulator.workloads.digits import digits
from simulator.workloads.images import classification
from simulator.workloads.registry import workload


@workload(
    "vgg11_pruned",
    image_size=32,
    least_size=32,
    parameters=9_750_922,
    about="VGG-11 for CIFAR-10; a fixed random mask keeps 3 % of every weight: Wang et al. 2020, BPPSA, section 4.3 (pruned by magnitude)",
    data=partial(digits, 3),
)
def vgg11_pruned(batch: int, image_size: int) -> tuple:
    """Build the pruned VGG-11 for images of 10 classes."""
    from simulator.workloads.networks.vgg_pruned import PrunedVGG11

    return classification(PrunedVGG11(image_size), batch, image_size, classes=10)
