"""How much concurrent tasks slow each other down, fitted on interference runs and scored on other interference runs.

Tasks belong to contention groups, few enough that every pair of groups can be measured: compute-bound, memory-bound and, on a CPU,
optimizer updates and tasks so short that the time of Python and the executor dominates. On a CPU a multiplier covers the whole effect of
tasks on other cores, because the bandwidth that a task draws alone predicts that effect poorly. On a GPU the multipliers come on top of
shared SMs and bandwidth, and products in bf16, fp16 and fp64 have separate groups: those in bf16 may occupy every SM until they end, so
runs concurrent with float32 say little about them.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from itertools import permutations, product
from math import exp, inf, log
from statistics import fmean, median

from simulator.engine.costs.cost import Cost
from simulator.machine.machine import Machine
from simulator.plan.plan import Plan
from traces.documents.profile import Contention, Interference, Profile

COMPUTE, MEMORY, UPDATE, SMALL = "compute", "memory", "update", "small"
#: Below this many seconds, tasks on a CPU contend for the interpreter's lock rather than for the hardware.
SMALL_S = 1e-4
_COMPUTE_CLASSES = frozenset({"conv", "grouped-conv", "matmul"})
#: The groups of a GPU's products by precision. That of float32, in TF32 or not, has the empty name.
_PRODUCTS = {"": COMPUTE, **{precision: f"{COMPUTE}.{precision}" for precision in ("bf16", "fp16", "fp64")}}


def group_of(op_class: str, seconds: float, kind: str, precision: str = "") -> str:
    """The contention group of a task that takes `seconds` alone on a device of kind `kind` ("cpu" or "gpu"), in a precision."""
    if kind == "cpu" and seconds < SMALL_S:
        return SMALL
    first = op_class.partition(".")[0]
    if first in _COMPUTE_CLASSES:
        return _PRODUCTS.get(precision, COMPUTE) if kind == "gpu" else COMPUTE
    return UPDATE if first == "update" and kind == "cpu" else MEMORY


def precisions(groups: Iterable[str]) -> set[str]:
    """The precisions of the products among the groups, with names as in `Profile.contentions`."""
    return {group.partition(".")[2] for group in groups if group.partition(".")[0] == COMPUTE}


def pair_multipliers(profile: Profile) -> dict[tuple[str, str], float]:
    """By pair (group, concurrent group), the multiplier that was fitted in the precision of its product; of two products, that of the
    first.

    Pairs without products have the multipliers fitted in float32. A precision that was not measured has those of another.
    """
    products = _PRODUCTS if profile.identity.kind == "gpu" else {"": COMPUTE}
    multipliers: dict[tuple[str, str], float] = {}
    for precision, product_group in products.items():
        for pair, factor in profile.contention_in(precision).multipliers.items():
            group, beside = pair.partition("|")[::2]
            if group == COMPUTE:
                others = products.values() if beside == COMPUTE else [beside]
                multipliers |= {(product_group, other): factor for other in others}
            elif beside == COMPUTE:
                multipliers[group, product_group] = factor
            elif not precision:
                multipliers[group, beside] = factor
    return multipliers


def concurrent_pairs(plan: Plan, machine: Machine, costs: Sequence[Cost]) -> set[tuple[str, str]]:
    """Pairs (group, concurrent group) of tasks that the plan puts on different lanes of one memory. `costs`: of the plan's tasks."""
    by_memory: dict[str, dict[tuple[str, int], set[str]]] = {}
    for task, cost in zip(plan.tasks, costs, strict=True):
        if cost.group:
            by_memory.setdefault(machine.memory(task.device).name, {}).setdefault(task.lane, set()).add(cost.group)
    pairs = set()
    for lanes in by_memory.values():
        for groups, other_groups in permutations(lanes.values(), 2):
            pairs |= set(product(groups, other_groups))
    return pairs


def typical_ratio(ratios: Sequence[float]) -> float:
    """Geometric mean of positive ratios, each clipped to between half and twice their median.

    Clipping limits the effect of a thread that was interrupted in one of the two runs.
    """
    logs = [log(ratio) for ratio in ratios]
    middle = median(logs)
    return exp(fmean(min(max(value, middle - log(2)), middle + log(2)) for value in logs))


def fit(co_runs: Iterable[Interference], kind: str) -> Contention:
    """Fit multipliers by pair of groups on the interference runs that are not held out, and score them on those that are.

    `kind`: "cpu", where a multiplier is the whole slow-down, or "gpu", where it comes on top of the modeled one. A multiplier is the
    typical ratio of its pair, of its group concurrent with any other, or of all interference runs, whichever predicts each interference run
    best from the others. It is at least 1, because no task runs faster for not being alone. The multipliers are rejected if they do not
    predict the held-out interference runs better than no multipliers, or if no interference run is held out.
    """
    co_runs = list(co_runs)
    fitted = [run for run in co_runs if not run.held_out and run.slow_down > 0]
    held_out = [run for run in co_runs if run.held_out and run.slow_down > 0]
    level = min(_LEVELS, key=lambda grouping: _left_out_error(fitted, kind, grouping))
    pairs = sorted({(run.group, run.beside) for run in fitted})
    multipliers = {f"{a}|{b}": _multiplier([run for run in fitted if level(run) == level(Interference(a, b, 1.0))], kind) for a, b in pairs}
    if not held_out:
        return Contention(rejected=multipliers, co_runs=co_runs)
    error = _short(fmean(abs(_base(run, kind) * multipliers.get(f"{run.group}|{run.beside}", 1.0) / run.slow_down - 1) for run in held_out))
    without = _short(fmean(abs(run.modeled / run.slow_down - 1) for run in held_out))
    kept, rejected = (multipliers, {}) if error < without else ({}, multipliers)
    return Contention(multipliers=kept, rejected=rejected, held_out_error=error, held_out_error_without=without, co_runs=co_runs)


def best_saturation_share(co_runs: Mapping[float, Sequence[Interference]], default: float) -> float | None:
    """The saturation share under which the engine's slow-downs are nearest to the interference runs; None if no share beats `default`.

    `co_runs`: the same interference runs as the engine models them under each share. A share beats `default` only if its error is smaller
    both on the interference runs used for fitting and on those held out.
    """
    errors = {share: (_modeled_error(runs, False), _modeled_error(runs, True)) for share, runs in co_runs.items()}
    best = min(errors, key=lambda share: (errors[share][0], abs(share - default)))
    return best if all(error < default_error for error, default_error in zip(errors[best], errors[default], strict=True)) else None


def _modeled_error(co_runs: Sequence[Interference], held_out: bool) -> float:
    errors = [abs(run.modeled / run.slow_down - 1) for run in co_runs if run.held_out == held_out and run.slow_down > 0]
    return fmean(errors) if errors else inf


#: Functions that say which interference runs share a multiplier, the fewest multipliers first.
_LEVELS = (lambda run: (), lambda run: run.group, lambda run: (run.group, run.beside))


def _left_out_error(fitted: Sequence[Interference], kind: str, grouping: Callable[[Interference], Hashable]) -> float:
    """Mean relative error of each run when predicted from the others of its group (one without others: 1); infinite without runs."""
    groups: dict[Hashable, list[Interference]] = {}
    for run in fitted:
        groups.setdefault(grouping(run), []).append(run)
    errors = []
    for runs in groups.values():
        for i, run in enumerate(runs):
            errors.append(abs(_base(run, kind) * _multiplier(runs[:i] + runs[i + 1 :], kind) / run.slow_down - 1))
    return fmean(errors) if errors else inf


def _multiplier(co_runs: Sequence[Interference], kind: str) -> float:
    return _short(max(1.0, typical_ratio([run.slow_down / _base(run, kind) for run in co_runs]))) if co_runs else 1.0


def _base(run: Interference, kind: str) -> float:
    return 1.0 if kind == "cpu" else run.modeled


def _short(number: float) -> float:
    return float(f"{number:.4g}")
