"""Small models whose loss does not count every target: all of the first half of the batch are skipped, and a third of the others."""

import torch
from torch import nn
from torch.nn import functional as F

from simulator.model.find import find_factory

CLASSES = 3


def _made(batch: int, loss, module: nn.Module | None = None) -> tuple:
    module = module or nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, CLASSES))
    targets = torch.arange(batch) % CLASSES
    targets[: batch // 2] = 0
    return module, torch.randn(batch, 6), targets, loss


def _mask(outputs, targets):
    return (targets != 0).to(outputs.dtype)


def _weights(outputs):
    return torch.arange(CLASSES, dtype=outputs.dtype)


def skipped(batch):
    return _made(batch, lambda outputs, targets: F.cross_entropy(outputs, targets, ignore_index=0))


def unequal(batch):
    """Here the first quarter alone counts only one."""
    module, inputs, targets, loss = skipped(batch)
    targets[: batch // 2] = torch.arange(batch // 2) % CLASSES
    targets[: batch // 4] = torch.arange(batch // 4) == 0
    return module, inputs, targets, loss


def weighted(batch):
    """Of which the first class has no weight, and another is skipped."""
    return _made(batch, lambda outputs, targets: F.cross_entropy(outputs, targets, _weights(outputs), ignore_index=0))


def smoothed(batch):
    return _made(batch, lambda outputs, targets: F.cross_entropy(outputs, targets, ignore_index=0, label_smoothing=0.1))


def smoothed_weighted(batch):
    return _made(batch, lambda outputs, targets: F.cross_entropy(outputs, targets, _weights(outputs), ignore_index=0, label_smoothing=0.1))


def masked(batch):
    def loss(outputs, targets):
        mask = _mask(outputs, targets)
        return (F.cross_entropy(outputs, targets, reduction="none") * mask).sum() / mask.sum().clamp(min=1)

    return _made(batch, loss)


def divided(batch):
    """As transformers divides a sum."""
    return _made(batch, lambda o, targets: F.cross_entropy(o, targets, ignore_index=0, reduction="sum") / (targets != 0).sum())


def averaged(batch):
    def loss(outputs, targets):
        mask = _mask(outputs, targets)
        return (F.cross_entropy(outputs, targets, reduction="none") * mask).mean() / mask.mean() + 0.1 * outputs.square().mean()

    return _made(batch, loss)


def tokens(batch):
    """Of a decoder, the targets of the first half and those of some tokens are skipped."""
    module, words, targets, _ = find_factory("lm:form=llama,layers=2,d_model=16,heads=4,ffn=24,vocab=32", 8).call(batch)
    targets[: batch // 2], targets[:, ::3] = -100, -100
    return module, words, targets, lambda outputs, targets: F.cross_entropy(outputs.flatten(0, 1), targets.flatten())


def dropped(batch):
    """With dropout and a batch-norm, which see each part alone."""
    layers = nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Dropout(0.5), nn.Linear(5, CLASSES)
    return _made(batch, lambda outputs, targets: F.cross_entropy(outputs, targets, ignore_index=0), nn.Sequential(*layers))


def normed(batch):
    """A number of targets that does not add up."""
    return _made(batch, lambda o, targets: F.cross_entropy(o, targets, reduction="sum") / _mask(o, targets).norm())


def squared(batch):
    return _made(batch, lambda outputs, targets: F.cross_entropy(outputs, targets, ignore_index=0).square())


#: Those that have one mean over the batch.
NAMES = ("skipped", "weighted", "smoothed", "smoothed_weighted", "masked", "divided", "averaged")
