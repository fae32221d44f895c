"""The base Transformer (Vaswani et al., 2017): encoder and decoder that share one embedding for source, target and output.

Shapes: N sentences, S source tokens, T target tokens, D model width, H heads, V tokens in the vocabulary.
"""

import math
from collections import OrderedDict

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from simulator.model.workloads.data import features_of

_VOCABULARY = 37_000
_DROPOUT, _SMOOTHING = 0.1, 0.1


def split_heads(x: Tensor, heads: int) -> Tensor:
    """[N, T, D] to [N, H, T, D/H]."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


class Attention(nn.Module):
    """Multi-head attention of the Transformer, whose four projections are matrices without bias, as in the paper."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, width, bias=False)
        self.value = nn.Linear(width, width, bias=False)
        self.output = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor, memory: Tensor, causal: bool = False) -> Tensor:
        """Queries from x [N, T, D], keys and values from memory [N, S, D], to [N, T, D]."""
        query, key, value = (split_heads(projected, self.heads) for projected in (self.query(x), self.key(memory), self.value(memory)))
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=causal)
        return self.output(mixed.transpose(1, 2).flatten(2))


def _feed_forward(width: int, hidden: int) -> nn.Sequential:
    """Two linear layers with a ReLU between them, applied at every position."""
    return nn.Sequential(OrderedDict(linear1=nn.Linear(width, hidden), relu=nn.ReLU(inplace=True), linear2=nn.Linear(hidden, width)))


class EncoderLayer(nn.Module):
    """Self-attention and feed-forward, each followed by dropout, a residual sum and a layer norm."""

    def __init__(self, width: int, heads: int, hidden: int):
        super().__init__()
        self.self_attention = Attention(width, heads)
        self.norm1 = nn.LayerNorm(width)
        self.feed_forward = _feed_forward(width, hidden)
        self.norm2 = nn.LayerNorm(width)
        self.dropout = nn.Dropout(_DROPOUT)

    def forward(self, x: Tensor) -> Tensor:
        """[N, S, D] to [N, S, D]."""
        x = self.norm1(x + self.dropout(self.self_attention(x, x)))
        return self.norm2(x + self.dropout(self.feed_forward(x)))


class DecoderLayer(nn.Module):
    """Causal self-attention, attention to the encoder's output, and feed-forward, each followed as in `EncoderLayer`."""

    def __init__(self, width: int, heads: int, hidden: int):
        super().__init__()
        self.self_attention = Attention(width, heads)
        self.norm1 = nn.LayerNorm(width)
        self.cross_attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.feed_forward = _feed_forward(width, hidden)
        self.norm3 = nn.LayerNorm(width)
        self.dropout = nn.Dropout(_DROPOUT)

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        """[N, T, D] and memory [N, S, D] to [N, T, D]."""
        x = self.norm1(x + self.dropout(self.self_attention(x, x, causal=True)))
        x = self.norm2(x + self.dropout(self.cross_attention(x, memory)))
        return self.norm3(x + self.dropout(self.feed_forward(x)))


def sinusoids(length: int, width: int) -> Tensor:
    """Return position encodings [length, width]: sines in the even columns, cosines in the odd ones."""
    position = torch.arange(length, dtype=torch.get_default_dtype()).unsqueeze(1)
    frequency = torch.exp(torch.arange(0, width, 2, dtype=torch.get_default_dtype()) * (-math.log(10_000.0) / width))
    return torch.stack((torch.sin(position * frequency), torch.cos(position * frequency)), dim=2).flatten(1)


class Transformer(nn.Module):
    """Encoder and decoder. `embedding` also maps the decoder's output to logits."""

    positions: Tensor

    def __init__(self, vocabulary: int, length: int, width: int = 512, heads: int = 8, hidden: int = 2048, depth: int = 6):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.register_buffer("positions", sinusoids(length, width), persistent=False)
        self.dropout = nn.Dropout(_DROPOUT)
        self.encoder = nn.ModuleList(EncoderLayer(width, heads, hidden) for _ in range(depth))
        self.decoder = nn.ModuleList(DecoderLayer(width, heads, hidden) for _ in range(depth))
        self.scale = math.sqrt(width)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        nn.init.normal_(self.embedding.weight, 0.0, 1.0 / self.scale)

    def embed(self, tokens: Tensor) -> Tensor:
        """Tokens [N, T] to embeddings with positions [N, T, D]."""
        return self.dropout(self.embedding(tokens) * self.scale + self.positions[: tokens.shape[1]])

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Source tokens [N, S] and target tokens up to each position [N, T] to logits [N, T, V]."""
        memory = self.embed(source)
        for layer in self.encoder:
            memory = layer(memory)
        x = self.embed(target)
        for layer in self.decoder:
            x = layer(x, memory)
        return F.linear(x, self.embedding.weight)


def smoothed_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the label-smoothed cross-entropy of logits [N, T, V] over all target positions [N, T]."""
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), label_smoothing=_SMOOTHING)


def translation(batch: int, length: int) -> tuple:
    """Return the base Transformer, random source and target tokens [batch, length], the next tokens [batch, length], and the loss."""
    source = torch.randint(_VOCABULARY, (batch, length))
    sentence = torch.randint(_VOCABULARY, (batch, length + 1))
    inputs = source, sentence[:, :-1].contiguous()
    return Transformer(_VOCABULARY, length).train(), inputs, sentence[:, 1:].contiguous(), smoothed_loss


# The recurrent classifiers of "BPPSA: Scaling Back-propagation by Parallel Scan Algorithm" (Wang et al., MLSys 2020).


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
