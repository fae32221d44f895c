"""Synchronous 1F1B: each stage alternates between a forward and a backward (PipeDream-flush, Narayanan et al., 2021)."""

from simulator.engine.costs.cost import PlanCosts
from simulator.machine.machine import Machine
from simulator.model.job import Job
from simulator.model.workloads.registry import is_language_model
from simulator.plan.plan import Plan
from simulator.strategies.pipeline import orders, planning
from simulator.strategies.pipeline.planning import FUSED, combined, microbatch_texts, of_language_models, synchronous

NAME = "1f1b"
FAMILY = "pipelines"
ABOUT = "pipeline of stages: one forward, one backward, so that a stage stores few activations; the update comes at the end"
USES_COSTS = True
LEAST_DEVICES = 2
FOR_LANGUAGE_MODELS = True


Options = planning.ScheduledOptions
portion = planning.portion


def candidates(job: Job, machine: Machine) -> tuple[str, ...]:
    """Numbers of microbatches, forwards that are repeated, and backward-fusion; of language models stages, divided layers and replicas."""
    if is_language_model(job.model):
        return of_language_models(job, machine)
    return combined(microbatch_texts(job, machine), ("rematerialize=on",), FUSED)


def plan(job: Job, machine: Machine, costs: PlanCosts | None, options: Options) -> Plan:
    """One stage per device. Stage s of S stores the activations of at most S - s microbatches; the bubble is that of GPipe."""
    return synchronous(NAME, job, machine, costs, options, orders.one_f_one_b_order)
