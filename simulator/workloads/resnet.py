"""ResNets and ResNeXts for ImageNet (He et al., 2015; Xie et al., 2016)."""

from simulator.workloads.images import classification
from simulator.workloads.registry import workload

_PAPER = "He et al. 2015, Deep residual learning for image recognition"
_RESNEXT = "Xie et al. 2016, Aggregated residual transformations for deep neural networks"


@workload("resnet18", image_size=224, parameters=11_689_512, about=f"ResNet-18: {_PAPER}")
def resnet18(batch: int, image_size: int) -> tuple:
    """Build ResNet-18 from basic blocks."""
    from simulator.workloads.networks.shortcuts import BasicBlock, ResNet

    return classification(ResNet(BasicBlock, (2, 2, 2, 2)), batch, image_size)


@workload("resnet34", image_size=224, parameters=21_797_672, about=f"ResNet-34: {_PAPER}")
def resnet34(batch: int, image_size: int) -> tuple:
    """Build ResNet-34 from basic blocks."""
    from simulator.workloads.networks.shortcuts import BasicBlock, ResNet

    return classification(ResNet(BasicBlock, (3, 4, 6, 3)), batch, image_size)


@workload("resnet50", image_size=224, parameters=25_557_032, about=f"ResNet-50: {_PAPER}")
def resnet50(batch: int, image_size: int) -> tuple:
    """Build ResNet-50 from bottleneck blocks."""
    from simulator.workloads.networks.shortcuts import Bottleneck, ResNet

    return classification(ResNet(Bottleneck, (3, 4, 6, 3)), batch, image_size)


@workload("resnet101", image_size=224, parameters=44_549_160, about=f"ResNet-101: {_PAPER}")
def resnet101(batch: int, image_size: int) -> tuple:
    """Build ResNet-101 from bottleneck blocks."""
    from simulator.workloads.networks.shortcuts import Bottleneck, ResNet

    return classification(ResNet(Bottleneck, (3, 4, 23, 3)), batch, image_size)


@workload("resnet152", image_size=224, parameters=60_192_808, about=f"ResNet-152: {_PAPER}")
def resnet152(batch: int, image_size: int) -> tuple:
    """Build ResNet-152 from bottleneck blocks."""
    from simulator.workloads.networks.shortcuts import Bottleneck, ResNet

    return classification(ResNet(Bottleneck, (3, 8, 36, 3)), batch, image_size)


@workload("resnet50_v1", image_size=224, parameters=25_557_032, about=f"ResNet-50 with the strides of the paper: {_PAPER}")
def resnet50_v1(batch: int, image_size: int) -> tuple:
    """Build ResNet-50 from bottleneck blocks whose first convolution has the stride."""
    from simulator.workloads.networks.shortcuts import OriginalBottleneck, ResNet

    return classification(ResNet(OriginalBottleneck, (3, 4, 6, 3)), batch, image_size)


@workload("resnet152_v1", image_size=224, parameters=60_192_808, about=f"ResNet-152 with the strides of the paper: {_PAPER}")
def resnet152_v1(batch: int, image_size: int) -> tuple:
    """Build ResNet-152 from bottleneck blocks whose first convolution has the stride."""
    from simulator.workloads.networks.shortcuts import OriginalBottleneck, ResNet

    return classification(ResNet(OriginalBottleneck, (3, 8, 36, 3)), batch, image_size)


@workload("resnext50_32x4d", image_size=224, parameters=25_028_904, about=f"ResNeXt-50 32x4d: {_RESNEXT}")
def resnext50_32x4d(batch: int, image_size: int) -> tuple:
    """Build ResNeXt-50 from bottleneck blocks of 32 groups."""
    from simulator.workloads.networks.shortcuts import GroupedBottleneck, ResNet

    return classification(ResNet(GroupedBottleneck, (3, 4, 6, 3)), batch, image_size)


@workload("resnext101_32x4d", image_size=224, parameters=44_177_704, about=f"ResNeXt-101 32x4d: {_RESNEXT}")
def resnext101_32x4d(batch: int, image_size: int) -> tuple:
    """Build ResNeXt-101 from bottleneck blocks of 32 groups."""
    from simulator.workloads.networks.shortcuts import GroupedBottleneck, ResNet

    return classification(ResNet(GroupedBottleneck, (3, 4, 23, 3)), batch, image_size)
