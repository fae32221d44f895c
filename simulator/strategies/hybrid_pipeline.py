"""Hybrid training: some iterations in a pipeline with stale weights, then plain training on the same stages.

"Pipelined Training with Stale Weights of Deep CNNs" (2019) trains this way to recover the accuracy that stale weights may cost.
"""

from dataclasses import dataclass, replace
from typing import Literal

from simulator.engine.costs.cost import PlanCosts
from simulator.machine.machine import Machine
from simulator.model.job import Job
from simulator.plan.plan import Plan
from simulator.strategies import stale_pipeline
from simulator.strategies.options import option_values
from simulator.strategies.pipeline import orders
from simulator.strategies.pipeline.planning import DrainingOptions, cut, microbatches_in, named, scheduled
from simulator.strategies.runs import run_of
from traces.errors import SchedcastError

NAME = "hybrid-pipeline"
FAMILY = "pipelines"
ABOUT = "a share of the iterations as stale-pipeline runs them, the others as a synchronous pipeline of the same stages"
USES_COSTS = True
LEAST_DEVICES = 2
CANDIDATES = ("then=gpipe", "then=1f1b")

#: Iterations of a run at most.
_MOST_ITERATIONS = 10**9
#: The orders of the synchronous part.
_ORDERS = {"model-parallel": orders.gpipe_order, "gpipe": orders.gpipe_order, "1f1b": orders.one_f_one_b_order}


@dataclass(frozen=True)
class Options(stale_pipeline.Options):
    """How the model is cut, where the stages run, and when the run switches to synchronous training."""

    pipelined: float = 0.5
    """The share of the iterations that are pipelined with stale weights, more than 0 and less than 1."""
    iterations: int = 100
    """Iterations of the whole run; `schedcast run` takes them from --steps."""
    then: Literal["model-parallel", "gpipe", "1f1b"] = "model-parallel"
    """What the other iterations follow; `microbatches` is the number of its microbatches."""

    def __post_init__(self):
        """Raise SchedcastError if one of the two parts would have no iteration."""
        super().__post_init__()
        if not 0 < self.pipelined < 1:
            raise SchedcastError(
                f"pipelined is {self.pipelined:g}; expected a share of the iterations between 0 and 1, such as 0.67; use stale-pipeline or"
                f" {self.then} for all of them"
            )
        if not 2 <= self.iterations <= _MOST_ITERATIONS:
            raise SchedcastError(f"{NAME} has two parts, iterations is {self.iterations}; expected 2 to {_MOST_ITERATIONS:,}")

    @property
    def before_switch(self) -> int:
        """Iterations of the pipeline with stale weights."""
        return min(max(1, round(self.pipelined * self.iterations)), self.iterations - 1)


def plan(job: Job, machine: Machine, costs: PlanCosts | None, options: Options) -> Plan:
    """Return the stale pipeline's plan and then the synchronous one's, on the same devices. Raises SchedcastError as both do."""
    forward, backward = stale_pipeline.devices(NAME, machine, options)
    stale = stale_pipeline.stale(
        NAME, job, machine, costs=costs, options=replace(options, microbatches=0), forward=forward, backward=backward
    )
    then = _then(job, machine, costs, replace(options, placement=str(stale.semantics["placement"])), forward, backward)
    switch = options.before_switch
    semantics = dict(stale.semantics) | {"stale_iterations": switch, "then": options.then, "microbatches": then.semantics["microbatches"]}
    return run_of(NAME, [(stale, switch), (then, options.iterations - switch)], option_values(options), semantics)


def _then(
    job: Job, machine: Machine, costs: PlanCosts | None, options: Options, forward: tuple[str, ...], backward: tuple[str, ...]
) -> Plan:
    """The synchronous part. Parameters stay where they are, so its placement, in `options`, must be that of the first part."""
    stages = len(forward)
    microbatches = 1 if options.then == "model-parallel" else microbatches_in(job, options, stages)
    with named(NAME):
        cut_graph = cut(job, machine, costs, options, stages, microbatches)
    order = _ORDERS[options.then](stages, microbatches)
    return scheduled(
        NAME, job, machine, options=DrainingOptions(fold="off"), schedule=order, devices=forward, cut_graph=cut_graph, backward=backward
    )
