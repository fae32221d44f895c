"""Small models with layers whose backward ops need results of their forward ops: norms, attention, recurrent layers and others."""

from functools import partial

from torch import nn, randint, randn
from torch.nn import functional as F
from torch.nn.utils import parametrizations


def batch_norm(batch):
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 4 * 4, 3))
    return model, randn(batch, 2, 6, 6), randint(3, (batch,))


def layer_norm(batch):
    return nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 3)), randn(batch, 6), randint(3, (batch,))


class SelfAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.project, self.output = nn.Linear(8, 24), nn.Linear(8, 3)

    def forward(self, x):
        query, key, value = self.project(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        return self.output(F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2).mean(1))


def attention(batch, length=5):
    return SelfAttention(), randn(batch, length, 8), randint(3, (batch,))


#: Of a length that memory-efficient attention need not pad.
attention32 = partial(attention, length=32)


class LastState(nn.Module):
    def __init__(self):
        super().__init__()
        self.recurrent = nn.RNN(3, 5, batch_first=True)

    def forward(self, x):
        return self.recurrent(x)[1][-1]


def recurrent(batch):
    return LastState(), randn(batch, 4, 3), randint(5, (batch,))


class Dropping(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention, self.output = nn.MultiheadAttention(8, 2, dropout=0.2, batch_first=True), nn.Linear(8, 3)

    def forward(self, x):
        return self.output(self.attention(x, x, x, need_weights=False)[0].mean(1))


def dropping(batch):
    return Dropping(), randn(batch, 5, 8), randint(3, (batch,))


class Others(nn.Module):
    def __init__(self):
        super().__init__()
        self.project, self.output = parametrizations.weight_norm(nn.Linear(6, 8)), nn.Linear(8, 3)
        self.group, self.instance = nn.GroupNorm(2, 8), nn.InstanceNorm1d(8)
        self.words, self.largest = nn.EmbeddingBag(9, 8), nn.EmbeddingBag(9, 8, mode="max")

    def forward(self, x, words):
        x = self.group(F.logsigmoid(self.project(x)).transpose(1, 2))
        x = F.dropout(self.instance(x), 0.3).transpose(1, 2)
        return self.output(x.mean(1) + self.words(words) + self.largest(words))


def others(batch):
    return Others(), (randn(batch, 5, 6), randint(9, (batch, 4))), randint(3, (batch,))


class Letters(nn.Sequential):
    def forward(self, x):
        return super().forward(x).log_softmax(-1).transpose(0, 1)


def letters(batch):
    def loss(scores, target):
        return F.ctc_loss(scores, target, [9] * batch, [3] * batch)

    return Letters(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 5)), randn(batch, 9, 6), randint(1, 5, (batch, 3)), loss
