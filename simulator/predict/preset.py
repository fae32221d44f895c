"""The machine and the cost model of a preset, with the costs of the profile that is shipped for its GPU, if there is one."""

from simulator.costs.model import CostModel
from simulator.job import Job
from simulator.machine.machine import Machine
from simulator.machine.presets import load_machine, product_of
from simulator.machine.this_cpu import ALIAS_LINK
from traces.shipped import shipped_profile


def dense_precision(job: Job) -> str | None:
    """What dense kernels use on float32 operands, where the job says so: fp32 or tf32."""
    return job.precision if job.precision in ("fp32", "tf32") else None


def preset_costs(
    job: Job, name: str, devices: int | None = None, link: str = ALIAS_LINK, limit_bytes: float | None = None
) -> tuple[Machine, CostModel]:
    """The machine called `name`, as `load_machine` makes it, and its cost model for `job`. Raises StepcastError for an unknown name."""
    known = shipped_profile(product_of(name), job.precision == "tf32")
    machine = load_machine(name, known, devices, link).with_memory_limit(limit_bytes)
    return machine, CostModel(machine, known, dense_precision(job))
