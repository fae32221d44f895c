"""Make the machine and the cost model of a preset. Its costs come from the shipped profile of its GPU, if there is one."""

from simulator.engine.costs.model import CostModel
from simulator.machine.machine import Machine
from simulator.machine.presets import load_machine, product_of
from simulator.machine.this_cpu import ALIAS_LINK
from simulator.model.job import DEFAULT, Job
from traces.documents.profile import Profile
from traces.documents.shipped import shipped_profile


def dense_precision(job: Job, profile: Profile | None) -> str | None:
    """Return the precision of dense kernels on float32 operands (`CostModel`); None for that of the profile, or if it does not matter.

    A GPU's profile says what its kernels were measured in, which PyTorch's default does not change.
    """
    if job.precision == DEFAULT:
        return DEFAULT if profile is None else None
    return job.precision if job.precision in ("fp32", "tf32") else None


def preset_costs(
    job: Job, name: str, devices: int | None = None, link: str = ALIAS_LINK, limit_bytes: float | None = None, partitions: int = 1
) -> tuple[Machine, CostModel]:
    """Return the machine called `name`, as `load_machine` makes it, and its cost model for `job`.

    Raises SchedcastError for an unknown name.
    """
    profile = shipped_profile(product_of(name), job.precision == "tf32")
    machine = load_machine(name, profile, devices, link, partitions).with_memory_limit(limit_bytes)
    return machine, CostModel(machine, profile, dense_precision(job, profile))
