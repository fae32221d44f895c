"""Plans of the requested strategies and their forecasts, made from the captured graph: nothing of the model's size is allocated yet."""

from collections.abc import Iterable, Mapping

from calibrate.operands import geometries
from executors.cpu.workers import available_cores
from simulator.costs.model import CostModel, measurable
from simulator.engine.simulation import GRAPH
from simulator.job import Job
from simulator.machine.machine import Machine, Memory
from simulator.machine.this_cpu import ALIAS_LINK, this_cpu
from simulator.memory.over_time import carried_bytes
from simulator.options import option_values
from simulator.plan.plan import Plan
from simulator.predict.explain import overfull_words
from simulator.predict.forecast import Forecast, forecast
from simulator.strategies import registry as strategies
from traces import units
from traces.comparison import ValidationResult
from traces.errors import StepcastError
from traces.profile import Profile


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
    """Raise StepcastError where a plan needs more of a memory than its machine has, with what needs it."""
    for memory in predicted.overfull:
        raise StepcastError(
            f"{predicted.plan.strategy} needs {units.memory(predicted.memory_bytes[memory.name])}{_where(memory, predicted.machine)},"
            f" {_there(memory, predicted.machine)}: {'; '.join(overfull_words(predicted, memory))};"
            " choose a smaller batch or --image-size"
        )


def require_memory_together(forecasts: Iterable[Forecast], calibrate: bool) -> None:
    """Raise StepcastError where a validation, which holds all its programs at once, needs more of a memory than there is.

    Beside one running program there are every program's parameters and state (of CUDA graphs, all that they ever use); in the first
    device's memory one step of plain PyTorch too, and with `calibrate` the operands of the keys that are measured meanwhile.
    """
    forecasts = list(forecasts)
    machine = forecasts[0].machine
    first = machine.memory(machine.devices[0].name)
    for memory in machine.memories:
        peaks = [found.memory_bytes.get(memory.name, 0) for found in forecasts]
        held = [
            peak if f.timeline.mode == GRAPH else _carried_bytes(f.plan, machine, memory) for f, peak in zip(forecasts, peaks, strict=True)
        ]
        needed = max(peaks) + sum(held)
        if memory is first:
            needed += max(peaks)
            needed += _operand_bytes((found.plan for found in forecasts), machine) if calibrate else 0
        if needed > memory.size_bytes:
            raise StepcastError(
                f"comparing {len(forecasts)} strategies at once needs {units.memory(needed)}{_where(memory, machine)},"
                f" {_there(memory, machine)}; choose a smaller batch, or fewer strategies with --strategy"
            )


def _where(memory: Memory, machine: Machine) -> str:
    """Which of several memories."""
    return f" in {memory.name}" if len(machine.memories) > 1 else ""


def _there(memory: Memory, machine: Machine) -> str:
    return f"{'it' if len(machine.memories) > 1 else 'this machine'} has {units.memory(memory.size_bytes)}"


def _carried_bytes(plan: Plan, machine: Machine, memory: Memory) -> int:
    return sum(size for place, size in carried_bytes(plan).items() if machine.memory_name(place) == memory.name)


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
