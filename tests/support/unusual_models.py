"""Models with ops and loops that few models have: factories of a batch size."""

from inspect import isfunction

import torch
from torch import nn
from torch.nn import functional

from tests.support.nets import Net


def _classified(batch, x, step, **layers):
    """`step(net, x)` is the forward before a linear layer of 3 classes."""
    net = Net(lambda net, x: net.head(step(net, x)), head=nn.Linear(8, 3), **layers)
    return net, x, torch.randint(3, (batch,))


def spectral_norm(batch):
    """Power iterations write into buffers by `out=`, as in the discriminator of a GAN."""
    layer = nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8))
    return _classified(batch, torch.randn(batch, 8), lambda net, x: net.layer(x).relu(), layer=layer)


def results_into_tensors(batch):
    """An op with two results, each of which is written into a tensor."""

    def step(net, x):
        with torch.no_grad():
            largest, places = x.new_empty(len(x)), torch.empty(len(x), dtype=torch.long)
            torch.max(x, 1, out=(largest, places))
        return x * largest[:, None] + places[:, None]

    return _classified(batch, torch.randn(batch, 8), step)


def distinct_words(batch):
    """Embeddings of the distinct words alone."""

    def step(net, words):
        distinct, places = torch.unique(words, return_inverse=True)
        return net.words(distinct)[places]

    return _classified(batch, torch.arange(batch) % 3, step, words=nn.Embedding(9, 8))


def runs_of_words(batch):
    """Embeddings of runs of the same word, each repeated as often as the run is long."""

    def step(net, words):
        distinct, counts = torch.unique_consecutive(words, return_counts=True)
        return net.words(distinct).repeat_interleave(counts, 0)

    return _classified(batch, torch.arange(batch) // 2, step, words=nn.Embedding(9, 8))


class Speech(nn.Module):
    """Log-probabilities of 6 letters at each of 10 times."""

    def __init__(self):
        super().__init__()
        self.letters = nn.Linear(4, 6)

    def forward(self, x):
        return self.letters(x).log_softmax(-1).transpose(0, 1)


def ctc_loss_of_lists(batch):
    """CTC loss with the lengths as numbers."""

    def loss(output, target):
        return functional.ctc_loss(output, target, [10] * output.shape[1], [3] * output.shape[1])

    return Speech(), torch.randn(batch, 10, 4), torch.randint(1, 6, (batch, 3)), loss


def ctc_loss_of_tensors(batch):
    """CTC loss with the lengths in the batch."""
    target = torch.randint(1, 6, (batch, 3)), torch.full((batch,), 10), torch.arange(batch) % 3 + 1
    return Speech(), torch.randn(batch, 10, 4), target, lambda output, target: nn.CTCLoss(zero_infinity=True)(output, *target)


def lstm_cell_in_a_loop(batch):
    def step(net, x):
        state = None
        for number in range(x.shape[1]):
            state = net.cell(x[:, number], state)
        return state[0]

    return _classified(batch, torch.randn(batch, 6, 4), step, cell=nn.LSTMCell(4, 8))


def gru_cell_in_a_loop(batch):
    def step(net, x):
        state = x.new_zeros(len(x), 8)
        for item in x.unbind(1):
            state = net.cell(item, state)
        return state

    return _classified(batch, torch.randn(batch, 6, 4), step, cell=nn.GRUCell(4, 8))


def own_cell_in_a_loop(batch):
    """A hand-written recurrent cell, whose states are written into one tensor."""

    def step(net, x):
        state = x.new_zeros(len(x), 8)
        states = x.new_zeros(len(x), x.shape[1], 8)
        for number in range(x.shape[1]):
            state = torch.tanh(net.inner(x[:, number]) + net.outer(state))
            states[:, number] = state
        return states.mean(1)

    return _classified(batch, torch.randn(batch, 6, 4), step, inner=nn.Linear(4, 8), outer=nn.Linear(8, 8))


def depthwise_filter_longer_than_the_image(batch):
    """A filter of 17 x 1 for each of two channels of 8 x 8, as in Nystroemformer: no op may take one channel alone."""
    layer = nn.Conv2d(2, 2, (17, 1), padding=(8, 0), groups=2, bias=False)
    return _classified(batch, torch.randn(batch, 2, 8, 8), lambda net, x: net.layer(net.layer(x)).sum((1, 2)), layer=layer)


def fake_quantization(batch):
    """Activations rounded to 8 bits by one scale, and weights by one per channel, as in quantization-aware training."""

    def step(net, x):
        scales, zeros = torch.full((8,), 0.02), torch.zeros(8, dtype=torch.int32)
        weight = torch.fake_quantize_per_channel_affine(net.layer.weight, scales, zeros, 0, -128, 127)
        return functional.linear(torch.fake_quantize_per_tensor_affine(x.tanh(), 0.05, 3, -128, 127), weight, net.layer.bias)

    return _classified(batch, torch.randn(batch, 8), step, layer=nn.Linear(8, 8))


#: The names of all factories above.
NAMES = tuple(name for name, factory in globals().items() if isfunction(factory) and factory.__module__ == __name__ and name[0] != "_")
