"""Plans of the requested strategies and their forecasts, made from the captured graph: nothing of the model's size is allocated yet."""

from collections.abc import Iterable, Mapping

from executors.workers import available_cores
from simulator import strategies
from simulator.costs import CostModel, measurable
from simulator.engine import GRAPH
from simulator.job import Job
from simulator.machine import Machine
from simulator.options import option_values
from simulator.plan import Plan
from simulator.predict import Forecast, forecast
from simulator.this_cpu import ALIAS_LINK, this_cpu
from traces.comparison import ValidationResult
from traces.errors import StepcastError
from traces.profile import Profile

from .operands import geometries


def machine_here(profile: Profile | None, devices: int = 1, link: str = ALIAS_LINK, library: str = "") -> Machine:
    """This machine with the profile's figures; of a profile from a larger machine, no more cores than there are here."""
    cores = None
    if profile is not None and profile.identity.cores:
        cores = min(profile.identity.cores, len(available_cores()))
    return this_cpu(profile, cores, devices, link, library)


def plan_all(
    job: Job, labels: Iterable[str], shared_options: Mapping[str, str], machine: Machine, model: CostModel, mode: str = "eager"
) -> tuple[dict[str, Forecast], list[ValidationResult]]:
    """Forecasts by label of the strategies that can run, and a row for each that cannot be planned or does not fit.

    Raises StepcastError for what is wrong with the job itself.
    """
    job.graph()
    found: dict[str, Forecast] = {}
    skipped: list[ValidationResult] = []
    for label in dict.fromkeys(labels):
        strategy, options = strategies.parse(label, shared_options)
        try:
            predicted = forecast(strategy.plan(job, machine, model, options), machine, model, mode)
            require_memory(predicted)
            found[label] = predicted
        except StepcastError as error:
            skipped.append(skipped_row(strategy.name, option_values(options), str(error)))
    return found, skipped


def skipped_row(strategy: str, options: Mapping[str, object], why: str) -> ValidationResult:
    """The row of a strategy that did not run."""
    given = {"strategy": strategy, "options": dict(options), "measured_runs_s": (), "semantics": {}, "status": f"skipped: {why}"}
    return ValidationResult(**dict.fromkeys(ValidationResult.model_fields) | given)


def require_memory(predicted: Forecast) -> None:
    """Raise StepcastError where a plan needs more memory than its machine has."""
    if not predicted.fits:
        needed, there = max(predicted.peak_bytes.values()), predicted.machine.memories[0].size_bytes
        raise StepcastError(
            f"{predicted.plan.strategy} needs {_gb(needed)}, this machine has {_gb(there)}; choose a smaller batch or --image-size"
        )


def require_memory_together(forecasts: Iterable[Forecast], calibrate: bool) -> None:
    """Raise StepcastError where a validation, which holds all its programs at once, needs more memory than there is.

    Beside one running program and one step of plain PyTorch there are every program's parameters and state (of CUDA graphs, all that they
    ever use), and with `calibrate` the operands of the keys that are measured meanwhile.
    """
    forecasts = list(forecasts)
    machine = forecasts[0].machine
    peaks = [max(found.peak_bytes.values()) for found in forecasts]
    held = [peak if f.timeline.mode == GRAPH else _carried_bytes(f.plan) for f, peak in zip(forecasts, peaks, strict=True)]
    needed = 2 * max(peaks) + sum(held)
    if calibrate:
        needed += _operand_bytes((found.plan for found in forecasts), machine)
    there = machine.memories[0].size_bytes
    if needed > there:
        raise StepcastError(
            f"comparing {len(forecasts)} strategies at once needs {_gb(needed)}, this machine has {_gb(there)};"
            " choose a smaller batch, or fewer strategies with --strategy"
        )


def _carried_bytes(plan: Plan) -> int:
    return sum(plan.storages[name].bytes for name in plan.carried)


def _operand_bytes(plans: Iterable[Plan], machine: Machine) -> int:
    """Bytes of the tensors that `sampler.Sampler` holds for the keys of `plans`: pooled by geometry, and a copy of each carried one."""
    copies = 0
    pooled: dict[tuple, int] = {}
    keys: set[str] = set()
    for plan in plans:
        for key, task in plan.keys(machine).items():
            if key in keys or not measurable(task):
                continue
            keys.add(key)
            for name, geometry in geometries(task, plan).items():
                size = pooled[geometry] = plan.values[name].operand().bytes
                copies += size if plan.values[name].storage in plan.carried else 0
    return copies + sum(pooled.values())


def _gb(count: int) -> str:
    return f"{count / 1e9:.2f} GB"
