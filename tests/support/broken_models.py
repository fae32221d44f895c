"""Model factories for the tests of error messages. Each has one mistake."""

import threading

import torch
from torch import nn

NOT_A_FUNCTION = 3


class Net(nn.Module):
    """A linear layer followed by the function `then`."""

    def __init__(self, then):
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.then = then

    def forward(self, x):
        return self.then(self.linear(x))


def data(batch, width=4):
    return torch.randn(batch, width), torch.randint(3, (batch,))


def good(batch):
    return nn.Linear(4, 3), *data(batch)


def raises(batch):
    raise RuntimeError("no data today\nand more about it")


def exits(batch):
    raise SystemExit(3)


def returns_two(batch):
    return nn.Linear(4, 3), torch.randn(batch, 4)


def returns_nothing(batch):
    return None


def returns_a_function(batch):
    return (lambda x: x), *data(batch)


def no_argument():
    return good(4)


def loss_is_a_number(batch):
    return *good(batch), 7


def loss_per_sample(batch):
    return *good(batch), lambda output, target: output.sum(1)


def loss_without_graph(batch):
    return *good(batch), lambda output, target: output.detach().sum()


def frozen(batch):
    return nn.Linear(4, 3).requires_grad_(False), *data(batch)


def lazy(batch):
    return nn.LazyLinear(3), *data(batch)


def sparse(batch):
    return nn.Sequential(nn.Embedding(9, 4, sparse=True)), torch.randint(9, (batch,)), torch.randint(4, (batch,))


def other_batch(batch):
    return nn.Linear(5, 3), *data(7, width=5)


def other_target(batch):
    return nn.Linear(4, 3), data(batch)[0], data(batch + 1)[1]


def other_width(batch):
    return nn.Linear(4, 3), *data(batch, width=5)


def reads_a_value(batch):
    return Net(lambda x: x * 2 if x.sum().item() > 0 else x), *data(batch)


def picks_by_value(batch):
    return Net(lambda x: x[x > 0]), *data(batch), lambda output, target: output.sum()


def needs_a_gpu(batch):
    return Net(lambda x: x.cuda()), *data(batch)


def forward_raises(batch):
    def complain(x):
        raise KeyError("layer 7")

    return Net(complain), *data(batch)


def holds_a_lock(batch):
    model = nn.Linear(4, 3)
    model.lock = threading.Lock()
    return model, *data(batch)


def class_out_of_range(batch):
    return nn.Linear(4, 3), torch.randn(batch, 4), torch.full((batch,), 5)
