"""Published figures of DeePa, and the scope of what is predicted."""

from dataclasses import dataclass

from simulator.shards.configuration import Configuration

MIB = 2**20
#: Section 7.1: images per step on 16 K80; section 7.3: images of each P100.
BATCH, PER_GPU = 512, 32
#: Section 7.2: the range of figure 13.
BATCHES = (256, 512, 1024, 2048)
#: Section 7.3: one node, and four.
NODE, NODES = "p100x4", "4xp100x4"


@dataclass(frozen=True)
class Network:
    """A network. `model`, `large`: the built-in models for 1,000 and for 21,841 classes. `most`: the largest batch that the paper ran."""

    name: str
    model: str
    large: str
    most: int = 1024


@dataclass(frozen=True)
class Published:
    """What the paper prints of a network. Speed-ups of DeePa are over TensorFlow and PyTorch.

    `speedup`: 16 K80; `node`, `nodes`: 4 P100, and 4 nodes of them. `owt`: OWT over image parallelism, both in DeePa. `owt_bytes`: bytes of
    image parallelism over those of OWT. `batches`: the least and the largest speed-up of the batch sweep.
    """

    speedup: float
    owt: float
    node: float
    nodes: float
    batches: tuple[float, float]
    owt_bytes: float | None = None


ALEXNET = Network("AlexNet", "alexnet", "alexnet_22k", most=2048)
VGG16 = Network("VGG-16", "vgg16", "vgg16_22k")
INCEPTION = Network("Inception-v3", "inception_v3_no_aux", "inception_v3_no_aux_22k")
PUBLISHED = {
    ALEXNET: Published(6.5, 1.4, 3.1, 8.1, (4.6, 6.5), 8.4),
    VGG16: Published(1.9, 1.2, 1.6, 3.2, (1.6, 1.9)),
    INCEPTION: Published(1.5, 1.07, 1.3, 1.8, (1.2, 1.5), 1.05),
}
#: Table 2: transfer, update and total of fc6 in seconds, by configuration.
FC6 = {Configuration(n=16): (0.0, 1.075, 1.076), Configuration(c=16): (0.1344, 0.0, 0.1357)}
#: Section 7.1.2: the configuration that was chosen for fc6.
CHOSEN_FC6 = Configuration(c=2)
#: Section 7.1: bytes of OWT over those of DeePa, the least and the largest; throughput lost without overlap.
FURTHER = (1.2, 2.7)
OVERLAP = (1.1, 1.3)
#: Appendix A.4: bytes that 21,841 classes add in each step, the least and the largest of image parallelism, and those of DeePa.
LARGE_IMAGE_BYTES, LARGE_DEEPA_BYTES = (5e9, 10e9), 40 * MIB
#: Appendix A.4: bytes of image parallelism over those of DeePa, the least and the largest.
LARGE_RATIO = (3.7, 44.5)
#: Appendix A.4: how many times longer a step takes with 21,841 classes: of the frameworks, the least and the most; of DeePa.
LARGE_FRAMEWORKS, LARGE_DEEPA = (1 / 0.8, 1 / 0.55), 1 / 0.97


@dataclass(frozen=True)
class Scope:
    """What is predicted."""

    networks: tuple[Network, ...] = (ALEXNET, VGG16, INCEPTION)
    batches: tuple[int, ...] = BATCHES
    clusters: bool = True
    large: bool = True
