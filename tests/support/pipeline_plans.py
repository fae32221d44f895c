"""Plans of pipelines on machines that are made up, and their costs."""

from simulator.engine.costs.model import CostModel
from simulator.machine.machine import Device, Machine, Memory
from simulator.model.job import Job
from simulator.plan.plan import Plan
from tests.support.jobs import planned
from traces.documents.profile import Identity, KeyCost, Profile, Stats


def plan_pipeline(text: str, job: Job, machine: Machine) -> Plan:
    """A valid plan whose stages are balanced by the costs of the machine's datasheet."""
    return planned(text, job, machine, CostModel(machine))


def devices(count: int) -> Machine:
    """A machine of `count` devices that add no time to tasks, with one memory. Sends are more urgent than ops."""
    each = (Device(f"cpu:{i}", "cpu", 1, {"fp32": 1e12, "fp64": 1e12}, "ram", priority_levels=2) for i in range(count))
    return Machine("made up", tuple(each), (Memory("ram", 1 << 40, 1e15, 1),))


def costs(plan: Plan, machine: Machine) -> CostModel:
    """Each op takes a whole number of microseconds, transfers and what makes microbatches one take nothing."""
    all_s = {key: 1e-6 * (1 + number % 7) for number, key in enumerate(plan.keys(machine))}
    known = {key: KeyCost(Stats.from_samples([s]), Stats.from_samples([s]), op_class="elementwise") for key, s in all_s.items()}
    return CostModel(machine, Profile(identity=Identity(kind="cpu"), costs=known))
