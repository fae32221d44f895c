"""The strategies that a job has on a machine: some need several devices, and BPPSA refuses what is no chain."""

from simulator.job import Job
from simulator.machine.machine import Machine
from simulator.plan.plan import Plan
from simulator.strategies import registry as strategies
from traces.errors import StepcastError


def default_plans(job: Job, machine: Machine) -> dict[str, Plan]:
    """Every strategy's default plan, by name."""
    found = {}
    for name in strategies.names(len(machine.devices)):
        strategy = strategies.get(name)
        try:
            found[name] = strategy.plan(job, machine, None, strategy.options())
        except StepcastError as error:
            if not str(error).startswith("bppsa: "):
                raise
    return found
