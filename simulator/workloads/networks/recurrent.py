"""The recurrent classifiers of "BPPSA: Scaling Back-propagation by Parallel Scan Algorithm" (Wang et al., MLSys 2020)."""

from torch import Tensor, nn

#: Units of the recurrent layer in the paper.
HIDDEN = 20


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
