"""Predicted epochs of the BPPSA paper: the engine simulates the plans of `baseline` and `bppsa` with costs from six fitted constants.

The paper's steps are bound by launches, which no data sheet describes. Six constants (`Constants`) are the times of launches, fitted by
relative least squares on epochs in the paper. The additional time of computing and moving data comes from a task's FLOPs and bytes, the
machine's data sheet and the table of efficiencies; none of it is fitted.

An iteration ends when the loss is on the host, and does not overlap the next one. All times add up, on one stream without a host lane.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from math import ceil
from typing import NamedTuple

import numpy as np

from simulator.engine.costs import efficiencies
from simulator.engine.costs.cost import FITTED, Cost
from simulator.engine.costs.efficiencies import Site
from simulator.engine.simulation import simulated_step_s
from simulator.machine.machine import Machine
from simulator.model.job import Job
from simulator.plan.bodies.host import Host
from simulator.plan.bodies.opcall import ListedOp, OpCall, OpList
from simulator.plan.bodies.scan import JacobianValues, ScanLevel
from simulator.plan.keys import cost_key
from simulator.plan.plan import Plan
from simulator.plan.task import FORWARD, Operand, Segment, Task, Work
from simulator.plan.tensors import contiguous
from simulator.strategies import registry as strategies

RNN, GRU = "rnn_bitstream", "gru_features"
#: Samples of an epoch, by model; sections 4.1 and 4.2.
SAMPLES = {RNN: 32_000, GRU: 6_705}
BASELINE, SCAN = "baseline", "bppsa:scan=blelloch"
_CHAIN = {"schedcast.rnn.default": "forward", "schedcast.gru.default": "forward"}
_CHAIN |= {"schedcast.rnn_backward.default": "backward", "schedcast.gru_backward.default": "backward"}
_GATES = frozenset({"schedcast.rnn_gates.default", "schedcast.gru_gates.default"})
#: A GRU's Jacobians are sums of three terms: written once, then read and written again for each of the other two terms.
_GRU_PASSES = 5


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
    """Seconds of one epoch: forward alone, forward with BPPSA's overhead (none in an RNN), training by back-propagation, and by BPPSA."""

    forward_s: float
    forward_overhead_s: float
    baseline_s: float
    bppsa_s: float

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
class Constants:
    """Seconds that do not depend on the amount of computation. The paper's file says what they are the times of."""

    iteration_s: float
    op_s: float
    forward_step_s: float
    backward_step_s: float
    backward_call_s: float
    launch_s: float


NAMES = tuple(field.name for field in fields(Constants))


def counts(task: Task) -> dict[str, int]:
    """Return how often a task takes the time of each constant, by the constant's name."""
    body = task.body
    target = getattr(body, "target", "")
    direction = _CHAIN.get(target)
    if direction == "forward":
        return {"op_s": 1, "forward_step_s": task.writes[0].shape[0] - 1}
    if direction == "backward":
        return {"op_s": 1, "backward_call_s": 1, "backward_step_s": task.writes[0].shape[0]}
    recurrent_rule = body.rule.of if isinstance(body, JacobianValues) else ""
    own = isinstance(body, ScanLevel) or target in _GATES or recurrent_rule == "rnn"
    return {"launch_s" if own else "op_s": body.launches}


class FittedCosts:
    """Costs of tasks on one machine: the constants, plus the work at the efficiencies of the table."""

    def __init__(self, machine: Machine, constants: Constants):
        device = machine.devices[0]
        self.machine, self._constants = machine, constants
        self._site = Site.of_device(device, machine.memory(device.name), 1.0)

    def resolve(self, plan: Plan) -> list[Cost]:
        """Return one cost per task, in the order of the tasks."""
        return [self.cost(task) for task in plan.tasks]

    def cost(self, task: Task) -> Cost:
        """Return the cost of one task."""
        constant_s = sum(count * getattr(self._constants, name) for name, count in counts(task).items())
        warm_s, cold_s = map(sum, zip(*(self._work_s(work) for work in _works(task)), strict=True))
        return Cost(cost_key(task, self.machine), constant_s + warm_s, constant_s + cold_s, FITTED)

    def _work_s(self, work: Work) -> tuple[float, float]:
        """Return the seconds of computing or of moving data, whichever is longer, for data in the cache and in memory."""
        rows = efficiencies.table()["gpu"]
        terms = efficiencies.terms(self._site, rows.row(work.op_class), work.flops, work.bytes)
        faster = rows.cache_speedup(self._site) if work.bytes <= self._site.cache_bytes else 1.0
        return max(terms.compute_s, terms.memory_s / faster), max(terms.compute_s, terms.memory_s)


def _works(task: Task) -> list[Work]:
    body = task.body
    if body.inner_ops:
        return [step.body.work(step) for step in body.inner_ops]
    work = body.work(task)
    if isinstance(body, JacobianValues) and body.rule.of == "gru":
        return [replace(work, bytes=work.bytes + (_GRU_PASSES - 1) * task.writes[0].bytes)]
    return [work]


@dataclass(frozen=True)
class Plans:
    """The plans of one iteration: forward alone, forward with BPPSA's overhead, training by back-propagation, and training by BPPSA."""

    forward: Plan
    forward_overhead: Plan
    baseline: Plan
    bppsa: Plan

    @staticmethod
    def plan(case: Case, machine: Machine) -> "Plans":
        """Return the plans of a case."""
        parsed = (strategies.parse(text) for text in (BASELINE, SCAN))
        baseline, bppsa = (strategy.plan(case.job, machine, None, options) for strategy, options in parsed)
        bppsa = _with(bppsa, list(_recompute_gates(bppsa.tasks)))
        return Plans(_forward(baseline), _forward(bppsa), baseline, bppsa)


def _with(plan: Plan, tasks: Sequence[Task]) -> Plan:
    return replace(plan, segments=(Segment(tuple(tasks)),))


def _forward(plan: Plan) -> Plan:
    return _with(plan, [task for task in plan.tasks if task.phase == FORWARD])


def _recompute_gates(tasks: Sequence[Task]) -> Iterator[Task]:
    """Yield the tasks, with a GRU's gates computed again after its forward, because those of cuDNN are not accessible (appendix E)."""
    for task in tasks:
        yield task
        if getattr(task.body, "target", "") == "schedcast.gru.default":
            yield _gates_again(task)


def _gates_again(gru: Task) -> Task:
    """Compute the gates of all steps at once: a product of the input, a product of the states, and the activations of their sums."""
    x, _, w_ih, w_hh, b_ih, b_hh = gru.reads
    states, reset_update, new, of_hidden = gru.writes
    steps, batch, features = x.shape
    hidden, rows = states.shape[-1], steps * batch
    wide = (rows, 3 * hidden)
    by_input, by_hidden = (Operand(name, wide, contiguous(wide), x.dtype) for name in ("by_input", "by_hidden"))

    def op(name: str, reads: tuple[Operand, ...], write: Operand, flops: float = 0.0) -> ListedOp:
        return ListedOp(OpCall(f"aten.{name}.default", flops=flops), reads, (write,))

    ops = (
        op("addmm", (b_ih, x, w_ih), by_input, 2.0 * rows * features * wide[1]),
        op("addmm", (b_hh, states, w_hh), by_hidden, 2.0 * rows * hidden * wide[1]),
        op("add", (reset_update, reset_update), reset_update),
        op("sigmoid", (reset_update,), reset_update),
        op("mul", (of_hidden, of_hidden), new),
        op("add", (new, of_hidden), new),
        op("tanh", (new,), new),
    )
    reads, mutated = (x, states, w_ih, w_hh, b_ih, b_hh), (reset_update, new, of_hidden)
    return replace(gru, name=f"{gru.name}/again", body=OpList(ops, "gates-again"), reads=reads, writes=(), mutates=mutated)


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

    def __init__(self, machine: Machine, constants: Constants, workloads: Workloads):
        """The machine gets no host lane, because the host's time is part of the constants."""
        self._machine, self._constants = replace(machine, hosts=()), constants
        self._costs = FittedCosts(self._machine, constants)
        self._workloads = workloads

    def epoch(self, case: Case) -> Epoch:
        """Predict an epoch of a case."""
        plans = self._workloads.plans(case)
        return Epoch(*(case.iterations * self._step_s(getattr(plans, field.name)) for field in fields(plans)))

    def _step_s(self, plan: Plan) -> float:
        whole = _with(plan, (Task("iteration", Host(self._constants.iteration_s), plan.devices[0], phase=FORWARD), *plan.tasks))
        return simulated_step_s(whole, self._machine, self._costs.resolve(whole))


def fit(published: Mapping[Case, Epoch], machine: Machine, workloads: Workloads) -> Constants:
    """Fit the constants, none below 0, by least squares of the relative errors of all published epochs."""
    from scipy.optimize import nnls  # here, because listing the papers does not need it

    work = Epochs(machine, Constants(*(0.0 for _ in NAMES)), workloads)
    rows, targets = [], []
    for case, epoch in published.items():
        plans, times = workloads.plans(case), work.epoch(case)
        for plan, seconds, work_s in zip((plans.forward, plans.baseline, plans.bppsa), epoch.totals, times.totals, strict=True):
            total = Counter({"iteration_s": 1})
            for task in plan.tasks:
                total.update(counts(task))
            rows.append([case.iterations * total[name] / seconds for name in NAMES])
            targets.append(1 - work_s / seconds)
    return Constants(*map(float, nnls(np.array(rows), np.array(targets))[0]))
