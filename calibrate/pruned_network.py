"""Figure 10 of the BPPSA paper on a network that is trained, pruned by magnitude while it trains, and trained again.

The paper prunes with See et al. (2016): the smallest weights of all layers together ("class-blind") become zero, and the rest is trained
again. To prune 97 % at once leaves a network that a short training does not mend, so the share grows as in Zhu and Gupta (2017,
arXiv:1710.01878, equation 1). The images are the handwritten digits at 32x32 pixels instead of CIFAR-10.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from calibrate.testbed import Progress
from calibrate.training import classified
from simulator.model.workloads.data import Batches, digits
from simulator.model.workloads.networks.chains import VGG
from simulator.papers import bppsa_sparse
from simulator.papers.bppsa_sparse import PAPER, Operator
from simulator.plan.bodies.csr.mask import Mask
from simulator.plan.bodies.csr.rules import ConvolutionRule
from traces.documents.reproduction import Table

#: Linear layers after the convolutions.
LINEAR = 3


@dataclass(frozen=True)
class Course:
    """Steps before pruning, while the share of zeros grows every `every` steps, and after it. `kept`: the share that is left."""

    before: int = 120
    while_pruned: int = 300
    after: int = 120
    every: int = 10
    batch: int = 32
    rate: float = 5e-4
    kept: float = 0.03

    @property
    def steps(self) -> int:
        return self.before + self.while_pruned + self.after

    def share(self, step: int) -> float:
        """The share of the weights that is left after so many steps."""
        part = min(1.0, max(0.0, (step - self.before) / self.while_pruned))
        return self.kept + (1 - self.kept) * (1 - part) ** 3


@dataclass(frozen=True)
class TrainedMask(Mask):
    """The positions that a trained layer keeps, in ascending order."""

    positions: tuple[int, ...] = ()

    def kept(self, shape: tuple[int, ...]) -> np.ndarray:
        return np.array(self.positions, dtype=np.int64)


@dataclass(frozen=True)
class Pruned:
    """The share of held-out images that are classified correctly before pruning and at the end, and the masks of the weights in order."""

    before: float
    after: float
    masks: tuple[Tensor, ...]


def tables(progress: Progress, course: Course = Course()) -> tuple[Table, ...]:
    """Train; then what each layer keeps, and the FLOPs of the scan with these positions and with random ones."""
    model = VGG((1, 1, 2, 2, 2), classes=10, pooled=1, hidden=512).eval()  # without dropout, as `PrunedVGG11`
    pruned = train(model, digits(3, course.batch, 32, 0), course, progress)
    masks = dict(zip(_convolutions(model), pruned.masks[:-LINEAR], strict=True))
    kept = (({"layer": layer}, (mask.numel(), float(mask.mean()))) for layer, mask in masks.items())
    return PAPER.table("pruned", _rows(pruned, masks)), PAPER.table("pruned-layers", kept)


def train(model: nn.Module, data: Batches, course: Course, progress: Progress) -> Pruned:
    """Train a model whose weights of two dimensions and more are pruned together."""
    torch.manual_seed(0)
    weights = [parameter for parameter in model.parameters() if parameter.ndim > 1]
    for weight in weights:
        nn.init.kaiming_normal_(weight, nonlinearity="relu")
    masks, before = [torch.ones_like(weight) for weight in weights], 0.0
    optimizer = torch.optim.Adam(model.parameters(), course.rate)
    for step in range(course.steps):
        progress(step, course.steps, f"pruned VGG-11, {course.share(step):.1%} of the weights left")
        if step == course.before:
            before = classified(lambda inputs: model(*inputs), data, at_once=data.held_out)
        (images,), classes = data[step]
        optimizer.zero_grad()
        functional.cross_entropy(model(images), classes).backward()
        optimizer.step()
        if step >= course.before and (step + 1 - course.before) % course.every == 0:
            masks = largest(weights, course.share(step + 1))
        with torch.no_grad():
            for weight, mask in zip(weights, masks, strict=True):
                weight.mul_(mask)
    return Pruned(before, classified(lambda inputs: model(*inputs), data, at_once=data.held_out), tuple(masks))


def largest(weights: Sequence[Tensor], share: float) -> list[Tensor]:
    """Masks with ones where a weight is among the largest of all weights together, of which `share` are left."""
    magnitudes = torch.cat([weight.detach().abs().flatten() for weight in weights])
    kept = torch.zeros_like(magnitudes)
    kept[magnitudes.topk(round(share * len(magnitudes))).indices] = 1
    parts = kept.split([weight.numel() for weight in weights])
    return [part.view_as(weight) for part, weight in zip(parts, weights, strict=True)]


def _convolutions(model: nn.Module) -> list[str]:
    """The numbers of the convolutions, as layers of the scan have them."""
    return [name.removeprefix(bppsa_sparse.LAYERS) for name, module in model.named_modules() if isinstance(module, nn.Conv2d)]


def with_masks(chain: Sequence[Operator], masks: Mapping[str, Tensor]) -> list[Operator]:
    """The chain of layers whose convolutions keep the positions of these masks, by layer."""
    return [_with_mask(each, masks[each.layer]) if each.layer in masks else each for each in chain]


def _with_mask(operator: Operator, mask: Tensor) -> Operator:
    rule, positions = operator.rule, tuple(mask.flatten().nonzero().flatten().tolist())
    assert isinstance(rule, ConvolutionRule)
    seed = rule.mask.seed if rule.mask is not None else 0
    return replace(operator, rule=replace(rule, mask=TrainedMask(float(mask.mean()), seed, positions)))


def _rows(pruned: Pruned, masks: Mapping[str, Tensor]) -> Iterator[tuple]:
    """Yield the accuracies, and what the scan takes with the trained positions and with random ones."""
    before, after = PAPER.values("pruned, accuracy").values()
    shares = {layer: float(mask.mean()) for layer, mask in masks.items()}
    chains = {
        "trained": with_masks(bppsa_sparse.operators(shares), masks),
        "random, as many of each layer": bppsa_sparse.operators(shares),
        "random, the same share of each layer": bppsa_sparse.operators({}),
    }
    yield {"weights kept": "all"}, (pruned.before,), (before,)
    for name, chain in chains.items():
        scan = bppsa_sparse.steps(chain)
        counts = (max(step.flops for step in scan), bppsa_sparse.critical_flops(scan), max(each.flops for each in chain))
        accuracies = (pruned.after, after) if name == "trained" else (None, None)
        yield {"weights kept": name}, (accuracies[0], *counts), (accuracies[1],)
