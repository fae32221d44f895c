"""How long sparse Jacobians take to make: ours beside autograd, one column at a time, for the first layers of VGG-11 on 32x32 images.

As in table 1 of "BPPSA: Scaling Back-propagation by Parallel Scan Algorithm" (Wang et al., 2020), for one image in float32. A column is
one backward pass of an output element. Autograd is timed on some columns, spread evenly, and scaled to all: the first convolution alone
has 65,536.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import torch
from torch import Tensor
from torch.nn import functional

from executors.kernels.csr.values import COMPILE
from simulator.bodies.csr.rules import ConvolutionRule, ElementwiseRule, MaxPoolRule, Rule


@dataclass(frozen=True, slots=True)
class Generation:
    """Seconds to make one Jacobian's values; autograd's are scaled from `timed` of `columns`."""

    layer: str
    ours_s: float
    autograd_s: float
    columns: int
    timed: int

    @property
    def speed_up(self) -> float:
        """Autograd's time over ours."""
        return self.autograd_s / self.ours_s


def generation_times(columns: int = 32, rounds: int = 20) -> list[Generation]:
    """Convolution, ReLU and max-pooling, on one thread; `columns` of autograd's and `rounds` of ours, medians of both."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return [_measure(*layer, columns, rounds) for layer in _layers()]
    finally:
        torch.set_num_threads(threads)


def _layers() -> list[tuple[str, Rule, Callable[[Tensor], Tensor], Tensor, Tensor]]:
    """Names, rules, ops, inputs and what the rule's values are made from."""
    image, weight, maps = torch.randn(1, 3, 32, 32), torch.randn(64, 3, 3, 3), torch.randn(1, 64, 32, 32)
    _, argmax = functional.max_pool2d(maps, 2, return_indices=True)
    relu = ElementwiseRule(maps.numel(), "aten.threshold_backward.default", '[{"$":0},0]')
    pool = MaxPoolRule(64, 32, 32, (16, 16), (2, 2), (2, 2))
    return [
        (
            "convolution", ConvolutionRule(3, 32, 32, 64, (3, 3), padding=(1, 1)),
            lambda x: functional.conv2d(x, weight, padding=1), image, weight,
        ),
        ("ReLU", relu, torch.relu, maps, torch.relu(maps)),
        ("max-pooling", pool, lambda x: functional.max_pool2d(x, 2), maps, argmax),
    ]  # fmt: skip


def _measure(name: str, rule: Rule, op: Callable[[Tensor], Tensor], x: Tensor, read: Tensor, columns: int, rounds: int) -> Generation:
    values = COMPILE[rule.of](rule, torch.float32, torch.device("cpu"))
    ours = [_seconds(lambda: values(read)) for _ in range(rounds + 2)][2:]
    x = x.clone().requires_grad_()
    out = op(x).flatten()
    chosen = torch.linspace(0, rule.cols - 1, columns).long().tolist()
    autograd = [_seconds(lambda c=c: torch.autograd.grad(out[c], x, retain_graph=True)) for c in chosen]
    return Generation(name, median(ours), median(autograd) * rule.cols, rule.cols, columns)


def _seconds(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin
