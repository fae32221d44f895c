"""The machine and the costs of a preset, from its shipped profile if it has one, and forecasts on a machine other than this one."""

from collections.abc import Mapping
from dataclasses import fields, replace

from simulator.engine.costs.efficiencies import DENSE, precision_of_key
from simulator.engine.costs.model import CostModel
from simulator.engine.simulation import EAGER
from simulator.machine.machine import Machine
from simulator.machine.presets import PYTORCH, load_machine, product_of
from simulator.machine.this_cpu import ALIAS_LINK
from simulator.model.job import DEFAULT, Job, product_precision
from simulator.plan.plan import Plan
from simulator.predict.forecast import Forecast
from simulator.predict.planned import forecast_of
from simulator.predict.target import Target
from simulator.strategies import registry as strategies
from traces.documents.profile import Profile
from traces.documents.shipped import shipped_profile
from traces.errors import SchedcastError


def dense_precision(job: Job, profile: Profile | None) -> str | None:
    """Return the precision of dense kernels on float32 operands (`CostModel`); None for that of the profile, or if it does not matter.

    A GPU's profile says what its kernels were measured in, which PyTorch's default does not change.
    """
    if job.precision == DEFAULT:
        return DEFAULT if profile is None else None
    return job.precision if job.precision in ("fp32", "tf32") else None


def preset_target(
    job: Job,
    name: str,
    devices: int | None = None,
    link: str = ALIAS_LINK,
    limit_bytes: float | None = None,
    partitions: int = 1,
    host: str = PYTORCH,
    mode: str = EAGER,
) -> Target:
    """Return the machine called `name`, as `load_machine` makes it, with its costs for `job`.

    A shipped profile prices the models that it was calibrated with, in their precision and on one GPU: beyond what it has seen, the table,
    fitted on the kernels of many GPUs, is nearer. Raises SchedcastError for an unknown name.
    """
    machine = load_machine(name, None, devices, link, partitions, host)
    profile = profile_of_preset(name, machine, job.precision == "tf32", partitions)
    if profile is not None and _covers(profile, job):
        machine = load_machine(name, profile, devices, link, partitions, host)
    else:
        profile = None
    machine = machine.with_memory_limit(limit_bytes)
    return Target(machine, CostModel(machine, profile, dense_precision(job, profile)), mode)


def profile_of_preset(name: str, machine: Machine, tf32: bool = False, partitions: int = 1) -> Profile | None:
    """The shipped profile of the preset called `name`, made as `machine`. None if there is none, and for several GPUs.

    Raises UnusableFileError if it cannot be read.
    """
    return shipped_profile(product_of(name), tf32) if len(machine.devices) == partitions else None


def _covers(profile: Profile, job: Job) -> bool:
    """Whether a profile has products or convolutions of the job's model in the job's precision; that of TF32 is a profile of its own."""
    precision = product_precision(job.precision)
    asked = precision if precision in ("bf16", "fp16", "fp64") else "fp32"
    return any(
        cost.model == job.model and cost.op_class in DENSE and precision_of_key(key, cost.op_class, "fp32") == asked
        for key, cost in profile.costs.items()
    )


def forecast_elsewhere(text: str, shared: Mapping[str, str], trained: Plan | None, job: Job, target: Target) -> Forecast:
    """Return the forecast on another machine of the strategy `text`, whose plan `trained` is what trains on this machine.

    The model is cut where the trained plan cuts it, whatever cuts would balance the other machine, since the cuts decide what is learnt.
    A pipeline that is simulated on one device has its devices there. Raises SchedcastError if the machine cannot run it.
    """
    strategy, options = strategies.parse(text, shared)
    known = {field.name: field.default for field in fields(options)}
    changes = {}
    if "placement" in known and trained is not None and trained.semantics.get("placement"):
        changes["placement"] = trained.semantics["placement"]
    if getattr(options, "on", None) == "simulated":
        changes["on"] = known["on"]
    try:
        options = replace(options, **changes)
        predicted = forecast_of(lambda few: strategy.plan(job.in_few(few), target.machine, target.costs, options), target)
    except SchedcastError as error:
        raise SchedcastError(f"--predict-on {target.machine.name}: {error}", error.code) from error
    if not predicted.fits:
        raise SchedcastError(
            f"--predict-on {target.machine.name}: {text} does not fit its memory; choose a smaller batch or another machine"
        )
    return predicted
