"""Models that index tensors by tensors of integers: every shape is known before any element is."""

import torch
from torch import nn
from torch.nn import functional

from simulator.model.workloads.language_models import LanguageModel
from simulator.model.workloads.networks.decoders import Experts
from tests.support.nets import Net


def _made(step, batch):
    """A table with 5 rows of 4 numbers and a linear layer of 3 classes; `step(module, ids)` is the forward before that layer."""
    parts = {"table": nn.Parameter(torch.randn(5, 4)), "head": nn.Linear(4, 3), "bag": nn.EmbeddingBag(11, 4)}
    net = Net(lambda net, ids: net.head(step(net, ids)), **parts)
    net.register_buffer("pairs", torch.tensor([[4, 0, 1], [0, 4, 3]]))
    return net, torch.randint(5, (batch, 3)), torch.randint(3, (batch,))


def rows_by_a_buffer(batch):
    """Relative positions, as in Swin transformers: some rows are read several times, and some not at all."""
    return _made(lambda module, ids: module.table[module.pairs.view(-1)].view(2, 3, 4).sum((0, 1)) + module.table[ids].mean(1), batch)


def elements_by_two_indices(batch):
    """The last token that counts, as in classifiers of sequences: the ids below 3 count."""

    def step(module, ids):
        last = (ids < 3).int().argmax(1)
        return module.table[ids][torch.arange(len(ids)), last] * module.table[ids, ids % 4].sum(1, keepdim=True)

    return _made(step, batch)


def columns_are_replaced(batch):
    def step(module, ids):
        x = module.table[ids].sum(1)
        return x.index_put((torch.arange(len(ids)), ids[:, 0] % 4), module.table[0, 0]).clone().index_add_(0, ids[:, 1] * 0, x)

    return _made(step, batch)


def gathered_and_scattered(batch):
    def step(module, ids):
        x = functional.embedding(ids, module.table)
        best = x.topk(2, dim=1).indices
        chosen = x.gather(1, best).sum(1) + torch.take_along_dim(x, best[:, :1], 1)[:, 0] + x.index_select(1, module.pairs[0, :1] - 3)[:, 0]
        return torch.zeros_like(chosen).scatter_add(1, ids % 4, chosen[:, :3]) + chosen.scatter(1, ids[:, :1] % 4, 0.5)

    return _made(step, batch)


def bags_of_two_dimensions(batch):
    return _made(lambda module, ids: module.bag(ids + 6), batch)


def bags_with_offsets(batch):
    def step(module, ids):
        return module.bag((ids + 6).view(-1), torch.arange(len(ids)) * 3)

    return _made(step, batch)


def largest_of_bags(batch):
    model, *data = bags_of_two_dimensions(batch)
    model.bag.mode = "max"
    return model, *data


def weighted_bags(batch):
    def step(module, ids):
        return module.bag(ids + 6, per_sample_weights=module.table[ids, 0])

    model, *data = _made(step, batch)
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

    return _made(step, batch)


def branches_by_its_batch(batch):
    def step(module, ids):
        rows = module.table[ids % 5]
        if (ids < 5).all():
            rows = rows * 2
        return rows[:, : int((ids[:1] >= 0).sum())].sum(1)

    return _made(step, batch)


def tokens_by_expert(batch):
    """Each token goes to two of four experts: a product of groups of rows, which end where their experts say."""
    model = LanguageModel("llama", 1, 8, 1, 1, 8, 5, True, "rotary", False, "rms", experts=4, active=2, expert_ffn=8)

    def step(module, ids):
        rows = module.table[ids]
        return module.experts(torch.cat([rows, rows], -1)).mean(1)[:, :4]

    net, *data = _made(step, batch)
    net.experts = Experts(model)
    return net, *data
