"""Models that do unusual things in a step, and that a plan trains as plain PyTorch does."""

import threading
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.support.nets import Net


def _made(step, batch):
    return Net(step, first=nn.Linear(4, 4), second=nn.Linear(4, 3)), torch.randn(batch, 4), torch.randint(3, (batch,))


def draws_noise(batch):
    """Noise as in a variational autoencoder, by ops with and without tensor arguments, in place and not, beside dropout."""

    def step(module, x):
        h = module.first(x)
        h = nn.functional.dropout(h + torch.randn_like(h) * torch.rand(4, dtype=h.dtype), 0.3)
        noise = torch.empty_like(h).uniform_(0.5, 1.5)
        return module.second(h * noise + torch.bernoulli(torch.full_like(h, 0.4)) + torch.randperm(4))

    return _made(step, batch)


def hook_on_an_activation(batch):
    def step(module, x):
        h = module.first(x)
        h.register_hook(lambda gradient: gradient * 3)
        return module.second(h.relu())

    return _made(step, batch)


def hook_on_a_module(batch):
    model, *data = _made(lambda module, x: module.second(module.first(x)), batch)
    model.second.register_full_backward_hook(lambda module, gradients, _: (gradients[0] * module.weight.abs().mean(),))
    return model, *data


def complex_activations(batch):
    def step(module, x):
        return module.second(torch.fft.irfft(torch.fft.rfft(module.first(x)) * (0.5 + 1j), n=4))

    return _made(step, batch)


def literal_changed_in_place(batch):
    def step(module, x):
        scale = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=x.dtype)
        scale += 1
        return module.second(module.first(x) * scale)

    return _made(step, batch)


def gradient_penalty(batch):
    def step(module, x):
        x = x.clone().requires_grad_()
        y = module.second(module.first(x).tanh())
        (slope,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        return y + slope.pow(2).sum()

    return _made(step, batch)


def table_of_the_first_step(batch):
    def step(module, x):
        if not hasattr(module, "table"):
            module.table = torch.arange(4.0, dtype=x.dtype)
        return module.second(module.first(x) + module.table)

    return _made(step, batch)


def parameter_in_a_list(batch):
    model, *data = _made(lambda module, x: module.second(module.first(x) * module.again[0]), batch)
    model.again = [model.first.bias]
    return model, *data


def cannot_be_copied(batch):
    """A lock cannot be copied, and a copy of the module would still use this module's layers."""
    model, *data = _made(None, batch)
    model.lock = threading.Lock()
    model.step = lambda _, x: model.second(model.first(x))
    return model, *data


def dropout_between_recurrent_layers(batch):
    model, _, target = _made(lambda module, x: module.second(module.recurrent(x)[0][:, -1]), batch)
    model.recurrent = nn.LSTM(5, 4, num_layers=3, dropout=0.3, batch_first=True, bidirectional=True)
    model.second = nn.Linear(8, 3)
    return model, torch.randn(batch, 6, 5), target


def checkpointed(batch, use_reentrant=False):
    def step(module, x):
        h = checkpoint(lambda x: module.first(x).tanh().sin(), module.first(x), use_reentrant=use_reentrant)
        return module.second(h)

    return _made(step, batch)


def checkpointed_by_reentrant_backward(batch):
    return checkpointed(batch, use_reentrant=True)


def one_mapping(batch):
    """The forward takes one mapping, with a list of tensors in it."""
    model, x, target = _made(lambda module, items: module.second(module.first(items["x"]) + sum(items["others"])), batch)
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
        return Output(logits, nn.functional.cross_entropy(logits, items.labels))

    model, x, labels = _made(step, batch)
    return model, Batch(x, labels)


def logits_among_others(batch):
    return _made(lambda module, x: Output(module.second(module.first(x))), batch)


def places_have_labels(batch):
    model, x, _ = _made(lambda module, x: Output(module.second(module.first(x)[:, None].expand(-1, 5, -1))), batch)
    return model, x, torch.randint(3, (batch, 5))


def large_table_of_the_first_step(batch):
    """A table beyond the parameters and buffers, and a buffer that the first step replaces by a larger one."""

    def step(module, x):
        if len(module.places) < 4:
            module.register_buffer("places", torch.arange(4.0, dtype=x.dtype), persistent=False)
        return module.second(module.first(x) + module.places + module.table[:, :4].mean(0))

    model, *data = _made(step, batch)
    model.register_buffer("places", torch.zeros(0))
    model.table = torch.linspace(0, 1, 80_000).view(-1, 8).double()
    return model, *data


def converts_a_layer(batch):
    def step(module, x):
        module.first = module.first.to(x.dtype)
        return module.second(module.first(x))

    return _made(step, batch)
