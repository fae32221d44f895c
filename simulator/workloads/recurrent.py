"""The two recurrent classifiers of "BPPSA: Scaling Back-propagation by Parallel Scan Algorithm" (Wang et al., MLSys 2020).

Both read a sequence with one recurrent layer of 20 units and classify its last state. `image_size` is the length of the sequence.
"""

from functools import cache

import numpy as np
import torch
from torch import Tensor, nn

from simulator.workloads.data import Batches, generator, stacked
from simulator.workloads.registry import workload

_HIDDEN = 20


class SequenceClassifier(nn.Module):
    """A recurrent layer (`nn.RNN` or `nn.GRU`, batch first), and a linear layer on its last state."""

    def __init__(self, recurrent: nn.RNN | nn.GRU, classes: int):
        super().__init__()
        self.recurrent = recurrent
        self.classifier = nn.Linear(recurrent.hidden_size, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Sequences [N, T, features] to logits [N, classes]."""
        _, last = self.recurrent(x)
        return self.classifier(last[-1])


def bit_streams(batch: int, image_size: int, seed: int) -> Batches:
    """The paper's 32,000 random bit streams [n, image_size, 1] of 10 classes: a bit of class c is 1 with probability 0.05 + 0.1 c."""

    def make(numbers: np.ndarray) -> tuple[tuple[Tensor, ...], Tensor]:
        bits, labels = [], []
        for number in numbers:
            draw = generator(seed, "sample", number)
            labels.append(int(draw.integers(10)))
            bits.append(draw.random((image_size, 1), np.float32) < np.float32(0.05 + 0.1 * labels[-1]))
        return (stacked(bits).float(),), torch.tensor(labels)

    return Batches(f"bit streams of {image_size:,} bits, 32,000 samples of 10 classes", 32_000, batch, seed, make)


@workload(
    "rnn_bitstream",
    image_size=1000,
    parameters=670,
    about="RNN on bit streams: Wang et al. 2020, BPPSA, section 4.1",
    data=bit_streams,
)
def rnn_bitstream(batch: int, image_size: int) -> tuple:
    """A vanilla RNN tells 10 classes of random bits apart: every bit of class c is 1 with probability 0.05 + 0.1 c."""
    labels = torch.randint(10, (batch,))
    probability = (0.05 + 0.1 * labels).unsqueeze(1)
    bits = (torch.rand(batch, image_size) < probability).to(torch.get_default_dtype())
    return SequenceClassifier(nn.RNN(1, _HIDDEN, batch_first=True), 10).train(), (bits.unsqueeze(2),), labels


#: Length and features per step of the paper's sets S, M and L.
_SETS = ((259, 38), (517, 24), (1034, 12))


def features_of(steps: int) -> int:
    """Features per step of the shortest of the paper's sets whose sequences are at least `steps` long; of L beyond."""
    return next((features for length, features in _SETS if steps <= length), _SETS[-1][1])


def audio_clips(batch: int, image_size: int, seed: int) -> Batches:
    """6,705 synthetic clips [n, image_size, features] of 11 classes, as many as the paper has.

    Every feature of a class has a mean and swings about it with an amplitude and a period of the class; a clip adds phases and noise of
    its own. Features have about mean 0 and standard deviation 1.3.
    """
    features = features_of(image_size)
    time = np.arange(image_size)[:, None] / image_size

    @cache
    def of_class(label: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        draw = generator(seed, "class", label)
        return draw.normal(0, 0.5, features), draw.uniform(0, 1, features), draw.integers(1, 9, features)

    def make(numbers: np.ndarray) -> tuple[tuple[Tensor, ...], Tensor]:
        clips, labels = [], []
        for number in numbers:
            draw = generator(seed, "sample", number)
            labels.append(int(draw.integers(11)))
            means, amplitudes, waves = of_class(labels[-1])
            swing = amplitudes * np.sin(2 * np.pi * (waves * time + draw.random(features)))
            clips.append((means + swing + draw.standard_normal((image_size, features))).astype(np.float32))
        return (stacked(clips),), torch.tensor(labels)

    return Batches(f"synthetic clips of {image_size}x{features} features, 6,705 samples of 11 classes", 6_705, batch, seed, make)


@workload(
    "gru_features",
    image_size=259,
    parameters=3_831,
    about="GRU on audio features: Wang et al. 2020, BPPSA, section 4.2 (S; --image-size 517 is M, 1034 is L)",
    data=audio_clips,
)
def gru_features(batch: int, image_size: int) -> tuple:
    """A GRU tells the 11 instruments of IRMAS apart by features of audio clips, here synthetic; of S: 38 features in 259 steps."""
    features = features_of(image_size)
    x = torch.randn(batch, image_size, features)
    return SequenceClassifier(nn.GRU(features, _HIDDEN, batch_first=True), 11).train(), (x,), torch.randint(11, (batch,))
