"""Small models with a batch-norm, a layer-norm, an attention or a recurrent layer, whose backward ops need their forward op's results."""

from torch import nn, randint, randn
from torch.nn import functional as F


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


def attention(batch):
    return SelfAttention(), randn(batch, 5, 8), randint(3, (batch,))


class LastState(nn.Module):
    def __init__(self):
        super().__init__()
        self.recurrent = nn.RNN(3, 5, batch_first=True)

    def forward(self, x):
        return self.recurrent(x)[1][-1]


def recurrent(batch):
    return LastState(), randn(batch, 4, 3), randint(5, (batch,))
