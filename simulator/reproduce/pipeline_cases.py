"""Published figures of the paper on pipelined training with stale weights, and the scope of what is computed.

The paper counts stages of forward and backward: its 4 stages are one pair of pipeline registers, on two GPUs.
"""

from dataclasses import dataclass

MIB = 2**20
#: Samples per minibatch of tables 5, 7 and 9.
BATCH = 128
IMAGE_SIZE = 32


@dataclass(frozen=True)
class Network:
    """A network with a placement: pairs of registers after the layers `placement`, counted from 1. `model`: a built-in model."""

    name: str
    model: str
    placement: tuple[int, ...]

    @property
    def pairs(self) -> int:
        """Pairs of pipeline registers, K."""
        return len(self.placement)

    @property
    def placed(self) -> str:
        """The placement as the paper writes it."""
        return f"({', '.join(map(str, self.placement))})"


@dataclass(frozen=True)
class Speedups:
    """Table 5, CIFAR-10 on two GTX 1060: pipelined training, and hybrid training, over one GPU."""

    pipelined: float
    hybrid: float


@dataclass(frozen=True)
class Memory:
    """Table 9: activations of one sample, weights, and relative increases of memory by PipeDream and by the paper's pipeline."""

    activations_bytes: float
    weights_bytes: float
    pipedream: float
    stale: float


#: Table 5: a pair of registers after the last layer of the first group of blocks.
SPEEDUPS = {
    Network("ResNet-56", "resnet56", (19,)): Speedups(1.65, 1.24),
    Network("ResNet-110", "resnet110", (37,)): Speedups(1.73, 1.26),
    Network("ResNet-224", "resnet224", (75,)): Speedups(1.81, 1.28),
    Network("ResNet-362", "resnet362", (121,)): Speedups(1.82, 1.29),
}
#: Section 6.5: half of the epochs are pipelined.
PIPELINED_EPOCHS, EPOCHS = 100, 200
#: Section 6.6: the memory of ResNet-56/110/224/362 increases by no more than this.
MOST_INCREASE = 0.58
#: Table 9, CIFAR-10 at batch 128.
ALEXNET = Network("AlexNet", "alexnet_cifar", (3,))
VGG = Network("VGG-16", "vgg16_cifar", (2,))
#: The printed placement is (2), but 75 % is what a pair after the sixth convolution takes (on ImageNet too, 77 %): both are shown.
VGG_LATER = Network("VGG-16", "vgg16_cifar", (6,))
RESNET20 = Network("ResNet-20", "resnet20", (7,))
MEMORY = {
    ALEXNET: Memory(0.88 * MIB, 88.87 * MIB, 2.14, 0.37),
    VGG: Memory(3.30 * MIB, 58.16 * MIB, 1.24, 0.75),
    VGG_LATER: Memory(3.30 * MIB, 58.16 * MIB, 1.24, 0.75),
    RESNET20: Memory(3.84 * MIB, 1.03 * MIB, 0.61, 0.60),
}
#: Section 6.3: from (3, 5, 7) on, a pair of registers more after every two layers; section 6.4: the placement of hybrid training.
STAGES_OF_RESNET20 = tuple(tuple(range(3, last + 1, 2)) for last in range(7, 20, 2))
HYBRID_PLACEMENT = (5, 12, 17)


@dataclass(frozen=True)
class Scope:
    """The scope of what is computed."""

    pairs: tuple[int, ...] = (1, 2, 3, 4)
    """Numbers of register pairs whose bounds are computed."""
    resnets: tuple[Network, ...] = tuple(SPEEDUPS)
    """Networks of tables 5 and 7."""
    memory: tuple[Network, ...] = tuple(MEMORY)
    """Networks of table 9."""
    stale: tuple[Network, ...] = tuple(Network("ResNet-20", "resnet20", placement) for placement in (*STAGES_OF_RESNET20, HYBRID_PLACEMENT))
    """Networks whose percentage of stale weights is computed, beside those above."""
    batches: tuple[int, ...] = (8, 16, 32, 64, 128, 256)
    """Samples per minibatch of the chart of memory; figure 8."""
