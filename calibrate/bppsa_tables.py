"""What the BPPSA paper measures beside jobs: Jacobians of table 1, loss curves of figures 6 and 7, and the pruned network of figure 10."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from statistics import fmean, median

import torch
from torch import Tensor
from torch.nn import functional

from calibrate import pruned_network
from calibrate.pipeline_tables import trained
from calibrate.testbed import Progress, Testbed
from calibrate.training import Repeated
from executors.contexts import one_thread
from executors.kernels.jacobians import COMPILE
from simulator.engine.costs.model import CostModel
from simulator.model.job import Job
from simulator.papers.bppsa import SCOPE
from simulator.papers.bppsa_sparse import FIRST, PAPER
from simulator.papers.pipeline_trainings import Trained
from simulator.plan.bodies.csr.rules import ConvolutionRule, ElementwiseRule, MaxPoolRule
from simulator.predict.forecast import plan_strategy
from traces.documents.profile import Profile
from traces.documents.reproduction import Figure, PaperCase, Table
from traces.documents.targets import AUTOGRAD
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
    x, weight, saved = _operands(rule)
    by_rule = _seconds(COMPILE[rule.of](rule, torch.float32, CPU), saved)
    by_column = _seconds_per_column(_forward(rule, x.requires_grad_(), weight), x) * rule.cols
    figures = (
        Figure(name="by rule", unit="s", predicted=by_rule),
        Figure(name="by column", unit="s", predicted=by_column),
        Figure(name="faster", unit="x", predicted=by_column / by_rule, published=FASTER[name]),
    )
    return PaperCase(labels={"first": name, "columns": str(rule.cols)}, figures=figures)


def _operands(rule: Rule) -> tuple[Tensor, Tensor | None, tuple[Tensor, ...]]:
    """Random input, weight (or None), and the tensors that the rule reads."""
    generator = torch.Generator().manual_seed(0)
    if rule.of == "convolution":
        weight = torch.randn(rule.out_channels, rule.channels, *rule.kernel, generator=generator)
        return torch.randn(1, rule.channels, rule.height, rule.width, generator=generator), weight, (weight,)
    if rule.of == "elementwise":
        x = torch.randn(1, rule.elements, generator=generator)
        return x, None, (functional.relu(x),)
    x = torch.randn(1, rule.channels, rule.height, rule.width, generator=generator)
    return x, None, (functional.max_pool2d(x, rule.kernel, rule.stride, return_indices=True)[1],)


def _forward(rule: Rule, x: Tensor, weight: Tensor | None) -> Tensor:
    if rule.of == "convolution":
        return functional.conv2d(x, weight, stride=rule.stride, padding=rule.padding)
    return functional.relu(x) if rule.of == "elementwise" else functional.max_pool2d(x, rule.kernel, rule.stride)


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


#: Figures 6 and 7: LeNet-5 on digits instead of CIFAR-10; bit streams a tenth as long, at a hundred times the rate, for as few iterations.
CURVES = (
    Curves("LeNet-5", Job("lenet5", 256, 32, "momentum", lr_schedule="0:0.001"), "bppsa:scan=blelloch", 200),
    Curves("RNN", Job("rnn_bitstream", 16, 100, "adam", lr_schedule="0:0.001"), "bppsa:scan=blelloch", 400),
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
    training = Repeated(curves.job, testbed, {curves.strategy: plan}, autograd=True)
    training.begin()
    training.train(curves.steps, progress=progress)
    losses = {curve.name: curve.losses for curve in training.curves()}
    own, plain = losses[curves.strategy], losses[AUTOGRAD]
    every, apart = max(1, curves.steps // POINTS), 0.0
    for end in range(every, curves.steps + 1, every):
        part = slice(end - every, end)
        apart = max(apart, *(abs(one / other - 1) for one, other in zip(own[part], plain[part], strict=True)))
        yield {"network": curves.name, "after": end}, (fmean(plain[part]), fmean(own[part]), apart)


def adam_table(progress: Progress, task: Trained) -> Table:
    """Accuracy with the stale weights of PipeDream, with Adam and with momentum (appendix C)."""
    rows, total = [], task.seeds * len(task.trainings)
    done = iter(range(total))
    for plain, pipelined in zip(task.trainings[::2], task.trainings[1::2], strict=True):
        finals = {}
        for training in (plain, pipelined):
            finals[training.name] = ends = []
            for seed in range(task.seeds):
                progress(next(done), total, f"{task.network}, {training.optimizer}, {training.name}, seed {seed}")
                ends.append(trained(task, training, seed)[-1][1])
        for training in (plain, pipelined):
            ends = finals[training.name]
            drop = median(finals[plain.name]) - median(ends)
            printed = PAPER.values("PipeDream, drop").get(training.optimizer) if training is pipelined else None
            labels = {"optimizer": training.optimizer, "training": training.name}
            rows.append((labels, (median(ends), min(ends), max(ends), drop), (None, None, None, printed)))
    return PAPER.table("pipedream", rows, seeds=task.seeds, steps=task.steps)


def tables(testbed: Testbed, profile: Profile, progress: Progress) -> tuple[Table, ...]:
    """All of them."""
    curves, adam = losses_table(testbed, profile, progress), adam_table(progress, SCOPE.stale)
    return (generation_table(), curves, adam, *pruned_network.tables(progress))
