"""What the BPPSA paper measures beside jobs: Jacobians of table 1, loss curves of figures 6 and 7, and the pruned network of figure 10."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean, median

import torch
from torch import Tensor
from torch.nn import functional

from calibrate import pruned_network
from calibrate.numerics import reference
from calibrate.pipeline_tables import trained
from calibrate.testbed import Progress, Testbed
from executors.contexts import one_thread
from executors.kernels.jacobians import COMPILE
from executors.trainer import Trainer
from simulator.engine.costs.model import CostModel
from simulator.model.job import Job
from simulator.papers.bppsa import SCOPE
from simulator.papers.bppsa_sparse import FIRST, PAPER
from simulator.papers.pipeline_trainings import Trained, Training
from simulator.plan.bodies.csr.rules import ConvolutionRule, ElementwiseRule, MaxPoolRule
from simulator.predict.forecast import plan_strategy
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
    """The losses of both trainings, as means between two points of a curve, and how far they have differed in any iteration before."""
    testbed.open(testbed.machine(profile))
    return PAPER.table("losses", (row for each in curves for row in _losses(each, testbed, profile, progress)))


def _losses(curves: Curves, testbed: Testbed, profile: Profile, progress: Progress) -> Iterator[tuple]:
    machine = testbed.machine(profile)
    plan = plan_strategy(curves.strategy, {}, curves.job, machine, CostModel(machine, profile))
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


def tables(testbed: Testbed, profile: Profile, progress: Progress) -> tuple[Table, ...]:
    """All of them."""
    curves, adam = losses_table(testbed, profile, progress), adam_table(progress, SCOPE.stale)
    return (generation_table(), curves, adam, *pruned_network.tables(progress))
