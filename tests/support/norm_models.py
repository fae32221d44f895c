"""Small models with layers whose backward ops need results of their forward ops: norms, attention, recurrent layers and others."""

from functools import partial

from torch import nn, randint, randn
from torch.nn import functional as F
from torch.nn.utils import parametrizations

from tests.support.nets import Net


def batch_norm(batch):
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 4 * 4, 3))
    return model, randn(batch, 2, 6, 6), randint(3, (batch,))


def layer_norm(batch):
    return nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 3)), randn(batch, 6), randint(3, (batch,))


def attention(batch, length=5):
    def step(net, x):
        query, key, value = net.project(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        return net.output(F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2).mean(1))

    return Net(step, project=nn.Linear(8, 24), output=nn.Linear(8, 3)), randn(batch, length, 8), randint(3, (batch,))


#: Of a length that memory-efficient attention need not pad.
attention32 = partial(attention, length=32)


def recurrent(batch):
    net = Net(lambda net, x: net.recurrent(x)[1][-1], recurrent=nn.RNN(3, 5, batch_first=True))
    return net, randn(batch, 4, 3), randint(5, (batch,))


def dropping(batch):
    def step(net, x):
        return net.output(net.attention(x, x, x, need_weights=False)[0].mean(1))

    net = Net(step, attention=nn.MultiheadAttention(8, 2, dropout=0.2, batch_first=True), output=nn.Linear(8, 3))
    return net, randn(batch, 5, 8), randint(3, (batch,))


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
    return net, (randn(batch, 5, 6), randint(9, (batch, 4))), randint(3, (batch,))


class Letters(nn.Sequential):
    def forward(self, x):
        return super().forward(x).log_softmax(-1).transpose(0, 1)


def letters(batch):
    def loss(scores, target):
        return F.ctc_loss(scores, target, [9] * batch, [3] * batch)

    return Letters(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 5)), randn(batch, 9, 6), randint(1, 5, (batch, 3)), loss
