"""Plans of the requested strategies and their forecasts, made from the captured graph: nothing of the model's size is allocated yet.

From the forecasts follow the memory that a comparison needs, and how long a validation or a calibration will take.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from calibrate.numerics import STEPS
from calibrate.operands import geometries
from calibrate.testbed import Progress, Testbed, drained_periods, units_in_round
from executors.program import WARM_UP
from simulator.engine.costs.cost import MEASURED, Cost
from simulator.engine.costs.model import CostModel, measurable
from simulator.engine.memory.contents import holders_words, shortfall_words
from simulator.engine.memory.over_time import carried_bytes, excess_bytes, memory_needs
from simulator.engine.scenario import GRAPH
from simulator.machine.machine import Machine, Memory
from simulator.model.job import Job
from simulator.plan.plan import Plan
from simulator.predict.answers import Answers
from simulator.predict.forecast import Forecast, answer
from simulator.predict.largest_batch import Fitting
from simulator.predict.target import Target
from simulator.strategies import registry as strategies
from traces import units
from traces.documents.comparison import ValidationResult
from traces.documents.profile import Profile
from traces.errors import Code, Refusal, SchedcastError

#: Seconds to measure one key on a GPU (an estimate), and to sample one on a CPU, without running it twice: clearing the caches and the
#: reference kernel (measured on an AMD EPYC).
GPU_KEY_S, CPU_SAMPLE_S = 0.05, 1e-3


def validation_seconds(
    forecasts: Mapping[str, Forecast], testbed: Testbed, rounds: int, calibrate: bool, parallel: Sequence[Forecast] = ()
) -> float:
    """Return the seconds of a validation of `forecasts` by label, which include the baseline, in `rounds` rounds on `testbed`.

    Every program takes steps for its numerics, its peak memory, its warm-up and the rounds. The baseline's program is run twice, and plain
    PyTorch, assumed to take as long, in addition to them, and so are its loops of several processes (`parallel`). With `calibrate`, an
    interleaved testbed samples the keys of each program, warm and cold, before and after its steps of a round; others measure each missing
    key once.
    """
    base = forecasts["baseline"]
    host = base.machine.host(base.plan.devices[0]) if base.timeline.mode == GRAPH else None
    unit = 1 if host is None else host.graph_iterations
    each = [(forecast.timeline.step_s, drained_periods(forecast.plan, unit)) for forecast in (*forecasts.values(), base)]
    once = STEPS + (WARM_UP + 1) + (WARM_UP + unit)
    plain_steps = STEPS + WARM_UP + rounds * testbed.plain_steps_per_round
    total_s = sum((once + rounds * (units_in_round(testbed, step_s * unit) * unit + drains)) * step_s for step_s, drains in each)
    total_s += plain_steps * sum(loop.timeline.step_s for loop in (base, *parallel))
    if not calibrate:
        return total_s
    keys = [_keys(forecast) for forecast in forecasts.values()]
    every = {key: cost for own in keys for key, cost in own.items()}
    if not testbed.interleaved:
        return total_s + GPU_KEY_S * sum(cost.source != "measured" for cost in every.values())
    turns = [*keys, _keys(base)]
    between = [before | after for before, after in pairwise([turns[-1], *turns])]
    return total_s + _sample_s(every) + rounds * sum(map(_sample_s, between))


def calibration_seconds(forecasts: Iterable[Forecast], rounds: int) -> float:
    """Return the seconds in which a CPU's calibration samples the keys of `forecasts` that are not measured yet, `rounds` times each."""
    missing = {key: cost for f in forecasts for key, cost in _keys(f).items() if cost.source != MEASURED}
    return rounds * _sample_s(missing)


def _keys(forecast: Forecast) -> dict[str, Cost]:
    """The costs of the forecast's keys that are measured."""
    return {cost.key: cost for task, cost in zip(forecast.plan.every_task, forecast.costs, strict=True) if measurable(task)}


def _sample_s(keys: Mapping[str, Cost]) -> float:
    """Seconds to sample each key once."""
    return sum(cost.warm_s + cost.cold_s + CPU_SAMPLE_S for cost in keys.values())


def plans_of(forecasts: Iterable[Forecast]) -> list[Plan]:
    """Every plan that the forecasts' runs follow."""
    return [plan for forecast in forecasts for plan in forecast.plan.sequence]


#: Strategies whose plan depends on costs plan again after their missing cost keys were measured, at most this many times: after rough
#: measurements (`PREVIEWS`, on an interleaved testbed), or after calibrations.
PREVIEWS, CALIBRATIONS = 4, 2


def plan_calibrated(
    testbed: Testbed,
    job: Job,
    labels: Iterable[str],
    shared_options: Mapping[str, str],
    profile: Profile,
    calibrate: bool,
    save_to: Path | None,
    progress: Progress,
    announce: Callable[[Mapping[str, Forecast]], None] = lambda forecasts: None,
    every: bool = False,
) -> tuple[dict[str, Forecast], dict[str, Refusal]]:
    """Plan the strategies with measured costs. Returns by label the forecasts, and why other strategies cannot run.

    Strategies plan with costs. So once missing cost keys are measured they plan again, and the new plan may have other missing keys. An
    `interleaved` testbed measures all keys later, in the rounds of the validation: here only the strategies whose plan depends on costs
    have theirs measured, roughly; with `every` all have, once, for a comparison of many plans. Without `calibrate` nothing is measured.
    `announce` receives the first forecasts, before anything is measured for them.
    """

    def plan() -> tuple[dict[str, Forecast], dict[str, Refusal], Machine]:
        machine = testbed.machine(profile)
        return *plan_all(job, labels, shared_options, Target(machine, CostModel(machine, profile), testbed.mode)), machine

    labels = list(labels)
    forecasts, refused, machine = plan()
    announce(forecasts)
    if calibrate and not testbed.interleaved:
        for _ in range(CALIBRATIONS):
            if testbed.calibrate(plans_of(forecasts.values()), machine, profile, save_to, progress):
                forecasts, refused, machine = plan()
    elif calibrate:
        for _ in range(1 if every else PREVIEWS):
            dependent = [f for label, f in forecasts.items() if every or strategies.get(label.partition(":")[0]).uses_costs]
            if not dependent or not testbed.preview(plans_of(dependent), machine, profile):
                break
            forecasts, refused, machine = plan()
    return forecasts, refused


def plan_all(
    job: Job, labels: Iterable[str], shared_options: Mapping[str, str], target: Target
) -> tuple[dict[str, Forecast], dict[str, Refusal]]:
    """Plan the strategies. Returns by label the forecasts, and why other strategies cannot be planned or do not fit.

    Raises SchedcastError if the job itself is unusable, or a file that a strategy should follow.
    """
    job.graph()
    forecasts: dict[str, Forecast] = {}
    refused: dict[str, Refusal] = {}
    for label in dict.fromkeys(labels):
        strategies.parse(label, shared_options)  # a name or an option that does not exist is a mistake of the request
        predicted = answer(job, label, target, shared_options, runs=True)
        own = Answers(job, target, {label: predicted}, shared_options)
        if isinstance(predicted, Refusal):
            if predicted.code is Code.FILE:  # the user named the file: this is a mistake of the request
                raise predicted.error
            refused[label] = own.refusal(label) or predicted
        elif predicted.fits:
            forecasts[label] = predicted
        else:
            refused[label] = does_not_fit(predicted, own.fitting(label))
    return forecasts, refused


def skipped_row(strategy: str, options: Mapping[str, object], why: str) -> ValidationResult:
    """The row of a strategy that did not run."""
    fields: dict[str, Any] = dict.fromkeys(name for name, field in ValidationResult.model_fields.items() if field.is_required())
    fields |= {"strategy": strategy, "options": dict(options), "measured_runs_s": (), "semantics": {}, "status": f"skipped: {why}"}
    return ValidationResult(**fields)


def does_not_fit(predicted: Forecast, instead: Fitting) -> Refusal:
    """The refusal to run a plan that needs more memory than its machine has. `instead`: what fits."""
    shortfall, holders = shortfall_words(predicted.memories), holders_words(predicted.at_peak)
    return Refusal(Code.MEMORY, "; ".join([f"{predicted.plan.strategy} does not fit: {shortfall}", holders, *instead.words]))


def require_memory_together(forecasts: Iterable[Forecast], calibrate: bool, parallel: Sequence[Forecast] = ()) -> None:
    """Raise SchedcastError if a validation, which has all its programs in memory together, needs more memory than its machine has.

    A forecast that is given twice has two programs. The parameters and state of all programs are allocated (with CUDA graphs, or if tasks
    lag, so that iterations are unfinished between turns, their whole peak), and one of them runs. The first device's memory also has a step
    of plain PyTorch and, with `calibrate`, the operands of the keys measured meanwhile. `parallel`: PyTorch's other loops.
    """
    forecasts = list(forecasts)
    machine = forecasts[0].machine
    first = machine.memory(machine.devices[0].name)
    held: dict[str, dict[str, int]] = {}
    for memory in machine.memories:
        peaks = [f.memory_bytes.get(memory.name, 0) for f in forecasts]
        resident = [
            peak if f.timeline.mode == GRAPH or _lags(f.plan) else _carried_bytes(f.plan, f.machine, memory)
            for f, peak in zip(forecasts, peaks, strict=True)
        ]
        added = max(peak - own for peak, own in zip(peaks, resident, strict=True))
        held[memory.name] = {"parameters and state of all strategies": sum(resident), "a running one besides": added}
        held[memory.name]["PyTorch's other loops"] = sum(f.memory_bytes.get(memory.name, 0) for f in parallel)
        if memory is first:
            held[memory.name]["a step of plain PyTorch"] = max(peaks)
            held[memory.name]["operands of ops to measure"] = _operand_bytes(plans_of(forecasts), machine) if calibrate else 0
    needs = memory_needs({name: sum(sizes.values()) for name, sizes in held.items()}, machine)
    if excess_bytes(needs) > 0:
        worst = max(needs, key=lambda need: need.needed_bytes - need.size_bytes)
        count = len({id(f) for f in forecasts})
        compared = f"{count} {'strategy' if count == 1 else 'strategies'}"
        sizes = ", ".join(f"{what} {units.memory(size)}" for what, size in held[worst.name].items() if size)
        raise SchedcastError(
            f"comparing {compared} at once does not fit: {shortfall_words(needs)}; held by {sizes};"
            " choose a smaller batch, or fewer strategies with --strategy",
            Code.MEMORY,
        )


def leaves_room_for_a_check(predicted: Forecast) -> bool:
    """Whether a plan's first steps can be compared with plain PyTorch's: that takes three copies of its state in addition to the plan's
    peak.

    These are the model's own tensors, their values before the comparison, and plain PyTorch's results.
    """
    machine = predicted.machine
    return all(
        predicted.memory_bytes.get(memory.name, 0) + 3 * _carried_bytes(predicted.plan, machine, memory) <= memory.size_bytes
        for memory in machine.memories
    )


def _lags(plan: Plan) -> bool:
    return any(own.largest_lag for own in plan.sequence)


def _carried_bytes(plan: Plan, machine: Machine, memory: Memory) -> int:
    return sum(size for place, size in carried_bytes(plan).items() if machine.memory_name(place) == memory.name)


def _operand_bytes(plans: Iterable[Plan], machine: Machine) -> int:
    """Bytes of a sampler's tensors for the keys of `plans`, which share those of one geometry."""
    pooled: dict[tuple, int] = {}
    keys: set[str] = set()
    for plan in plans:
        for key, task in plan.keys(machine).items():
            if key in keys or not measurable(task):
                continue
            keys.add(key)
            for name, geometry in geometries(task, plan).items():
                pooled[geometry] = plan.values[name].operand().bytes
    return sum(pooled.values())
