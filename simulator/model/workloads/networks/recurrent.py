"""The recurrent classifiers of "BPPSA: Scaling Back-propagation by Parallel Scan Algorithm" (Wang et al., MLSys 2020)."""

import torch
from torch import Tensor, nn

from simulator.model.workloads.data import features_of

#: Units of the recurrent layer in the paper.
_HIDDEN = 20


class SequenceClassifier(nn.Module):
    """A recurrent layer (`nn.RNN` or `nn.GRU`, batch first) and a linear layer on its last state."""

    def __init__(self, recurrent: nn.RNN | nn.GRU, classes: int):
        super().__init__()
        self.recurrent = recurrent
        self.classifier = nn.Linear(recurrent.hidden_size, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Sequences [N, T, features] to logits [N, classes]."""
        _, last = self.recurrent(x)
        return self.classifier(last[-1])


def bits(batch: int, length: int) -> tuple:
    """Return a vanilla RNN, random bits [batch, length, 1] and their classes: a bit of class c is 1 with probability 0.05 + 0.1 c."""
    labels = torch.randint(10, (batch,))
    probability = (0.05 + 0.1 * labels).unsqueeze(1)
    ones = (torch.rand(batch, length) < probability).to(torch.get_default_dtype())
    return SequenceClassifier(nn.RNN(1, _HIDDEN, batch_first=True), 10).train(), (ones.unsqueeze(2),), labels


def clips(batch: int, length: int) -> tuple:
    """Return a GRU, random features of audio clips [batch, length, features] and their classes, the 11 instruments of IRMAS."""
    features = features_of(length)
    x = torch.randn(batch, length, features)
    return SequenceClassifier(nn.GRU(features, _HIDDEN, batch_first=True), 11).train(), (x,), torch.randint(11, (batch,))
