"""MobileNetV2 (Sandler et al., 2018)."""

from simulator.workloads.images import classification
from simulator.workloads.registry import workload


@workload(
    "mobilenet_v2",
    image_size=224,
    parameters=3_504_872,
    about="MobileNetV2: Sandler et al. 2018, Inverted residuals and linear bottlenecks",
)
def mobilenet_v2(batch: int, image_size: int) -> tuple:
    """Build MobileNetV2: depthwise convolutions and many small parameters."""
    from simulator.workloads.networks.mobilenet import MobileNetV2

    return classification(MobileNetV2(), batch, image_size)
