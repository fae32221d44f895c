"""Epochs of the BPPSA paper: the plans of `baseline` and `bppsa`, run by the engine, with costs of a few fitted constants.

The paper's steps are bound by launches, of which no data sheet tells: six constants (`Constants`) say what those take, fitted by relative
least squares on epochs that the paper printed. What a task computes and moves on top comes from its own FLOPs and bytes, the machine's data
sheet and the table of efficiencies; nothing of that is fitted.

An iteration ends with the loss on the host, and does not overlap the next one: everything adds up, on one stream without a host lane.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import NamedTuple

import numpy as np
from scipy.optimize import nnls

from simulator.bodies.host import Host
from simulator.bodies.jacobian_values import JacobianValues
from simulator.bodies.opcall import OpCall
from simulator.bodies.oplist import OpList, Step
from simulator.bodies.scan_level import ScanLevel
from simulator.costs import efficiencies
from simulator.costs.cost import FITTED, Cost
from simulator.costs.efficiencies import Site
from simulator.engine.simulation import simulate
from simulator.machine.machine import Machine
from simulator.plan.keys import cost_key
from simulator.plan.plan import Plan
from simulator.plan.task import FORWARD, Operand, Segment, Task, Work
from simulator.plan.views import contiguous
from simulator.reproduce.bppsa_cases import Case, Epoch
from simulator.strategies import registry as strategies

BASELINE, SCAN = "baseline", "bppsa:scan=blelloch"
_CHAIN = {"stepcast.rnn.default": "forward", "stepcast.gru.default": "forward"}
_CHAIN |= {"stepcast.rnn_backward.default": "backward", "stepcast.gru_backward.default": "backward"}
_GATES = frozenset({"stepcast.rnn_gates.default", "stepcast.gru_gates.default"})
#: A GRU's Jacobians are sums of three terms: written once, then read and written for each of the other two.
_GRU_PASSES = 5


@dataclass(frozen=True)
class Constants:
    """Seconds that do not depend on how much is computed."""

    iteration_s: float
    """Of every iteration: Python, loading data, reading the loss."""
    op_s: float
    """Of every op that the framework launches."""
    forward_step_s: float
    """Of every step of a recurrent layer's forward in cuDNN."""
    backward_step_s: float
    """Of every step of its backward in cuDNN."""
    backward_call_s: float
    """Of calling that backward, beside its steps."""
    launch_s: float
    """Of every kernel of BPPSA: a level of the scan, Jacobians, and what its results are multiplied by."""


NAMES = tuple(field.name for field in fields(Constants))
NOTHING = Constants(*(0.0 for _ in NAMES))


def counts(task: Task) -> dict[str, int]:
    """How many of each constant a task takes, by name."""
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
    """Costs of tasks on one machine: constants, and work at the table's efficiencies."""

    def __init__(self, machine: Machine, constants: Constants):
        device = machine.devices[0]
        self.machine, self._constants = machine, constants
        self._site = Site.of(device, machine.memory(device.name), 1.0)

    def resolve(self, plan: Plan) -> list[Cost]:
        """One cost per task, in their order."""
        return [self.cost(task) for task in plan.tasks]

    def cost(self, task: Task) -> Cost:
        """The cost of one task; one of the host brings its own time."""
        constant_s = sum(count * getattr(self._constants, name) for name, count in counts(task).items())
        warm_s, cold_s = map(sum, zip(*(self._work_s(work) for work in _works(task)), strict=True))
        return Cost(cost_key(task, self.machine), constant_s + warm_s, constant_s + cold_s, FITTED)

    def _work_s(self, work: Work) -> tuple[float, float]:
        """Computing or moving data, whichever takes longer; data from the cache, or from memory. Launches are constants."""
        rows = efficiencies.table()["gpu"]
        part = efficiencies.terms(self._site, rows.row(work.op_class), work.flops, work.bytes)
        faster = rows.faster(self._site) if work.bytes <= self._site.cache_bytes else 1.0
        return max(part.compute_s, part.memory_s / faster), max(part.compute_s, part.memory_s)


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
    """What one iteration does: forward alone, forward with what BPPSA adds to it, and training either way."""

    forward: Plan
    forward_overhead: Plan
    baseline: Plan
    bppsa: Plan

    @staticmethod
    def of(case: Case, machine: Machine) -> "Plans":
        """The plans of a case."""
        baseline, bppsa = (_planned(case, text, machine) for text in (BASELINE, SCAN))
        bppsa = _with(bppsa, list(_recomputing(bppsa.tasks)))
        return Plans(_forward(baseline), _forward(bppsa), baseline, bppsa)


def _planned(case: Case, text: str, machine: Machine) -> Plan:
    strategy, options = strategies.parse(text)
    return strategy.plan(case.job, machine, None, options)


def _with(plan: Plan, tasks: Sequence[Task]) -> Plan:
    return replace(plan, segments=(Segment(tuple(tasks)),))


def _forward(plan: Plan) -> Plan:
    return _with(plan, [task for task in plan.tasks if task.phase == FORWARD])


def _recomputing(tasks: Sequence[Task]) -> Iterator[Task]:
    """The tasks, with a GRU's gates computed once more behind its forward: cuDNN's are out of reach (appendix E)."""
    for task in tasks:
        yield task
        if getattr(task.body, "target", "") == "stepcast.gru.default":
            yield _gates_again(task)


def _gates_again(gru: Task) -> Task:
    """The gates of all steps side by side: two products, from the input and from the states, and what bends their sums."""
    x, _, w_ih, w_hh, b_ih, b_hh = gru.reads
    states, reset_update, new, of_hidden = gru.writes
    steps, batch, features = x.shape
    hidden, rows = states.shape[-1], steps * batch
    wide = (rows, 3 * hidden)
    by_input, by_hidden = (Operand(name, wide, contiguous(wide), x.dtype) for name in ("by_input", "by_hidden"))

    def op(name: str, reads: tuple[Operand, ...], write: Operand, flops: float = 0.0) -> Step:
        return Step(OpCall(f"aten.{name}.default", flops=flops), reads, (write,))

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


class Times(NamedTuple):
    """Predicted seconds of one epoch. `forward_overhead_s`: the forward with what BPPSA adds to it (the same for an RNN)."""

    forward_s: float
    forward_overhead_s: float
    baseline_s: float
    bppsa_s: float

    @property
    def speedup(self) -> float:
        """Of the whole epoch."""
        return self.baseline_s / self.bppsa_s

    @property
    def backward_speedup(self) -> float:
        """Of what comes on top of the forward, BPPSA's overhead left out, as the paper derives it (appendix G)."""
        return (self.baseline_s - self.forward_s) / (self.bppsa_s - self.forward_overhead_s)


class Workloads:
    """The plans of cases, each made once. `told(text)` is called before each."""

    def __init__(self, machine: Machine, told: Callable[[str], None] = lambda text: None):
        """`machine`: any with one GPU; plans are the same on all."""
        self._machine, self._told = machine, told
        self._found: dict[Case, Plans] = {}

    def plans(self, case: Case) -> Plans:
        """Of one case."""
        if case not in self._found:
            self._told(case.job.label)
            self._found[case] = Plans.of(case, self._machine)
        return self._found[case]


class Epochs:
    """Predicted epochs on one machine."""

    def __init__(self, machine: Machine, constants: Constants, workloads: Workloads):
        """No host lane: what the host takes is in the constants."""
        self._machine, self._constants = replace(machine, hosts=()), constants
        self._costs = FittedCosts(self._machine, constants)
        self._workloads = workloads

    def of(self, case: Case) -> Times:
        """One case's epoch."""
        plans = self._workloads.plans(case)
        return Times(*(case.iterations * self._step_s(getattr(plans, field.name)) for field in fields(plans)))

    def _step_s(self, plan: Plan) -> float:
        begun = _with(plan, (Task("iteration", Host(self._constants.iteration_s), plan.devices[0], phase=FORWARD), *plan.tasks))
        return simulate(begun, self._machine, self._costs.resolve(begun)).step_s


def fit(published: Mapping[Case, Epoch], machine: Machine, workloads: Workloads) -> Constants:
    """The constants, none below 0, with the least squares of relative errors of all epochs of `published`."""
    work = Epochs(machine, NOTHING, workloads)
    rows, left = [], []
    for case, epoch in published.items():
        plans, times = workloads.plans(case), work.of(case)
        known = ((plans.forward, epoch.forward_s, times.forward_s), (plans.baseline, epoch.baseline_s, times.baseline_s))
        for plan, seconds, work_s in (*known, (plans.bppsa, epoch.bppsa_s, times.bppsa_s)):
            total = Counter({"iteration_s": 1})
            for task in plan.tasks:
                total.update(counts(task))
            rows.append([case.iterations * total[name] / seconds for name in NAMES])
            left.append(1 - work_s / seconds)
    return Constants(*map(float, nnls(np.array(rows), np.array(left))[0]))
