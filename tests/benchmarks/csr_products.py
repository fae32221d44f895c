"""Compares products of adjacent transposed Jacobians with precomputed patterns (ours), with scipy and with torch.sparse, on one thread.

The factors are those of the first level of a scan over LeNet-5 and over VGG-11 with 3 % of its weights (and the first two of dense VGG-11),
in float32. scipy and torch.sparse multiply sample by sample, on matrices created in advance; a matrix that all samples share is created
once. Figures are medians of interleaved rounds; a ratio above 1 means slower than ours. In a round each product is called twice and the
second call counts, as in successive training steps: the first call pays for memory pages that the other libraries have touched.
"""

import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from statistics import median

import torch

from executors.cpu import allocator
from executors.kernels.sparse import compile_product
from simulator.model.job import Job
from simulator.plan.bodies.csr.product import Recipe
from simulator.plan.bodies.csr.rules import ConvolutionRule, ElementwiseRule, LinearRule
from simulator.plan.bodies.scan import Gradient, JacobianProduct
from simulator.strategies.scan.jacobian_of import jacobian_of
from traces.errors import SchedcastError

ROUNDS, WARM_UP = 3, 2
CPU = torch.device("cpu")


def chain(model: str) -> list[tuple[str, Recipe]]:
    """Layers and rules from the first activation to the last, without full matrices."""
    graph, found = Job(model, 1).graph(), []
    for op in graph.backward_ops:
        try:
            rule, _ = jacobian_of(op, graph)
        except SchedcastError:
            continue
        if not (isinstance(rule, LinearRule) and rule.mask is None):
            found.append((op.layer, rule))
    return found[::-1]


def pairs() -> Iterator[tuple[str, Recipe, Recipe]]:
    """Names and factors. A linear layer that is not pruned is no sparse matrix, and breaks the chain."""
    for model in ("lenet5", "vgg11_pruned"):
        for (here, left), (there, right) in pairwise(chain(model)):
            if left.cols == right.rows:
                yield f"{model} {here} x {there}", left, right
    first = ConvolutionRule(3, 32, 32, 64, (3, 3), padding=(1, 1))
    yield "vgg11 features.0 x features.1", first, ElementwiseRule(first.cols, "aten.threshold_backward.default")


def values(rule: Recipe, samples: int) -> torch.Tensor:
    """Random, but of the kind that the rule gives: about half of a rectifier's are zero, which is no secret to the libraries."""
    drawn = torch.randn(rule.nnz, 1 if rule.shared else samples)
    return (drawn > 0).float() if not rule.shared else drawn


def scipy_product(left: Recipe, right: Recipe, a: torch.Tensor, b: torch.Tensor) -> Callable[[], object]:
    """Loops over the samples."""
    from scipy.sparse import csr_matrix

    def made(rule: Recipe, v: torch.Tensor) -> list:
        p = rule.pattern()
        return [csr_matrix((v[:, s].contiguous().numpy(), p.indices, p.indptr), (p.rows, p.cols)) for s in range(v.shape[1])]

    return _loop(made(left, a), made(right, b))


def torch_product(left: Recipe, right: Recipe, a: torch.Tensor, b: torch.Tensor) -> Callable[[], object]:
    """Loops over the samples."""

    def made(rule: Recipe, v: torch.Tensor) -> list:
        p = rule.pattern()
        indices = torch.from_numpy(p.indptr), torch.from_numpy(p.indices)
        return [
            torch.sparse_csr_tensor(*indices, v[:, s].contiguous(), (p.rows, p.cols), check_invariants=False) for s in range(v.shape[1])
        ]

    return _loop(made(left, a), made(right, b))


def _loop(lefts: list, rights: list) -> Callable[[], None]:
    samples = max(len(lefts), len(rights))

    def run() -> None:
        for s in range(samples):  # each result is dropped: kept, those of 16 samples and their heap fill the memory of a small machine
            _ = lefts[s % len(lefts)] @ rights[s % len(rights)]

    return run


def interleaved(calls: dict[str, Callable[[], object]], rounds: int = ROUNDS) -> dict[str, float]:
    """Median seconds of each call."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(WARM_UP + rounds):
        for name, call in calls.items():
            call()
            begin = time.perf_counter()
            call()
            if number >= WARM_UP:
                taken[name].append(time.perf_counter() - begin)
    return {name: median(seconds) for name, seconds in taken.items()}


def main() -> None:
    """Print times in ms and ratios."""
    torch.set_num_threads(1)
    allocator.prepare()  # as the executor does, and for all three: or most of the time goes to page faults of large results
    neighbours = list(pairs())
    print(f"{'product':<44} {'B':>3} {'terms':>9} {'ours/ms':>9} {'scipy/ms':>9} {'torch/ms':>9} {'scipy':>7} {'torch':>7}")
    with torch.no_grad():
        for name, left, right in neighbours:
            for samples in (1, 16):
                a, b = values(left, samples), values(right, samples)
                body = JacobianProduct(left, right)
                multiply = compile_product(body, (a.shape[1], b.shape[1]), CPU)
                calls = {
                    "ours": lambda m=multiply, a=a, b=b: m(a, b),
                    "scipy": scipy_product(left, right, a, b),
                    "torch": torch_product(left, right, a, b),
                }
                times = interleaved(calls)
                _print(name, samples, body.terms, times)
        for name, left, _ in neighbours:
            if isinstance(left, ConvolutionRule):
                a, g = values(left, 16), torch.randn(left.cols, 16)
                body = JacobianProduct(left, Gradient(left.cols))
                multiply, p = compile_product(body, (1, 16), CPU), left.pattern()
                from scipy.sparse import csr_matrix

                s = csr_matrix((a[:, 0].numpy(), p.indices, p.indptr), (p.rows, p.cols))
                t = torch.sparse_csr_tensor(
                    torch.from_numpy(p.indptr), torch.from_numpy(p.indices), a[:, 0], (p.rows, p.cols), check_invariants=False
                )
                vectors = g.numpy()
                calls = {
                    "ours": lambda m=multiply, a=a, g=g: m(a, g),
                    "scipy": lambda s=s, v=vectors: s @ v,
                    "torch": lambda t=t, g=g: t @ g,
                }
                _print(f"{name.rpartition(' x ')[0]} x gradient", 16, body.terms, interleaved(calls))


def _print(name: str, samples: int, terms: int, times: dict[str, float]) -> None:
    ours = times["ours"]
    milliseconds = " ".join(f"{1e3 * seconds:9.3f}" for seconds in times.values())
    print(f"{name:<44} {samples:3} {terms:9} {milliseconds} {times['scipy'] / ours:7.1f} {times['torch'] / ours:7.1f}", flush=True)


if __name__ == "__main__":
    main()
