"""Small models whose layers divide among devices, with what a division of them must take care of."""

import torch
from torch import nn
from torch.nn import functional as F

WORDS, LENGTH, CLASSES = 12, 4, 6


def _classified(batch: int, module: nn.Module, loss=F.cross_entropy) -> tuple:
    """`module` sees [batch, 8]. The targets have all classes."""
    return module, torch.randn(batch, 8), torch.arange(batch) % CLASSES, loss


def _perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, CLASSES))


def plain(batch):
    return _classified(batch, _perceptron())


def weighted(batch):
    """Some classes count more than others."""
    return _classified(batch, _perceptron(), lambda out, y: F.cross_entropy(out, y, torch.arange(1, CLASSES + 1, dtype=out.dtype)))


def without_class_0(batch):
    return _classified(batch, _perceptron(), lambda out, y: F.cross_entropy(out, y, ignore_index=0))


def without_class_4(batch):
    return _classified(batch, _perceptron(), lambda out, y: F.cross_entropy(out, y, ignore_index=4))


def squared(batch):
    """A loss of each sample's."""
    return _classified(batch, _perceptron(), lambda out, y: F.cross_entropy(out, y, reduction="none").square().mean())


def summed(batch):
    return _classified(batch, _perceptron(), lambda out, y: F.cross_entropy(out, y, reduction="sum"))


def smoothed(batch):
    return _classified(batch, _perceptron(), lambda out, y: F.cross_entropy(out, y, label_smoothing=0.1))


class _Shifted(nn.Module):
    """A number is added to what a divided layer makes."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.head = nn.Linear(8, 16, bias=False), nn.Linear(16, 8, bias=False), nn.Linear(8, CLASSES)

    def forward(self, x):
        return self.head((self.second(self.first(x).relu()) + 3.0).tanh())


def shifted(batch):
    return _classified(batch, _Shifted())


class _Reader(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.tokens, self.head = nn.Embedding(WORDS, 8, **options), nn.Linear(8, WORDS, bias=False)

    def forward(self, words):
        return self.head(self.tokens(words).tanh()).flatten(0, 1)


def _read(batch: int, module: nn.Module) -> tuple:
    """Tokens of which some occur often."""
    words = torch.randint(WORDS, (batch, LENGTH))
    words[:2] = torch.tensor([0, 0, 6, 6])
    return module, words, torch.randint(WORDS, (batch, LENGTH)), lambda out, y: F.cross_entropy(out, y.flatten())


def words(batch):
    return _read(batch, _Reader())


def padded(batch):
    """A token of the second of two devices has no gradient."""
    return _read(batch, _Reader(padding_idx=6))


def by_frequency(batch):
    """Gradients are divided by how often a token occurs in the batch."""
    return _read(batch, _Reader(scale_grad_by_freq=True))


class _DroppedRows(nn.Module):
    """Dropout on all tokens of the batch as rows of one matrix."""

    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(WORDS, 8)
        self.first, self.second, self.norm, self.head = nn.Linear(8, 16), nn.Linear(16, 8), nn.LayerNorm(8), nn.Linear(8, WORDS)

    def forward(self, words):
        x = self.tokens(words).flatten(0, 1)
        y = F.dropout(self.first(x).relu(), 0.5)
        return self.head(self.norm(F.dropout(self.second(y), 0.3) + x))


def dropped_rows(batch):
    return _read(batch, _DroppedRows())


class _Gated(nn.Module):
    """Two products in one, with dropout on them."""

    def __init__(self):
        super().__init__()
        self.both, self.head = nn.Linear(8, 24), nn.Linear(12, CLASSES)

    def forward(self, x):
        gate, value = self.both(x).chunk(2, -1)
        return self.head(F.dropout(gate.sigmoid() * value, 0.3))


def gated(batch):
    return _classified(batch, _Gated())


class _Joined(nn.Module):
    """A layer reads what two layers of unequal width make, one beside the other."""

    def __init__(self):
        super().__init__()
        self.wide, self.narrow, self.head = nn.Linear(8, 16), nn.Linear(8, 8), nn.Linear(24, CLASSES)

    def forward(self, x):
        return self.head(torch.cat([self.wide(x), self.narrow(x)], 1).tanh())


def joined(batch):
    return _classified(batch, _Joined())


class _Written(nn.Module):
    """What divided layers make is written into rows of one tensor, which all devices read then."""

    def __init__(self):
        super().__init__()
        self.first, self.head = nn.Linear(8, 16), nn.Linear(16, CLASSES)

    def forward(self, x):
        rows = x.new_zeros(len(x), 2, 16)
        rows[:, 0] = self.first(x).tanh()
        rows[:, 1] = self.first(-x).tanh()
        return self.head(rows.mean(1))


def written(batch):
    return _classified(batch, _Written())


class _Averaged(nn.Module):
    """A buffer with an average of hidden channels, which the next step uses."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.head = nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, CLASSES)
        self.register_buffer("average", torch.zeros(16))

    def forward(self, x):
        hidden = self.first(x).tanh()
        x = self.second(hidden - self.average.flip(0))
        self.average.mul_(0.9).add_(hidden.detach().sum(0), alpha=0.1)
        return self.head(x)


def averaged(batch):
    return _classified(batch, _Averaged())


#: All of them.
NAMES = (
    "plain", "weighted", "without_class_0", "without_class_4", "squared", "summed", "smoothed", "shifted", "words", "padded",
    "by_frequency", "dropped_rows", "gated", "joined", "written", "averaged",
)  # fmt: skip
