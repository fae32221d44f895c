"""Measures a paper's jobs on this machine, each validated like any other job, and what the paper measures beside jobs.

For table 1 of the BPPSA paper, two ways to compute a transposed Jacobian are timed: by the op's rule, and by autograd column by column.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from statistics import median
from types import MappingProxyType

import torch
from torch import Tensor
from torch.nn import functional

from calibrate import fusion_tables, pipeline_tables
from calibrate.placement import Placement
from calibrate.profiles import gpu_here, open_profile, warn_if_foreign
from calibrate.testbed import Progress, Testbed
from calibrate.testbeds import testbed_for
from calibrate.validation import validate
from executors.contexts import one_thread
from executors.kernels.jacobians import COMPILE
from simulator.papers.bppsa_sparse import FIRST
from simulator.papers.registry import Source
from simulator.plan.bodies.csr.rules import ConvolutionRule, ElementwiseRule, MaxPoolRule
from traces.documents.profile import Profile
from traces.documents.reproduction import Figure, Paper, PaperCase, Table
from traces.errors import SchedcastError
from traces.files import check_writable
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


#: Tables that are measured in addition to jobs, by paper.
_TABLES: MappingProxyType[str, Callable[[Testbed, Profile, Progress], tuple[Table, ...]]] = MappingProxyType(
    {
        "bppsa": lambda *_: (generation_table(),),
        "fusion": fusion_tables.tables,
        "pipeline": lambda testbed, profile, progress: pipeline_tables.tables(progress),
    }
)
#: Opens a progress bar with a title; yields the function that reports progress.
Bar = Callable[[str], AbstractContextManager[Progress]]
#: Is called before each measurement, with its testbed: looks whether other processes leave the machine alone.
Look = Callable[[Testbed], None]


def measure_paper(source: Source, paper: Paper, bar: Bar, look: Look) -> tuple[Paper, bool]:
    """Validate each of the paper's measurements on this machine.

    Returns the paper with the validations, and whether all strategies computed what plain PyTorch computes. Raises SchedcastError if the
    paper has no measurement for this machine.
    """
    gpu = gpu_here() is not None
    chosen = source.measurements(gpu)
    if not chosen:
        raise SchedcastError(f"it has nothing to measure on this machine, {'a GPU' if gpu else 'which has no GPU that PyTorch can use'}")
    outcomes, tables = [], paper.tables
    for measurement in chosen:
        testbed, profile, path = _opened(measurement.job.precision, "cuda" if gpu else "cpu", look)
        with bar(f"measuring {measurement.job.label}") as progress:
            outcomes.append(
                validate(measurement.job, measurement.strategies, {}, profile, testbed, save_to=path, progress=progress, timelines=False)
            )
    if source.name in _TABLES:
        with bar(f"measuring what else {source.name} compares") as progress:
            tables += _TABLES[source.name](testbed, profile, progress)
    documents = tuple(outcome.validation.document() for outcome in outcomes)
    notes = [f"Measured on this machine: {measurement.job.label}, {measurement.about}." for measurement in chosen]
    shown = paper.model_copy(update={"tables": tables, "measured": documents, "notes": (*paper.notes, *notes)})
    return source.judged(shown), all(outcome.same_numbers for outcome in outcomes)


def _opened(precision: str, device: str, look: Look) -> tuple[Testbed, Profile, Path | None]:
    """A testbed whose machine is measured, its profile, and where to store that (None: nowhere)."""
    testbed = testbed_for(Placement(device), precision)
    profile, path = open_profile(None, True, testbed.identity)
    if warn_if_foreign(profile, path, testbed.identity):
        profile, path = Profile(identity=testbed.identity), None  # figures of two machines never mix in one profile
    if path is not None:
        check_writable(path)
    look(testbed)
    testbed.measure_machine(profile)
    return testbed, profile, path
