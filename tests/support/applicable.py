"""Strategies as the registry knows them, and their plans for the jobs that they accept. New strategies are included by themselves."""

from simulator.machine.machine import HOST, Device, Link, Machine, Memory
from simulator.model.job import Job
from simulator.plan.plan import Plan
from simulator.strategies import registry as strategies
from traces.errors import SchedcastError


def specs(devices: int | None = None) -> list[str]:
    """`NAME[:option=on]` of every strategy: its default options, and each switch that is off by default turned on.

    `devices`: leave out strategies that need more devices than this.
    """
    return [
        spec
        for name in strategies.names(devices)
        for spec in (name, *(f"{name}:{option}=on" for option, _, default in strategies.get(name).option_docs() if default is False))
    ]


def plan_unless_refused(spec: str, job: Job, machine: Machine) -> Plan | None:
    """The plan of a strategy, or None if the strategy refuses the model. Such a refusal begins with the strategy's name and a colon."""
    strategy, options = strategies.parse(spec)
    try:
        return strategy.plan(job, machine, None, options)
    except SchedcastError as error:
        if not str(error).startswith(f"{strategy.name}: "):
            raise
        return None


def default_plans(job: Job, machine: Machine) -> dict[str, Plan]:
    """The default plan of every strategy that runs the job on the machine, by name."""
    plans = {name: plan_unless_refused(name, job, machine) for name in strategies.names(len(machine.devices))}
    return {name: plan for name, plan in plans.items() if plan is not None}


def core_groups(devices: int = 2, link_bytes_per_s: float = 0.0) -> Machine:
    """A CPU with `devices` devices of one core each; with a rate, links of that rate join them and the host."""
    names = [f"cpu:{i}" for i in range(devices)]
    cores = tuple(Device(name, "cpu", 1, {"fp32": 1e11}, "ram", priority_levels=64) for name in names)
    links = [Link(a, b, 0.0, link_bytes_per_s) for a in (*names, HOST) for b in (*names, HOST) if a != b and link_bytes_per_s]
    return Machine("groups", cores, (Memory("ram", 8 << 30, 2e10, 32 << 20),), links=tuple(links))
