"""Small models for tests: factories of a batch size, as users write them. Each section says what its models are for.

Models of two linear layers are in `mlp.py`, those with a mistake in `broken_models.py`, those of libraries in `real_models.py`.
"""

import threading
from collections import Counter
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from simulator.model.find import find_factory
from simulator.model.workloads.language_models import LanguageModel
from simulator.model.workloads.networks import language, sequences, shortcuts
from simulator.model.workloads.networks.decoders import Experts


class Net(nn.Module):
    """Layers and parameters by name; `step(net, *inputs)` is the forward."""

    def __init__(self, step, **parts):
        super().__init__()
        self.step = step
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *inputs):
        return self.step(self, *inputs)


# ---- Small models that are hard to cut into stages: skips, ops in place at a cut, tied weights, dropout, batch-norm, several inputs.


class Residual(nn.Module):
    """Two residual blocks with batch-norm and dropout. The second one's shortcut is a convolution, to which the block is added in place."""

    def __init__(self, channels=4):
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(3 if i == 0 else channels, channels, 3, padding=1, bias=False) for i in range(6))
        self.norms = nn.ModuleList(nn.BatchNorm2d(channels) for _ in range(6))
        self.drop, self.head = nn.Dropout(0.2), nn.Linear(channels, 3)

    def forward(self, x):
        x = torch.relu_(self.norms[0](self.convs[0](x)))
        for i in (1, 3):
            y = torch.relu_(self.norms[i](self.convs[i](x)))
            y = self.norms[i + 1](self.convs[i + 1](y))
            y += x if i == 1 else self.norms[5](self.convs[5](x))
            x = torch.relu_(y)
        return self.head(self.drop(x.mean((2, 3))))


def residual(batch):
    return Residual(), torch.randn(batch, 3, 4, 4), torch.randint(3, (batch,))


def tied(batch):
    """An embedding whose weights are also those of the output, with a layer in between."""

    def step(net, x):
        return torch.tanh(net.inner(net.table(x))) @ net.table.weight.t()

    return Net(step, table=nn.Embedding(7, 4), inner=nn.Linear(4, 4)), torch.randint(7, (batch,)), torch.randint(7, (batch,))


def chain(batch):
    """A chain of eight equal layers, and a scale (a buffer that nothing changes) that the first and the last of them use."""

    def step(net, x):
        x = x * net.scale
        for layer in net.layers:
            x = torch.tanh(layer(x))
        return x * net.scale

    net = Net(step, layers=nn.ModuleList(nn.Linear(6, 6) for _ in range(8)))
    net.register_buffer("scale", torch.tensor(0.5))
    return net, torch.randn(batch, 6), torch.randint(6, (batch,))


# ---- Small models: chains of layers, and some that are not chains.


def _images(batch, *layers, size=8, classes=3):
    return nn.Sequential(*layers), torch.randn(batch, 2, size, size), torch.randint(classes, (batch,))


def every_layer(batch):
    """A layer of each kind that has a Jacobian rule, in odd sizes."""
    return _images(
        batch,
        nn.Conv2d(2, 4, 3, stride=2, padding=1, bias=False),
        nn.LeakyReLU(0.1),
        nn.Conv2d(4, 6, (3, 2), padding=(2, 1), dilation=(2, 1), groups=2),
        nn.Tanh(),
        nn.MaxPool2d(3, stride=2, padding=1),
        nn.Conv2d(6, 5, 1),
        nn.ReLU(inplace=True),
        nn.AvgPool2d(2, stride=1),
        nn.Sigmoid(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.3),
        nn.Linear(20, 7),
        nn.GELU(),
        nn.Linear(7, 3),
        size=9,
    )


def skip_connection(batch):
    """Two layers with a skip connection."""

    def step(net, x):
        x = torch.tanh(net.first(x))
        return net.last(torch.tanh(net.inner(x)) + x)

    net = Net(step, first=nn.Linear(6, 6), inner=nn.Linear(6, 6), last=nn.Linear(6, 3))
    return net, torch.randn(batch, 6), torch.randint(3, (batch,))


def normalised(batch):
    return _images(batch, nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(108, 3))


def single(batch):
    return nn.Linear(4, 3), torch.randn(batch, 4), torch.randint(3, (batch,))


def layer_normalised(batch):
    return nn.Sequential(nn.Linear(4, 5), nn.LayerNorm(5), nn.ReLU(), nn.Linear(5, 3)), torch.randn(batch, 4), torch.randint(3, (batch,))


def deep(batch):
    layers = [layer for _ in range(8) for layer in (nn.Linear(4, 4), nn.Tanh())]
    return nn.Sequential(*layers, nn.Linear(4, 3)), torch.randn(batch, 4), torch.randint(3, (batch,))


def wide(batch, width=3000):
    layers = nn.Linear(4, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 3)
    return nn.Sequential(*layers), torch.randn(batch, 4), torch.randint(3, (batch,))


wider = partial(wide, width=9000)


# ---- Models with small layer graphs: a chain, the six layers of the TurboDL paper's figure 6, and grouped convolutions.


def _eights(batch):
    return torch.randn(batch, 8), torch.randint(8, (batch,))


def three_layers(batch):
    """Three layers in a row, without biases."""
    return nn.Sequential(*(nn.Linear(8, 8, bias=False) for _ in range(3))), *_eights(batch)


def six(batch):
    """A fork, branches of two, one and one layers, and a merge."""

    def step(net, x):
        x = net.fork(x)
        return net.merge(net.long2(net.long1(x)) + net.middle(x) + net.short(x))

    return Net(step, **{name: nn.Linear(8, 8) for name in ("fork", "long1", "long2", "middle", "short", "merge")}), *_eights(batch)


def grouped(batch):
    """A convolution of two groups, a depthwise one, and another of two."""
    layers = [nn.Conv2d(4, 8, 3, groups=2), nn.Conv2d(8, 8, 1, groups=8), nn.Conv2d(8, 8, 1, groups=2), nn.Flatten(), nn.Linear(288, 10)]
    return nn.Sequential(*layers), torch.randn(batch, 4, 8, 8), torch.randint(10, (batch,))


# ---- Small models of repeated blocks, for checkpointing: attention, norms, dropout, batch-norm and ops in place.


class Attending(nn.Module):
    """A block of a transformer: attention and a perceptron, each behind a norm and before a sum."""

    def __init__(self, width=8, dropout=0.0):
        super().__init__()
        self.norm1, self.norm2, self.drop = nn.LayerNorm(width), nn.LayerNorm(width), nn.Dropout(dropout)
        self.project, self.output = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (2, -1)).transpose(1, 2) for part in self.project(self.norm1(x)).chunk(3, -1))
        x = x + self.drop(self.output(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)))
        return x + self.drop(self.down(F.gelu(self.up(self.norm2(x)))))


class Convolving(nn.Module):
    """A block with batch-norm whose activations, and whose sum, are in place."""

    def __init__(self, channels=4):
        super().__init__()
        self.conv1, self.conv2 = (nn.Conv2d(channels, channels, 3, padding=1, bias=False) for _ in range(2))
        self.bn1, self.bn2 = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)

    def forward(self, x):
        y = self.bn2(self.conv2(torch.relu_(self.bn1(self.conv1(x)))))
        y += x
        return torch.relu_(y)


class Stack(nn.Module):
    """Blocks between a first and a last layer. `run` calls a block."""

    def __init__(self, first, blocks, last, run=lambda block, x: block(x)):
        super().__init__()
        self.first, self.blocks, self.last, self.run = first, nn.ModuleList(blocks), last, run

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = self.run(block, x)
        return self.last(x).mean(1) if x.dim() == 3 else self.last(x.mean((2, 3)))


def _attending(batch, dropout=0.0, **how):
    model = Stack(nn.Linear(4, 8), [Attending(dropout=dropout) for _ in range(3)], nn.Linear(8, 5), **how)
    return model, torch.randn(batch, 6, 4), torch.randint(5, (batch,))


def attending(batch):
    return _attending(batch)


def attending_dropping(batch):
    return _attending(batch, 0.3)


def convolving(batch):
    return (
        Stack(nn.Conv2d(3, 4, 1), [Convolving() for _ in range(3)], nn.Linear(4, 5)),
        torch.randn(batch, 3, 6, 6),
        torch.randint(5, (batch,)),
    )


def checkpointing(batch):
    """A model that checkpoints its blocks itself."""
    return _attending(batch, run=lambda block, x: checkpoint(block, x, use_reentrant=False))


def reentrant(batch):
    """The same in the older form."""
    return _attending(batch, run=lambda block, x: checkpoint(block, x, use_reentrant=True))


def redrawing(batch):
    """A model that checkpoints blocks with dropout itself."""
    return _attending(batch, 0.3, run=lambda block, x: checkpoint(block, x, use_reentrant=False))


def _every_second_product(counts, context, op, *args, **kwargs):
    """The policy of torchtitan's per-op checkpointing, for products with a bias."""
    counts[context.is_recompute, op] += 1
    attention = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
    kept = op is attention or (op is torch.ops.aten.addmm.default and counts[context.is_recompute, op] % 2 == 1)
    return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE


def selecting(batch):
    """A model that checkpoints its blocks itself, but for attention and every second product by weights."""

    def contexts():
        return create_selective_checkpoint_contexts(partial(_every_second_product, Counter()))

    return _attending(batch, run=lambda block, x: checkpoint(block, x, use_reentrant=False, context_fn=contexts))


# ---- Small models with layers whose backward ops need results of their forward ops: norms, attention, recurrent layers and others.


def batch_norm(batch):
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 4 * 4, 3))
    return model, torch.randn(batch, 2, 6, 6), torch.randint(3, (batch,))


def layer_norm(batch):
    return nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 3)), torch.randn(batch, 6), torch.randint(3, (batch,))


def attention(batch, length=5):
    def step(net, x):
        query, key, value = net.project(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        return net.output(F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2).mean(1))

    return Net(step, project=nn.Linear(8, 24), output=nn.Linear(8, 3)), torch.randn(batch, length, 8), torch.randint(3, (batch,))


#: Of a length that memory-efficient attention need not pad.
attention32 = partial(attention, length=32)


def recurrent(batch):
    net = Net(lambda net, x: net.recurrent(x)[1][-1], recurrent=nn.RNN(3, 5, batch_first=True))
    return net, torch.randn(batch, 4, 3), torch.randint(5, (batch,))


def attention_dropping(batch):
    def step(net, x):
        return net.output(net.attention(x, x, x, need_weights=False)[0].mean(1))

    net = Net(step, attention=nn.MultiheadAttention(8, 2, dropout=0.2, batch_first=True), output=nn.Linear(8, 3))
    return net, torch.randn(batch, 5, 8), torch.randint(3, (batch,))


def others(batch):
    def step(net, x, words):
        x = net.group(F.logsigmoid(net.project(x)).transpose(1, 2))
        x = F.dropout(net.instance(x), 0.3).transpose(1, 2)
        return net.output(x.mean(1) + net.words(words) + net.largest(words))

    net = Net(
        step,
        project=parametrizations.weight_norm(nn.Linear(6, 8)),
        output=nn.Linear(8, 3),
        group=nn.GroupNorm(2, 8),
        instance=nn.InstanceNorm1d(8),
        words=nn.EmbeddingBag(9, 8),
        largest=nn.EmbeddingBag(9, 8, mode="max"),
    )
    return net, (torch.randn(batch, 5, 6), torch.randint(9, (batch, 4))), torch.randint(3, (batch,))


class Letters(nn.Sequential):
    def forward(self, x):
        return super().forward(x).log_softmax(-1).transpose(0, 1)


def letters(batch):
    def loss(scores, target):
        return F.ctc_loss(scores, target, [9] * batch, [3] * batch)

    return Letters(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 5)), torch.randn(batch, 9, 6), torch.randint(1, 5, (batch, 3)), loss


# ---- An LSTM classifier on sequences of three lengths.


def _lstm(batch, steps):
    def step(net, x):
        _, (state, cell) = net.recurrent(x)
        return net.output(torch.cat((state[-1], cell[-1]), 1))

    net = Net(step, recurrent=nn.LSTM(3, 5, batch_first=True), output=nn.Linear(10, 4))
    return net, torch.randn(batch, steps, 3), torch.randint(4, (batch,))


lstm8, lstm12, lstm32 = (partial(_lstm, steps=steps) for steps in (8, 12, 32))


def _recurrent_reader(batch, layer, read=lambda out, last: last[-1], initial=False, **options):
    """A recurrent layer, optionally with a trained initial state. `read` maps its output and last state to the model's output."""

    def step(net, x):
        h0 = None if net.initial is None else net.initial.expand(x.shape[0], 5).unsqueeze(0).contiguous()
        return read(*net.recurrent(x, h0))

    net = Net(step, recurrent=layer(3, 5, batch_first=True, **options), initial=nn.Parameter(torch.randn(1, 5)) if initial else None)
    return net, torch.randn(batch, 8, 3), torch.randint(5, (batch,))


rnn_with_initial_state = partial(_recurrent_reader, layer=nn.RNN, initial=True)
gru_with_initial_state = partial(_recurrent_reader, layer=nn.GRU, initial=True)
read_at_all_steps = partial(_recurrent_reader, layer=nn.RNN, read=lambda out, last: out.sum(1))
stacked = partial(_recurrent_reader, layer=nn.GRU, num_layers=2)
rnn_last_output = partial(_recurrent_reader, layer=nn.RNN, read=lambda out, last: out[:, -1])
gru_last_output = partial(_recurrent_reader, layer=nn.GRU, read=lambda out, last: out[:, -1], initial=True)
last_output_and_state = partial(_recurrent_reader, layer=nn.GRU, read=lambda out, last: out[:, -1] * last[-1])
stacked_last_output = partial(_recurrent_reader, layer=nn.RNN, num_layers=3, read=lambda out, last: out[:, -1])
first_output = partial(_recurrent_reader, layer=nn.RNN, read=lambda out, last: out[:, 0])
time_first = partial(_recurrent_reader, layer=nn.GRU, read=lambda out, last: out.transpose(0, 1)[-1])


# ---- Models whose tokens are divided otherwise than a decoder's: attention to all tokens, with masks, or written out; and a mean.

TOKENS, TOKEN_WIDTH, TOKEN_HEADS, TOKEN_CLASSES = 8, 8, 2, 6


def _written_out(query, key, value):
    scores = query @ key.transpose(2, 3)
    return scores.masked_fill(torch.ones(TOKENS, TOKENS, dtype=torch.bool).triu(1), -torch.inf).softmax(-1) @ value


def _window(query, key, value):
    near = torch.arange(TOKENS)[:, None] - torch.arange(TOKENS)[None, :]
    return F.scaled_dot_product_attention(query, key, value, attn_mask=-0.5 * near.abs().to(query.dtype))


def _last(query, key, value):
    return F.scaled_dot_product_attention(query, key, value, attn_mask=torch.ones(1, 1, 1, TOKENS, dtype=torch.bool).tril(TOKENS - 2))


def _attended(batch, attend, dropout=0.0):
    """One block of attention; `attend` maps queries, keys and values [sequences, heads, tokens, width] to as many queries."""

    def step(net, tokens):
        x = net.embedding(tokens)
        parts = (each.unflatten(2, (TOKEN_HEADS, -1)).transpose(1, 2) for each in net.project(x).chunk(3, dim=2))
        return net.head(net.dropout(x + attend(*parts).transpose(1, 2).flatten(2))).flatten(0, 1)

    layers = {
        "embedding": nn.Embedding(TOKEN_CLASSES, TOKEN_WIDTH),
        "project": nn.Linear(TOKEN_WIDTH, 3 * TOKEN_WIDTH),
        "head": nn.Linear(TOKEN_WIDTH, TOKEN_CLASSES),
    }
    tokens = torch.randint(TOKEN_CLASSES, (2, batch, TOKENS))
    net = Net(step, dropout=nn.Dropout(dropout), **layers)
    return net, tokens[0], tokens[1], lambda output, target: F.cross_entropy(output, target.flatten())


#: Every token attends to all; with a row of the mask for each query; with one row for all; in the math form.
encoder = partial(_attended, attend=F.scaled_dot_product_attention)
window = partial(_attended, attend=_window)
last = partial(_attended, attend=_last)
written_out = partial(_attended, attend=_written_out)
attention_dropout = partial(_attended, attend=F.scaled_dot_product_attention, dropout=0.5)


def mean(batch):
    """A class for each sequence, from the mean of its tokens."""

    def step(net, tokens):
        return net.head((net.embedding(tokens) * net.position(torch.arange(TOKENS))).tanh().mean(1))

    net = Net(
        step,
        embedding=nn.Embedding(TOKEN_CLASSES, TOKEN_WIDTH),
        position=nn.Embedding(TOKENS, TOKEN_WIDTH),
        head=nn.Linear(TOKEN_WIDTH, TOKEN_CLASSES),
    )
    return net, torch.randint(TOKEN_CLASSES, (batch, TOKENS)), torch.randint(TOKEN_CLASSES, (batch,))


# ---- Models of one layer whose loss is the mean of the output's squares, so that any part of the output has a loss of its own.


def _squares(batch, *shape, layers):
    return nn.Sequential(*layers), torch.randn(batch, *shape), torch.zeros(batch), lambda output, _: output.square().mean()


def square_linear(batch):
    return _squares(batch, 4, layers=[nn.Linear(4, 6)])


def square_dropout(batch):
    """Two masks in a layer's place, of one shape."""
    return _squares(batch, 4, layers=[nn.Linear(4, 6), nn.Sequential(nn.Dropout(0.5), nn.Dropout(0.3))])


def square_convolution(batch):
    return _squares(batch, 2, 5, 5, layers=[nn.Conv2d(2, 6, 3)])


def square_batch_norm(batch):
    return _squares(batch, 6, layers=[nn.BatchNorm1d(6)])


# ---- Small models whose layers divide among devices, with what a division of them must take care of.

WORDS, SENTENCE, DIVIDED_CLASSES = 12, 4, 6


def _classified(batch: int, module: nn.Module, loss=F.cross_entropy) -> tuple:
    """`module` sees [batch, 8]. The targets have all classes."""
    return module, torch.randn(batch, 8), torch.arange(batch) % DIVIDED_CLASSES, loss


def _perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, DIVIDED_CLASSES))


def plain(batch):
    return _classified(batch, _perceptron())


def weighted(batch):
    """Some classes count more than others."""
    return _classified(batch, _perceptron(), lambda out, y: F.cross_entropy(out, y, torch.arange(1, DIVIDED_CLASSES + 1, dtype=out.dtype)))


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
    return _classified(batch, Net(step, first=first, second=second, head=nn.Linear(8, DIVIDED_CLASSES)))


def _reader(**options) -> nn.Module:
    def step(net, words):
        return net.head(net.tokens(words).tanh()).flatten(0, 1)

    return Net(step, tokens=nn.Embedding(WORDS, 8, **options), head=nn.Linear(8, WORDS, bias=False))


def _read(batch: int, module: nn.Module) -> tuple:
    """Tokens of which some occur often."""
    words = torch.randint(WORDS, (batch, SENTENCE))
    words[:2] = torch.tensor([0, 0, 6, 6])
    return module, words, torch.randint(WORDS, (batch, SENTENCE)), lambda out, y: F.cross_entropy(out, y.flatten())


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

    return _classified(batch, Net(step, both=nn.Linear(8, 24), head=nn.Linear(12, DIVIDED_CLASSES)))


def joined(batch):
    """A layer reads what two layers of unequal width make, one beside the other."""

    def step(net, x):
        return net.head(torch.cat([net.wide(x), net.narrow(x)], 1).tanh())

    return _classified(batch, Net(step, wide=nn.Linear(8, 16), narrow=nn.Linear(8, 8), head=nn.Linear(24, DIVIDED_CLASSES)))


def written(batch):
    """What divided layers make is written into rows of one tensor, which all devices read then."""

    def step(net, x):
        rows = x.new_zeros(len(x), 2, 16)
        rows[:, 0] = net.first(x).tanh()
        rows[:, 1] = net.first(-x).tanh()
        return net.head(rows.mean(1))

    return _classified(batch, Net(step, first=nn.Linear(8, 16), head=nn.Linear(16, DIVIDED_CLASSES)))


def averaged(batch):
    """A buffer with an average of hidden channels, which the next step uses."""

    def step(net, x):
        hidden = net.first(x).tanh()
        x = net.second(hidden - net.average.flip(0))
        net.average.mul_(0.9).add_(hidden.detach().sum(0), alpha=0.1)
        return net.head(x)

    net = Net(step, first=nn.Linear(8, 16), second=nn.Linear(16, 16), head=nn.Linear(16, DIVIDED_CLASSES))
    net.register_buffer("average", torch.zeros(16))
    return _classified(batch, net)


#: The models of this section.
DIVIDED = (
    "plain", "weighted", "without_class_0", "without_class_4", "squared", "summed", "smoothed", "shifted", "words", "padded",
    "by_frequency", "dropped_rows", "gated", "joined", "written", "averaged",
)  # fmt: skip


# ---- Models with ops and views that no rule divides among devices: each is one that a division of its layers once failed on.

UNDIVIDED_LENGTH, UNDIVIDED_WIDTH, UNDIVIDED_CLASSES = 6, 8, 10


def _undivided(step, batch, *more, head=UNDIVIDED_WIDTH, **parts):
    """The net, with a head of so many features, on [batch, UNDIVIDED_LENGTH, UNDIVIDED_WIDTH] and other inputs."""
    inputs = torch.randn(batch, UNDIVIDED_LENGTH, UNDIVIDED_WIDTH), *more
    return Net(step, **parts, head=nn.Linear(head, UNDIVIDED_CLASSES)), inputs, torch.randint(0, UNDIVIDED_CLASSES, (batch,))


def sequence_first(batch):
    """The mean goes over the first dimension, and the batch is the second."""
    return _undivided(lambda net, x: net.head(net.body(x.transpose(0, 1)).mean(0)), batch, body=nn.Linear(UNDIVIDED_WIDTH, UNDIVIDED_WIDTH))


def one_dimensional(batch):
    """Windows along one axis."""
    convolution = nn.Conv1d(UNDIVIDED_WIDTH, UNDIVIDED_WIDTH, 3, padding=1)
    return _undivided(lambda net, x: net.head(net.convolution(x.transpose(1, 2)).amax(-1)), batch, convolution=convolution)


def empty_cache(batch):
    """Keys are appended to an empty cache, which has one dimension at first."""

    def step(net, x):
        keys = torch.cat([x.new_empty(0), net.key(x)], dim=1)
        keys = torch.cat([keys[:, :0], keys], dim=1)
        return net.head((keys @ x.transpose(1, 2)).softmax(-1).amax(2) @ x.new_ones(UNDIVIDED_LENGTH, UNDIVIDED_WIDTH))

    return _undivided(step, batch, key=nn.Linear(UNDIVIDED_WIDTH, UNDIVIDED_WIDTH))


def viewed_parameters(batch):
    """The gradients of parameters are views (squeeze, view_as_real) of what backward computes."""

    def step(net, x):
        x = (x.unsqueeze(1) + net.position.unsqueeze(0)).squeeze(1)
        turned = torch.view_as_complex(x.unflatten(-1, (-1, 2))) * torch.view_as_complex(net.turn).conj()
        return net.head(torch.view_as_real(turned).flatten(-2).flatten(0, -3).amax(1))

    position, turn = nn.Parameter(torch.randn(UNDIVIDED_LENGTH, UNDIVIDED_WIDTH)), nn.Parameter(torch.randn(UNDIVIDED_WIDTH // 2, 2))
    return _undivided(step, batch, position=position, turn=turn)


def spectral(batch):
    """The backward of irfft doubles a part of a gradient in place, and that of a product reads a conjugate."""

    def step(net, x):
        return net.head(torch.fft.irfft2(torch.fft.rfft2(x) * torch.view_as_complex(net.weight)).flatten(1))

    return _undivided(
        step,
        batch,
        weight=nn.Parameter(torch.randn(UNDIVIDED_LENGTH, UNDIVIDED_WIDTH // 2 + 1, 2)),
        head=UNDIVIDED_LENGTH * UNDIVIDED_WIDTH,
    )


def masked(batch):
    """Inputs without a batch dimension: a mask, a number, and a bias with as many elements as a batch may have."""

    def step(net, x, mask, scale, bias):
        weights = (net.score(x) * scale).masked_fill(mask, -1e9).softmax(-1)
        return net.head((weights @ x + bias).mean(1))

    mask = torch.ones(UNDIVIDED_LENGTH, UNDIVIDED_LENGTH, dtype=torch.bool).triu(1)
    return _undivided(
        step, batch, mask, torch.tensor(0.5), torch.randn(UNDIVIDED_WIDTH), score=nn.Linear(UNDIVIDED_WIDTH, UNDIVIDED_LENGTH)
    )


def long_positions(batch):
    """A table of learned positions for longer sequences: its last rows have gradients of zero, and decay."""
    positions = nn.Parameter(torch.randn(3 * UNDIVIDED_LENGTH, UNDIVIDED_WIDTH))
    return _undivided(lambda net, x: net.head((x + net.positions[: x.shape[1]]).mean(1)), batch, positions=positions)


# ---- Small models whose loss does not count every target: all of the first half of the batch are skipped, and a third of the others.

SKIPPED_CLASSES = 3


def _skipping(batch: int, loss, module: nn.Module | None = None) -> tuple:
    module = module or nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, SKIPPED_CLASSES))
    targets = torch.arange(batch) % SKIPPED_CLASSES
    targets[: batch // 2] = 0
    return module, torch.randn(batch, 6), targets, loss


def _counted(outputs, targets):
    return (targets != 0).to(outputs.dtype)


def _class_weights(outputs):
    return torch.arange(SKIPPED_CLASSES, dtype=outputs.dtype)


def skipped(batch):
    return _skipping(batch, lambda outputs, targets: F.cross_entropy(outputs, targets, ignore_index=0))


def skipped_unequal(batch):
    """Here the first quarter alone counts only one."""
    module, inputs, targets, loss = skipped(batch)
    targets[: batch // 2] = torch.arange(batch // 2) % SKIPPED_CLASSES
    targets[: batch // 4] = torch.arange(batch // 4) == 0
    return module, inputs, targets, loss


def skipped_weighted(batch):
    """Of which the first class has no weight, and another is skipped."""
    return _skipping(batch, lambda outputs, targets: F.cross_entropy(outputs, targets, _class_weights(outputs), ignore_index=0))


def skipped_smoothed(batch):
    return _skipping(batch, lambda outputs, targets: F.cross_entropy(outputs, targets, ignore_index=0, label_smoothing=0.1))


def skipped_smoothed_weighted(batch):
    return _skipping(
        batch, lambda outputs, targets: F.cross_entropy(outputs, targets, _class_weights(outputs), ignore_index=0, label_smoothing=0.1)
    )


def skipped_masked(batch):
    def loss(outputs, targets):
        mask = _counted(outputs, targets)
        return (F.cross_entropy(outputs, targets, reduction="none") * mask).sum() / mask.sum().clamp(min=1)

    return _skipping(batch, loss)


def skipped_divided(batch):
    """As transformers divides a sum."""
    return _skipping(batch, lambda o, targets: F.cross_entropy(o, targets, ignore_index=0, reduction="sum") / (targets != 0).sum())


def skipped_averaged(batch):
    def loss(outputs, targets):
        mask = _counted(outputs, targets)
        return (F.cross_entropy(outputs, targets, reduction="none") * mask).mean() / mask.mean() + 0.1 * outputs.square().mean()

    return _skipping(batch, loss)


def skipped_tokens(batch):
    """Of a decoder, the targets of the first half and those of some tokens are skipped."""
    module, words, targets, _ = find_factory("lm:form=llama,layers=2,d_model=16,heads=4,ffn=24,vocab=32", 8).call(batch)
    targets[: batch // 2], targets[:, ::3] = -100, -100
    return module, words, targets, lambda outputs, targets: F.cross_entropy(outputs.flatten(0, 1), targets.flatten())


def skipped_dropped(batch):
    """With dropout and a batch-norm, which see each part alone."""
    layers = nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Dropout(0.5), nn.Linear(5, SKIPPED_CLASSES)
    return _skipping(batch, lambda outputs, targets: F.cross_entropy(outputs, targets, ignore_index=0), nn.Sequential(*layers))


def skipped_normed(batch):
    """A number of targets that does not add up."""
    return _skipping(batch, lambda o, targets: F.cross_entropy(o, targets, reduction="sum") / _counted(o, targets).norm())


def skipped_squared(batch):
    return _skipping(batch, lambda outputs, targets: F.cross_entropy(outputs, targets, ignore_index=0).square())


#: Those that have one mean over the batch.
SKIPPED = (
    "skipped", "skipped_weighted", "skipped_smoothed", "skipped_smoothed_weighted", "skipped_masked", "skipped_divided",
    "skipped_averaged",
)  # fmt: skip


# ---- Models that index tensors by tensors of integers: every shape is known before any element is.


def _indexed(step, batch):
    """A table with 5 rows of 4 numbers and a linear layer of 3 classes; `step(module, ids)` is the forward before that layer."""
    parts = {"table": nn.Parameter(torch.randn(5, 4)), "head": nn.Linear(4, 3), "bag": nn.EmbeddingBag(11, 4)}
    net = Net(lambda net, ids: net.head(step(net, ids)), **parts)
    net.register_buffer("pairs", torch.tensor([[4, 0, 1], [0, 4, 3]]))
    return net, torch.randint(5, (batch, 3)), torch.randint(3, (batch,))


def rows_by_a_buffer(batch):
    """Relative positions, as in Swin transformers: some rows are read several times, and some not at all."""
    return _indexed(lambda module, ids: module.table[module.pairs.view(-1)].view(2, 3, 4).sum((0, 1)) + module.table[ids].mean(1), batch)


def elements_by_two_indices(batch):
    """The last token that counts, as in classifiers of sequences: the ids below 3 count."""

    def step(module, ids):
        last = (ids < 3).int().argmax(1)
        return module.table[ids][torch.arange(len(ids)), last] * module.table[ids, ids % 4].sum(1, keepdim=True)

    return _indexed(step, batch)


def columns_are_replaced(batch):
    def step(module, ids):
        x = module.table[ids].sum(1)
        return x.index_put((torch.arange(len(ids)), ids[:, 0] % 4), module.table[0, 0]).clone().index_add_(0, ids[:, 1] * 0, x)

    return _indexed(step, batch)


def gathered_and_scattered(batch):
    def step(module, ids):
        x = F.embedding(ids, module.table)
        best = x.topk(2, dim=1).indices
        chosen = x.gather(1, best).sum(1) + torch.take_along_dim(x, best[:, :1], 1)[:, 0] + x.index_select(1, module.pairs[0, :1] - 3)[:, 0]
        return torch.zeros_like(chosen).scatter_add(1, ids % 4, chosen[:, :3]) + chosen.scatter(1, ids[:, :1] % 4, 0.5)

    return _indexed(step, batch)


def bags_of_two_dimensions(batch):
    return _indexed(lambda module, ids: module.bag(ids + 6), batch)


def bags_with_offsets(batch):
    def step(module, ids):
        return module.bag((ids + 6).view(-1), torch.arange(len(ids)) * 3)

    return _indexed(step, batch)


def largest_of_bags(batch):
    model, *data = bags_of_two_dimensions(batch)
    model.bag.mode = "max"
    return model, *data


def weighted_bags(batch):
    def step(module, ids):
        return module.bag(ids + 6, per_sample_weights=module.table[ids, 0])

    model, *data = _indexed(step, batch)
    model.bag.mode = "sum"
    return model, *data


def masked_rows(batch):
    """A mask of the batch selects the places that count, as in a masked language model."""

    def step(module, ids):
        counts = torch.tensor([[True, False, True]]).expand(len(ids), 3) & (ids >= 0)
        rows = module.table[ids]
        first, second = counts.nonzero().unbind(1)
        x = torch.zeros_like(rows)
        x[counts] = rows[counts] * 2
        x = x + torch.zeros_like(rows).index_put((first, second), rows.masked_select(counts[..., None]).view(-1, 4))
        return x.sum(1) + module.table.repeat_interleave(torch.tensor([1, 0, 2, 1, 0]), 0).sum(0)

    return _indexed(step, batch)


def branches_by_its_batch(batch):
    def step(module, ids):
        rows = module.table[ids % 5]
        if (ids < 5).all():
            rows = rows * 2
        return rows[:, : int((ids[:1] >= 0).sum())].sum(1)

    return _indexed(step, batch)


def tokens_by_expert(batch):
    """Each token goes to two of four experts: a product of groups of rows, which end where their experts say."""
    model = LanguageModel("llama", 1, 8, 1, 1, 8, 5, True, "rotary", False, "rms", experts=4, active=2, expert_ffn=8)

    def step(module, ids):
        rows = module.table[ids]
        return module.experts(torch.cat([rows, rows], -1)).mean(1)[:, :4]

    net, *data = _indexed(step, batch)
    net.experts = Experts(model)
    return net, *data


#: The models of this section.
INDEXING = (
    "rows_by_a_buffer", "elements_by_two_indices", "columns_are_replaced", "gathered_and_scattered", "bags_of_two_dimensions",
    "bags_with_offsets", "largest_of_bags", "weighted_bags", "masked_rows", "branches_by_its_batch", "tokens_by_expert",
    "padded_rows",
)  # fmt: skip


# ---- Models that do unusual things in a step, and that a plan trains as plain PyTorch does.


def _two_layers(step, batch):
    return Net(step, first=nn.Linear(4, 4), second=nn.Linear(4, 3)), torch.randn(batch, 4), torch.randint(3, (batch,))


def draws_noise(batch):
    """Noise as in a variational autoencoder, by ops with and without tensor arguments, in place and not, beside dropout."""

    def step(module, x):
        h = module.first(x)
        h = F.dropout(h + torch.randn_like(h) * torch.rand(4, dtype=h.dtype), 0.3)
        noise = torch.empty_like(h).uniform_(0.5, 1.5)
        return module.second(h * noise + torch.bernoulli(torch.full_like(h, 0.4)) + torch.randperm(4))

    return _two_layers(step, batch)


def hook_on_an_activation(batch):
    def step(module, x):
        h = module.first(x)
        h.register_hook(lambda gradient: gradient * 3)
        return module.second(h.relu())

    return _two_layers(step, batch)


def hook_on_a_module(batch):
    model, *data = _two_layers(lambda module, x: module.second(module.first(x)), batch)
    model.second.register_full_backward_hook(lambda module, gradients, _: (gradients[0] * module.weight.abs().mean(),))
    return model, *data


def complex_activations(batch):
    def step(module, x):
        return module.second(torch.fft.irfft(torch.fft.rfft(module.first(x)) * (0.5 + 1j), n=4))

    return _two_layers(step, batch)


def literal_changed_in_place(batch):
    def step(module, x):
        scale = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=x.dtype)
        scale += 1
        return module.second(module.first(x) * scale)

    return _two_layers(step, batch)


def gradient_penalty(batch):
    def step(module, x):
        x = x.clone().requires_grad_()
        y = module.second(module.first(x).tanh())
        (slope,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        return y + slope.pow(2).sum()

    return _two_layers(step, batch)


def table_of_the_first_step(batch):
    def step(module, x):
        if not hasattr(module, "table"):
            module.table = torch.arange(4.0, dtype=x.dtype)
        return module.second(module.first(x) + module.table)

    return _two_layers(step, batch)


def parameter_in_a_list(batch):
    model, *data = _two_layers(lambda module, x: module.second(module.first(x) * module.again[0]), batch)
    model.again = [model.first.bias]
    return model, *data


def cannot_be_copied(batch):
    """A lock cannot be copied, and a copy of the module would still use this module's layers."""
    model, *data = _two_layers(None, batch)
    model.lock = threading.Lock()
    model.step = lambda _, x: model.second(model.first(x))
    return model, *data


def dropout_between_recurrent_layers(batch):
    model, _, target = _two_layers(lambda module, x: module.second(module.recurrent(x)[0][:, -1]), batch)
    model.recurrent = nn.LSTM(5, 4, num_layers=3, dropout=0.3, batch_first=True, bidirectional=True)
    model.second = nn.Linear(8, 3)
    return model, torch.randn(batch, 6, 5), target


def checkpointed(batch, use_reentrant=False):
    def step(module, x):
        h = checkpoint(lambda x: module.first(x).tanh().sin(), module.first(x), use_reentrant=use_reentrant)
        return module.second(h)

    return _two_layers(step, batch)


def checkpointed_by_reentrant_backward(batch):
    return checkpointed(batch, use_reentrant=True)


def one_mapping(batch):
    """The forward takes one mapping, with a list of tensors in it."""
    model, x, target = _two_layers(lambda module, items: module.second(module.first(items["x"]) + sum(items["others"])), batch)
    return model, {"x": x, "others": [torch.randn(batch, 4), torch.randn(batch, 4)]}, target


@dataclass
class Batch:
    """A batch whose parts have names."""

    x: torch.Tensor
    labels: torch.Tensor
    scale: float = 2.0


@dataclass
class Output:
    """What models of language return."""

    logits: torch.Tensor
    loss: torch.Tensor | None = None


def labels_among_the_inputs(batch):
    def step(module, items):
        logits = module.second(module.first(items.x) * items.scale)
        return Output(logits, F.cross_entropy(logits, items.labels))

    model, x, labels = _two_layers(step, batch)
    return model, Batch(x, labels)


def logits_among_others(batch):
    return _two_layers(lambda module, x: Output(module.second(module.first(x))), batch)


def places_have_labels(batch):
    model, x, _ = _two_layers(lambda module, x: Output(module.second(module.first(x)[:, None].expand(-1, 5, -1))), batch)
    return model, x, torch.randint(3, (batch, 5))


def large_table_of_the_first_step(batch):
    """A table beyond the parameters and buffers, and a buffer that the first step replaces by a larger one."""

    def step(module, x):
        if len(module.places) < 4:
            module.register_buffer("places", torch.arange(4.0, dtype=x.dtype), persistent=False)
        return module.second(module.first(x) + module.places + module.table[:, :4].mean(0))

    model, *data = _two_layers(step, batch)
    model.register_buffer("places", torch.zeros(0))
    model.table = torch.linspace(0, 1, 80_000).view(-1, 8).double()
    return model, *data


def converts_a_layer(batch):
    def step(module, x):
        module.first = module.first.to(x.dtype)
        return module.second(module.first(x))

    return _two_layers(step, batch)


#: The models of this section.
STATEFUL = (
    "draws_noise", "hook_on_an_activation", "hook_on_a_module", "complex_activations", "literal_changed_in_place",
    "gradient_penalty", "table_of_the_first_step", "parameter_in_a_list", "cannot_be_copied", "dropout_between_recurrent_layers",
    "checkpointed", "checkpointed_by_reentrant_backward", "one_mapping", "labels_among_the_inputs", "logits_among_others",
    "places_have_labels", "large_table_of_the_first_step", "converts_a_layer",
)  # fmt: skip


# ---- Models with ops and loops that few models have: factories of a batch size.


def _unusual(batch, x, step, **layers):
    """`step(net, x)` is the forward before a linear layer of 3 classes."""
    net = Net(lambda net, x: net.head(step(net, x)), head=nn.Linear(8, 3), **layers)
    return net, x, torch.randint(3, (batch,))


def spectral_norm(batch):
    """Power iterations write into buffers by `out=`, as in the discriminator of a GAN."""
    layer = nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8))
    return _unusual(batch, torch.randn(batch, 8), lambda net, x: net.layer(x).relu(), layer=layer)


def results_into_tensors(batch):
    """An op with two results, each of which is written into a tensor."""

    def step(net, x):
        with torch.no_grad():
            largest, places = x.new_empty(len(x)), torch.empty(len(x), dtype=torch.long)
            torch.max(x, 1, out=(largest, places))
        return x * largest[:, None] + places[:, None]

    return _unusual(batch, torch.randn(batch, 8), step)


def distinct_words(batch):
    """Embeddings of the distinct words alone."""

    def step(net, words):
        distinct, places = torch.unique(words, return_inverse=True)
        return net.words(distinct)[places]

    return _unusual(batch, torch.arange(batch) % 3, step, words=nn.Embedding(9, 8))


def runs_of_words(batch):
    """Embeddings of runs of the same word, each repeated as often as the run is long."""

    def step(net, words):
        distinct, counts = torch.unique_consecutive(words, return_counts=True)
        return net.words(distinct).repeat_interleave(counts, 0)

    return _unusual(batch, torch.arange(batch) // 2, step, words=nn.Embedding(9, 8))


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
        return F.ctc_loss(output, target, [10] * output.shape[1], [3] * output.shape[1])

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

    return _unusual(batch, torch.randn(batch, 6, 4), step, cell=nn.LSTMCell(4, 8))


def gru_cell_in_a_loop(batch):
    def step(net, x):
        state = x.new_zeros(len(x), 8)
        for item in x.unbind(1):
            state = net.cell(item, state)
        return state

    return _unusual(batch, torch.randn(batch, 6, 4), step, cell=nn.GRUCell(4, 8))


def own_cell_in_a_loop(batch):
    """A hand-written recurrent cell, whose states are written into one tensor."""

    def step(net, x):
        state = x.new_zeros(len(x), 8)
        states = x.new_zeros(len(x), x.shape[1], 8)
        for number in range(x.shape[1]):
            state = torch.tanh(net.inner(x[:, number]) + net.outer(state))
            states[:, number] = state
        return states.mean(1)

    return _unusual(batch, torch.randn(batch, 6, 4), step, inner=nn.Linear(4, 8), outer=nn.Linear(8, 8))


def depthwise_filter_longer_than_the_image(batch):
    """A filter of 17 x 1 for each of two channels of 8 x 8, as in Nystroemformer: no op may take one channel alone."""
    layer = nn.Conv2d(2, 2, (17, 1), padding=(8, 0), groups=2, bias=False)
    return _unusual(batch, torch.randn(batch, 2, 8, 8), lambda net, x: net.layer(net.layer(x)).sum((1, 2)), layer=layer)


def learned_channels(batch):
    """Parameters after the channels of a convolution, which a part of the first channels does not need."""

    def step(net, x):
        return net.second(torch.cat([net.first(x), net.channels.expand(len(x), -1, -1, -1)], 1)).mean((2, 3))

    layers = {"first": nn.Conv2d(3, 4, 3, padding=1), "second": nn.Conv2d(8, 8, 3)}
    return _unusual(batch, torch.randn(batch, 3, 8, 8), step, channels=nn.Parameter(torch.randn(1, 4, 8, 8)), **layers)


def fake_quantization(batch):
    """Activations rounded to 8 bits by one scale, and weights by one per channel, as in quantization-aware training."""

    def step(net, x):
        scales, zeros = torch.full((8,), 0.02), torch.zeros(8, dtype=torch.int32)
        weight = torch.fake_quantize_per_channel_affine(net.layer.weight, scales, zeros, 0, -128, 127)
        return F.linear(torch.fake_quantize_per_tensor_affine(x.tanh(), 0.05, 3, -128, 127), weight, net.layer.bias)

    return _unusual(batch, torch.randn(batch, 8), step, layer=nn.Linear(8, 8))


def randomized_relu(batch):
    """Negative numbers are multiplied by random slopes, in place."""
    return _unusual(batch, torch.randn(batch, 8), lambda net, x: F.rrelu(net.layer(x), training=True, inplace=True), layer=nn.Linear(8, 8))


def padded_rows(batch):
    """Two sequences of unequal length, one after another: they are padded to the length of the second, scaled, and joined again."""

    def step(net, x):
        ends = torch.tensor([0, 1, len(x)])
        padded = torch.ops.aten._jagged_to_padded_dense_forward(x, [ends], [len(x)], 0.0)
        return net.layer(torch.ops.aten._padded_dense_to_jagged_forward(padded * 2, [ends], len(x)))

    return _unusual(batch, torch.randn(batch, 8), step, layer=nn.Linear(8, 8))


#: The models of this section.
UNUSUAL = (
    "spectral_norm", "results_into_tensors", "distinct_words", "runs_of_words", "ctc_loss_of_lists", "ctc_loss_of_tensors",
    "lstm_cell_in_a_loop", "gru_cell_in_a_loop", "own_cell_in_a_loop", "depthwise_filter_longer_than_the_image",
    "learned_channels", "fake_quantization", "randomized_relu", "padded_rows",
)  # fmt: skip


# ---- The classes of the built-in networks in sizes that train in milliseconds.


def bert(batch):
    return language.masked_tokens(batch, 8, 16, 2, 1)


def bert_qa(batch):
    return language.answers(batch, 8, 16, 2, 1)


def gpt2(batch):
    return language.next_tokens(batch, 8, 16, 2, 1)


def transformer(batch):
    words, length = 50, 6
    source, target, following = (torch.randint(words, (batch, length)) for _ in range(3))
    return sequences.Transformer(words, length, 16, 2, 32, 1).train(), (source, target), following, sequences.smoothed_loss


def _of_images(network, batch):
    return network.train(), (torch.randn(batch, 3, 32, 32),), _classes(batch)


def _classes(batch):
    return torch.randint(5, (batch,))


def resnet(batch):
    return _of_images(shortcuts.ResNet((1, 1, 1, 1), bottleneck=False, classes=5), batch)


def densenet(batch):
    return _of_images(shortcuts.DenseNet((1, 1, 1, 1), growth=4, classes=5), batch)
