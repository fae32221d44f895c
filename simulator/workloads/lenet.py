"""LeNet-5 (LeCun et al., 1998)."""

from functools import partial

from simulator.workloads.digits import digits
from simulator.workloads.images import classification
from simulator.workloads.registry import workload


@workload(
    "lenet5",
    image_size=32,
    least_size=16,
    parameters=61_706,
    about="LeNet-5: LeCun et al. 1998, Gradient-based learning applied to document recognition",
    data=partial(digits, 1),
    batch=64,
)
def lenet5(batch: int, image_size: int) -> tuple:
    """Build LeNet-5 for gray images of 10 classes."""
    from simulator.workloads.networks.lenet import LeNet5

    return classification(LeNet5(image_size), batch, image_size, channels=1, classes=10)
