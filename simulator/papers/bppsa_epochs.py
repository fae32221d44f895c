"""Predicted epochs of the BPPSA paper: its jobs, planned and simulated like any other, inside the paper's training loop.

The loop (`rnn.py` and `gru.py` of github.com/UofT-EcoSystem/BPPSA-open) copies a batch from pageable memory before each step, which waits
for the GPU. So iterations do not overlap: each is one iteration that the engine simulates alone, plus the host's time to load a batch.
The forward alone is the same loop without backward, where an optimizer without gradients does nothing.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from math import ceil
from typing import Any, NamedTuple

from simulator.engine.costs.model import CostModel
from simulator.engine.simulation import simulate
from simulator.machine.machine import Machine
from simulator.model.job import Job
from simulator.plan.bodies.opcall import ListedOp, OpCall, OpList
from simulator.plan.bodies.scan import JacobianValues, ScanLevel
from simulator.plan.plan import Plan
from simulator.plan.task import FORWARD, Operand, Task
from simulator.plan.tensors import contiguous
from simulator.strategies import registry as strategies

RNN, GRU = "rnn_bitstream", "gru_features"
#: Samples of an epoch, by model; sections 4.1 and 4.2.
SAMPLES = {RNN: 32_000, GRU: 6_705}
BASELINE, SCAN, LINEAR = "baseline", "bppsa:scan=blelloch", "bppsa:scan=linear"
#: The figures of a host lane that table 4 of the paper fits.
FITTED = ("forward_step_s", "backward_step_s", "batch_s")


class Case(NamedTuple):
    """A workload: RNN or GRU, length of the sequences, and mini-batch."""

    model: str
    length: int
    batch: int

    @property
    def job(self) -> Job:
        """The job as the paper trains it: Adam in its for-loop form, the only one in PyTorch 1.1 and 1.2."""
        return Job(self.model, self.batch, image_size=self.length, optimizer="adam", form="for")

    @property
    def iterations(self) -> int:
        """The iterations of one epoch; the last mini-batch may be incomplete."""
        return ceil(SAMPLES[self.model] / self.batch)


class Epoch(NamedTuple):
    """Seconds of one epoch: forward alone, forward with BPPSA's overhead (none in an RNN), training by back-propagation, and by BPPSA.

    `linear_s`: by BPPSA with a linear scan over the same Jacobians; None if it is not known.
    """

    forward_s: float
    forward_overhead_s: float
    baseline_s: float
    bppsa_s: float
    linear_s: float | None = None

    @property
    def of_linear_scan(self) -> "Epoch":
        """The epoch whose scan is linear. One without it is a programming error."""
        assert self.linear_s is not None, "published epochs have no linear scan"
        return self._replace(bppsa_s=self.linear_s)

    @property
    def totals(self) -> tuple[float, float, float]:
        """Forward alone, training by back-propagation, and training by BPPSA: what the paper prints."""
        return self.forward_s, self.baseline_s, self.bppsa_s

    @property
    def backwards(self) -> tuple[float, float]:
        """The backward alone, total minus forward, of back-propagation and of BPPSA, whose overhead counts as forward (appendix G)."""
        return self.baseline_s - self.forward_s, self.bppsa_s - self.forward_overhead_s

    @property
    def speedups(self) -> tuple[float, float]:
        """The speed-up of the whole epoch, and of the backward alone."""
        baseline_s, bppsa_s = self.backwards
        return self.baseline_s / self.bppsa_s, baseline_s / bppsa_s


@dataclass(frozen=True)
class Plans:
    """The plans of one iteration: forward alone, forward with BPPSA's overhead, training by back-propagation, and training by BPPSA.

    `linear`: training by BPPSA with a linear scan.
    """

    forward: Plan
    forward_overhead: Plan
    baseline: Plan
    bppsa: Plan
    linear: Plan

    @staticmethod
    def plan(case: Case, machine: Machine) -> "Plans":
        """Return the plans of a case."""
        parsed = (strategies.parse(text) for text in (BASELINE, SCAN, LINEAR))
        baseline, *scans = (strategy.plan(case.job, machine, None, options) for strategy, options in parsed)
        bppsa, linear = (_with(plan, list(_by_framework(plan.tasks))) for plan in scans)
        return Plans(_forward(baseline), _forward(bppsa), baseline, bppsa, linear)


def _with(plan: Plan, tasks: Sequence[Task]) -> Plan:
    return replace(plan, tasks=tuple(tasks))


def _forward(plan: Plan) -> Plan:
    return _with(plan, [task for task in plan.tasks if task.phase == FORWARD])


def _by_framework(tasks: Iterable[Task]) -> Iterator[Task]:
    """Yield the tasks, with a GRU's Jacobians made by PyTorch's ops as in the paper's `gru.py`, instead of by one kernel."""
    gru: Task | None = None
    for task in tasks:
        if getattr(task.body, "target", "") == "schedcast.gru.default":
            gru = task
        if gru is not None and isinstance(task.body, JacobianValues):
            task = replace(task, body=OpList(tuple(_overhead(gru, task.writes[0])), "gru-jacobians"))
        yield task


def _overhead(gru: Task, jacobians: Operand) -> Iterator[ListedOp]:
    """Yield the ops of `_compute_gates` and `_compute_jcbT`: cuDNN's gates are not accessible (appendix E), so they are computed again."""
    x, _, w_ih, w_hh, *_ = gru.reads
    states = gru.writes[0]
    (steps, batch, _), hidden = x.shape, states.shape[-1]
    samples, gates = steps * batch, 3 * hidden
    state = _value("state", (steps, batch, hidden), x.dtype)
    yield from 2 * [_op("clone", (state,), state)]  # the states before the steps
    for operand, weight in ((x, w_ih), (states, w_hh)):  # one product for each step and sample, with a copy of the weights for each
        width = operand.shape[-1]
        each = _value("weights", (samples, gates, width), x.dtype)
        yield _op("clone", (weight,), each)
        column, result = (_value(name, (samples, rows, 1), x.dtype) for name, rows in (("column", width), ("sums", gates)))
        yield _op("bmm", (each, column), result, 2.0 * samples * gates * width)
    yield from 14 * [_op("add", (state, state), state)]  # the gates: sums, two sigmoids, a tanh and a product
    yield from 13 * [_op("mul", (state, state), state)]  # the diagonals
    yield _op("zeros", (), jacobians)
    yield _op("clone", (state,), jacobians)
    yield from 3 * [_op("mul", (w_hh, state), jacobians)]
    yield from 3 * [_op("add", (jacobians, jacobians), jacobians)]
    yield from 3 * [_op("clone", (jacobians,), jacobians)]  # times a diagonal, in reverse order, and among the scan's inputs


def _value(name: str, shape: tuple[int, ...], dtype: str) -> Operand:
    return Operand(name, shape, contiguous(shape), dtype)


def _op(name: str, reads: tuple[Operand, ...], write: Operand, flops: float = 0.0) -> ListedOp:
    return ListedOp(OpCall(f"aten.{name}.default", flops=flops), reads, (write,))


class Workloads:
    """The plans of cases, each made once. `progress(text)` is called before each case."""

    def __init__(self, machine: Machine, progress: Callable[[str], None] = lambda text: None):
        """`machine`: any machine with one GPU; the plans are the same on all of them."""
        self._machine, self._progress = machine, progress
        self._plans: dict[Case, Plans] = {}

    def plans(self, case: Case) -> Plans:
        """Return the plans of a case."""
        if case not in self._plans:
            self._progress(case.job.label)
            self._plans[case] = Plans.plan(case, self._machine)
        return self._plans[case]


class Epochs:
    """Predicted epochs on one machine."""

    def __init__(self, machine: Machine, workloads: Workloads):
        self._machine, self._workloads = machine, workloads
        self._costs, self._host = CostModel(machine), machine.hosts[0]

    def epoch(self, case: Case) -> Epoch:
        """Predict an epoch of a case."""
        plans = self._workloads.plans(case)
        load_s = self._host.batch_s + case.batch * self._host.sample_s
        return Epoch(*(case.iterations * (load_s + self._iteration_s(getattr(plans, field.name))) for field in fields(plans)))

    def kernels_s(self, case: Case) -> tuple[float, float]:
        """The kernels of an iteration's scan, one after another, of Blelloch's scan and of a linear one."""
        plans = self._workloads.plans(case)
        of_scan, of_linear = (
            sum(c.cold_s for task, c in zip(plan.tasks, self._costs.resolve(plan), strict=True) if isinstance(task.body, ScanLevel))
            for plan in (plans.bppsa, plans.linear)
        )
        return of_scan, of_linear

    def _iteration_s(self, plan: Plan) -> float:
        return simulate(plan, self._machine, self._costs.resolve(plan), iterations=1).step_s


def with_fitted(machine: Machine, seconds: Iterable[float]) -> Machine:
    """Return the machine whose host takes these seconds, in the order of FITTED."""
    figures: dict[str, Any] = dict(zip(FITTED, seconds, strict=True))
    return replace(machine, hosts=tuple(replace(host, **figures) for host in machine.hosts))


def fit(published: Mapping[Case, Epoch], machine: Machine, workloads: Workloads) -> tuple[float, ...]:
    """Fit the figures FITTED of the machine's host, none below 0, by least squares of the relative errors of all published totals."""
    from scipy.optimize import least_squares  # here, because listing the papers does not need it

    def errors(seconds: Sequence[float]) -> list[float]:
        epochs = Epochs(with_fitted(machine, seconds), workloads)
        pairs = ((case, epoch, epochs.epoch(case)) for case, epoch in published.items())
        return [ours / theirs - 1 for _, epoch, own in pairs for ours, theirs in zip(own.totals, epoch.totals, strict=True)]

    start = [getattr(machine.hosts[0], name) for name in FITTED]
    solution = least_squares(errors, start, x_scale=start, bounds=(0, 1), xtol=1e-6)
    return tuple(map(float, solution.x))
