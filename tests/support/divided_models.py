"""Small models whose layers divide among devices, with what a division of them must take care of."""

import torch
from torch import nn
from torch.nn import functional as F

from tests.support.nets import Net

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


def shifted(batch):
    """A number is added to what a divided layer makes."""

    def step(net, x):
        return net.head((net.second(net.first(x).relu()) + 3.0).tanh())

    first, second = nn.Linear(8, 16, bias=False), nn.Linear(16, 8, bias=False)
    return _classified(batch, Net(step, first=first, second=second, head=nn.Linear(8, CLASSES)))


def _reader(**options) -> nn.Module:
    def step(net, words):
        return net.head(net.tokens(words).tanh()).flatten(0, 1)

    return Net(step, tokens=nn.Embedding(WORDS, 8, **options), head=nn.Linear(8, WORDS, bias=False))


def _read(batch: int, module: nn.Module) -> tuple:
    """Tokens of which some occur often."""
    words = torch.randint(WORDS, (batch, LENGTH))
    words[:2] = torch.tensor([0, 0, 6, 6])
    return module, words, torch.randint(WORDS, (batch, LENGTH)), lambda out, y: F.cross_entropy(out, y.flatten())


def words(batch):
    return _read(batch, _reader())


def padded(batch):
    """A token of the second of two devices has no gradient."""
    return _read(batch, _reader(padding_idx=6))


def by_frequency(batch):
    """Gradients are divided by how often a token occurs in the batch."""
    return _read(batch, _reader(scale_grad_by_freq=True))


def dropped_rows(batch):
    """Dropout on all tokens of the batch as rows of one matrix."""

    def step(net, words):
        x = net.tokens(words).flatten(0, 1)
        y = F.dropout(net.first(x).relu(), 0.5)
        return net.head(net.norm(F.dropout(net.second(y), 0.3) + x))

    layers = {"first": nn.Linear(8, 16), "second": nn.Linear(16, 8), "norm": nn.LayerNorm(8), "head": nn.Linear(8, WORDS)}
    return _read(batch, Net(step, tokens=nn.Embedding(WORDS, 8), **layers))


def gated(batch):
    """Two products in one, with dropout on them."""

    def step(net, x):
        gate, value = net.both(x).chunk(2, -1)
        return net.head(F.dropout(gate.sigmoid() * value, 0.3))

    return _classified(batch, Net(step, both=nn.Linear(8, 24), head=nn.Linear(12, CLASSES)))


def joined(batch):
    """A layer reads what two layers of unequal width make, one beside the other."""

    def step(net, x):
        return net.head(torch.cat([net.wide(x), net.narrow(x)], 1).tanh())

    return _classified(batch, Net(step, wide=nn.Linear(8, 16), narrow=nn.Linear(8, 8), head=nn.Linear(24, CLASSES)))


def written(batch):
    """What divided layers make is written into rows of one tensor, which all devices read then."""

    def step(net, x):
        rows = x.new_zeros(len(x), 2, 16)
        rows[:, 0] = net.first(x).tanh()
        rows[:, 1] = net.first(-x).tanh()
        return net.head(rows.mean(1))

    return _classified(batch, Net(step, first=nn.Linear(8, 16), head=nn.Linear(16, CLASSES)))


def averaged(batch):
    """A buffer with an average of hidden channels, which the next step uses."""

    def step(net, x):
        hidden = net.first(x).tanh()
        x = net.second(hidden - net.average.flip(0))
        net.average.mul_(0.9).add_(hidden.detach().sum(0), alpha=0.1)
        return net.head(x)

    net = Net(step, first=nn.Linear(8, 16), second=nn.Linear(16, 16), head=nn.Linear(16, CLASSES))
    net.register_buffer("average", torch.zeros(16))
    return _classified(batch, net)


#: All of them.
NAMES = (
    "plain", "weighted", "without_class_0", "without_class_4", "squared", "summed", "smoothed", "shifted", "words", "padded",
    "by_frequency", "dropped_rows", "gated", "joined", "written", "averaged",
)  # fmt: skip
