"""Other measurements of the BPPSA paper than jobs: Jacobians (table 1), loss curves (figures 6, 7), and the pruned network (figure 10)."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean, median

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from calibrate.numerics import reference
from calibrate.pipeline_tables import trained
from calibrate.testbed import Progress, Testbed
from calibrate.training import classified
from executors.contexts import one_thread
from executors.kernels.jacobians import COMPILE
from executors.trainer import Trainer
from simulator.engine.costs.model import CostModel
from simulator.model.job import Job
from simulator.model.workloads.data import Batches, digits
from simulator.model.workloads.networks.chains import VGG
from simulator.papers import bppsa_sparse
from simulator.papers.bppsa import SCOPE
from simulator.papers.bppsa_sparse import FIRST, PAPER, Operator
from simulator.papers.pipeline_trainings import Trained, Training
from simulator.plan.bodies.csr.mask import Mask
from simulator.plan.bodies.csr.rules import ConvolutionRule, ElementwiseRule, MaxPoolRule
from simulator.predict.forecast import plan_of
from simulator.predict.target import Target
from traces.documents.profile import Profile
from traces.documents.reproduction import Figure, PaperCase, Table
from traces.process import seconds_of

#: The speed-ups in table 1.
FASTER = {"convolution": 8.3e3, "ReLU": 1.2e6, "max-pooling": 1.5e5}
#: Columns that are timed, out of about ten thousand, and rounds of computing all by rule.
COLUMNS, ROUNDS = 64, 15
CPU = torch.device("cpu")
#: Those in `FIRST`.
Rule = ConvolutionRule | ElementwiseRule | MaxPoolRule


def generation_table() -> Table:
    """Seconds of each way on one core, and the ratio of autograd's time to the rule's."""
    with one_thread():
        rows = tuple(_row(name, rule) for name, rule in FIRST.items())
    about = (
        f"'Predicted' is measured on one core of this machine, as medians. By column: {COLUMNS} columns timed, times their number."
        " By rule: only values are computed, into an existing pattern; of max-pooling those of the whole window, zeros included."
        " Published: table 1, another CPU."
    )
    return Table(name="generation", title="Making a transposed Jacobian of one sample", about=about, rows=rows)


def _row(name: str, rule: Rule) -> PaperCase:
    x, saved, forward = _operands(rule)
    by_rule = _seconds(COMPILE[rule.of](rule, torch.float32, CPU), saved)
    by_column = _seconds_per_column(forward(x.requires_grad_()), x) * rule.cols
    figures = (
        Figure(name="by rule", unit="s", predicted=by_rule),
        Figure(name="by column", unit="s", predicted=by_column),
        Figure(name="faster", unit="x", predicted=by_column / by_rule, published=FASTER[name]),
    )
    return PaperCase(labels={"first": name, "columns": str(rule.cols)}, figures=figures)


def _operands(rule: Rule) -> tuple[Tensor, tuple[Tensor, ...], Callable[[Tensor], Tensor]]:
    """Random input, the tensors that the rule reads, and the op as a function of the input."""
    generator = torch.Generator().manual_seed(0)
    if rule.of == "elementwise":
        x = torch.randn(1, rule.elements, generator=generator)
        return x, (functional.relu(x),), functional.relu
    if rule.of == "convolution":
        weight = torch.randn(rule.out_channels, rule.channels, *rule.kernel, generator=generator)
        x = torch.randn(1, rule.channels, rule.height, rule.width, generator=generator)
        return x, (weight,), partial(functional.conv2d, weight=weight, stride=rule.stride, padding=rule.padding)
    x = torch.randn(1, rule.channels, rule.height, rule.width, generator=generator)
    pool = partial(functional.max_pool2d, kernel_size=rule.kernel, stride=rule.stride)
    return x, (pool(x, return_indices=True)[1],), pool


def _seconds(values: Callable[..., Tensor], saved: tuple[Tensor, ...]) -> float:
    values(*saved)
    return median(seconds_of(lambda: values(*saved)) for _ in range(ROUNDS))


def _seconds_per_column(out: Tensor, x: Tensor) -> float:
    """Seconds of autograd for the gradient of one element of `out` by `x`: the median of `COLUMNS` elements spread over `out`."""
    seed = torch.zeros_like(out)
    flat, step = seed.view(-1), max(1, out.numel() // COLUMNS)

    def column(index: int) -> None:
        flat[index] = 1.0
        torch.autograd.grad(out, x, seed, retain_graph=True)
        flat[index] = 0.0

    column(0)
    return median(seconds_of(partial(column, index)) for index in range(0, out.numel(), step))


@dataclass(frozen=True)
class Curves:
    """A job that is trained by a scan and by plain PyTorch, on the same batches and from the same parameters."""

    name: str
    job: Job
    strategy: str
    steps: int


#: Figures 6 and 7: LeNet-5 on digits instead of CIFAR-10; bit streams a tenth as long, at ten times the rate, for as few iterations.
CURVES = (
    Curves("LeNet-5", Job("lenet5", 256, 32, "momentum", lr_schedule="0:0.001"), "bppsa:scan=blelloch", 100),
    Curves("RNN", Job("rnn_bitstream", 16, 100, "adam", lr_schedule="0:0.0001"), "bppsa:scan=blelloch", 300),
)
#: Points of a curve.
POINTS = 10


def losses_table(testbed: Testbed, profile: Profile, progress: Progress, curves: tuple[Curves, ...] = CURVES) -> Table:
    """The losses of both trainings, as means between two points of a curve, and how far they have differed in any iteration so far."""
    testbed.open(testbed.machine(profile))
    return PAPER.table("losses", (row for each in curves for row in _losses(each, testbed, profile, progress)))


def _losses(curves: Curves, testbed: Testbed, profile: Profile, progress: Progress) -> Iterator[tuple]:
    machine = testbed.machine(profile)
    plan = plan_of(curves.job, curves.strategy, Target.of(CostModel(machine, profile)))
    trainer, plain = Trainer(plan, curves.job, curves.job.build(), testbed.backend), reference(curves.job, curves.job.build(), False)
    batches, losses = curves.job.data(), []
    for step in range(curves.steps):
        progress(step, curves.steps, f"{curves.name}, by both")
        inputs, target = batches[step]
        plain.feed(inputs, target)
        losses.append((float(trainer.step(inputs, target) or 0.0), float(plain.step())))
    every, apart = max(1, curves.steps // POINTS), 0.0
    for end in range(every, curves.steps + 1, every):
        part = losses[end - every : end]
        apart = max(apart, *(abs(own / other - 1) for own, other in part))
        yield {"network": curves.name, "after": end}, (fmean(other for _, other in part), fmean(own for own, _ in part), apart)


def adam_table(progress: Progress, task: Trained) -> Table:
    """Accuracy with the stale weights of PipeDream, with Adam and with momentum (appendix C)."""
    total = task.seeds * len(task.trainings)
    done = iter(range(total))

    def finals(training: Training) -> list[float]:
        ends = []
        for seed in range(task.seeds):
            progress(next(done), total, f"{task.network}, {training.optimizer}, {training.name}, seed {seed}")
            ends.append(trained(task, training, seed)[-1][1])
        return ends

    return adam_rows(task, {training: finals(training) for training in task.trainings})


def adam_rows(task: Trained, ends: Mapping[Training, Sequence[float]]) -> Table:
    """The table of the accuracies at the end of each training, by seed. Trainings are in pairs, first the plain one."""
    rows = []
    for number, training in enumerate(task.trainings):
        own, plain = ends[training], ends[task.trainings[number - number % 2]]
        drop = median(plain) - median(own)
        labels = {"optimizer": training.optimizer, "rate": f"{training.rate or task.rate:g}", "training": training.name}
        printed = PAPER.values("PipeDream, drop").get(training.optimizer) if training is not task.trainings[number - number % 2] else None
        rows.append((labels, (median(own), min(own), max(own), drop), (None, None, None, printed)))
    return PAPER.table("pipedream", rows, seeds=task.seeds, steps=task.steps)


# Figure 10 on a network that is trained, pruned by magnitude while it trains, and trained again. The paper prunes with See et al. (2016):
# the smallest weights of all layers together ("class-blind") become zero, and the rest is trained again. A short training does not repair a
# network after pruning 97 % in one step, so the share grows as in Zhu and Gupta (2017, arXiv:1710.01878, equation 1). The images are the
# handwritten digits at 32x32 pixels instead of CIFAR-10.

#: Linear layers after the convolutions.
LINEAR = 3


@dataclass(frozen=True)
class Course:
    """Steps before pruning, while the share of zeros grows every `every` steps, and after it. `kept`: the share that remains."""

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
        """The share of the weights that remains after this many steps."""
        part = min(1.0, max(0.0, (step - self.before) / self.while_pruned))
        return self.kept + (1 - self.kept) * (1 - part) ** 3


@dataclass(frozen=True)
class TrainedMask(Mask):
    """The positions that a trained layer retains, in ascending order."""

    positions: tuple[int, ...] = ()

    def kept(self, shape: tuple[int, ...]) -> np.ndarray:
        return np.array(self.positions, dtype=np.int64)


@dataclass(frozen=True)
class Pruned:
    """The share of held-out images that are classified correctly before pruning and at the end, and the masks of the weights in order."""

    before: float
    after: float
    masks: tuple[Tensor, ...]


def pruned_tables(progress: Progress, course: Course = Course()) -> tuple[Table, ...]:
    """Train; then the positions that each layer retains, and the FLOPs of the scan with these positions and with random ones."""
    model = VGG((1, 1, 2, 2, 2), classes=10, pooled=1, hidden=512).eval()  # without dropout, as `PrunedVGG11`
    pruned = train(model, digits(3, course.batch, 32, 0), course, progress)
    masks = dict(zip(_convolutions(model), pruned.masks[:-LINEAR], strict=True))
    kept = (({"layer": layer}, (mask.numel(), float(mask.mean()))) for layer, mask in masks.items())
    return PAPER.table("pruned", _pruned_rows(pruned, masks)), PAPER.table("pruned-layers", kept)


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
    """Masks with ones where a weight is among the largest of all weights together, of which `share` remain."""
    magnitudes = torch.cat([weight.detach().abs().flatten() for weight in weights])
    kept = torch.zeros_like(magnitudes)
    kept[magnitudes.topk(round(share * len(magnitudes))).indices] = 1
    parts = kept.split([weight.numel() for weight in weights])
    return [part.view_as(weight) for part, weight in zip(parts, weights, strict=True)]


def _convolutions(model: nn.Module) -> list[str]:
    """The numbers of the convolutions, as layers of the scan have them."""
    return [name.removeprefix(bppsa_sparse.LAYERS) for name, module in model.named_modules() if isinstance(module, nn.Conv2d)]


def with_masks(chain: Sequence[Operator], masks: Mapping[str, Tensor]) -> list[Operator]:
    """The chain of layers whose convolutions retain the positions of these masks, by layer."""
    return [_with_mask(each, masks[each.layer]) if each.layer in masks else each for each in chain]


def _with_mask(operator: Operator, mask: Tensor) -> Operator:
    rule, positions = operator.rule, tuple(mask.flatten().nonzero().flatten().tolist())
    assert isinstance(rule, ConvolutionRule)
    seed = rule.mask.seed if rule.mask is not None else 0
    return replace(operator, rule=replace(rule, mask=TrainedMask(float(mask.mean()), seed, positions)))


def _pruned_rows(pruned: Pruned, masks: Mapping[str, Tensor]) -> Iterator[tuple]:
    """Yield the accuracies, and the scan's FLOPs with the trained positions and with random ones."""
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


def tables(testbed: Testbed, profile: Profile, progress: Progress) -> tuple[Table, ...]:
    """All of them."""
    curves, adam = losses_table(testbed, profile, progress), adam_table(progress, SCOPE.stale)
    return (generation_table(), curves, adam, *pruned_tables(progress))
