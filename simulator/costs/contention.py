"""Tasks that run beside each other slow each other down: by what, fitted on co-runs and scored on others.

Tasks go by groups, few enough that every pair of them can be measured: bound by compute, by memory, and, on a CPU, optimizer updates and
tasks so short that Python's and the executor's own time decides. On a CPU the multipliers stand for all that tasks on other cores do to a
task: how much bandwidth it draws alone says too little about that. On a GPU they come on top of shared SMs and bandwidth.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from itertools import permutations, product
from math import exp, inf, log
from statistics import fmean, median

from simulator.costs.cost import Cost
from simulator.machine.machine import Machine
from simulator.plan.plan import Plan
from traces.profile import Contention, CoRun

COMPUTE, MEMORY, UPDATE, SMALL = "compute", "memory", "update", "small"
#: Seconds below which thread lanes on a CPU contend for the interpreter's lock rather than for the hardware.
SMALL_S = 1e-4
_COMPUTE_CLASSES = frozenset({"conv", "grouped-conv", "matmul"})


def group_of(op_class: str, seconds: float, kind: str) -> str:
    """The group of a task of this op class that takes so long alone, on a device of this kind ("cpu" or "gpu")."""
    if kind == "cpu" and seconds < SMALL_S:
        return SMALL
    first = op_class.partition(".")[0]
    return COMPUTE if first in _COMPUTE_CLASSES else UPDATE if first == "update" and kind == "cpu" else MEMORY


def pairs_that_meet(plan: Plan, machine: Machine, costs: Sequence[Cost]) -> set[tuple[str, str]]:
    """Pairs of groups (one beside the other) of which tasks stand on different lanes of one memory. `costs`: of the plan's tasks."""
    by_memory: dict[str, dict[tuple[str, int], set[str]]] = {}
    for task, cost in zip(plan.tasks, costs, strict=True):
        if cost.group:
            by_memory.setdefault(machine.memory(task.device).name, {}).setdefault(task.lane, set()).add(cost.group)
    found = set()
    for lanes in by_memory.values():
        for mine, other in permutations(lanes.values(), 2):
            found |= set(product(mine, other))
    return found


def typical(ratios: Sequence[float]) -> float:
    """Geometric mean of positive ratios, of which each counts as at least half and at most twice their median.

    A thread that was interrupted, alone or beside others, says nothing about either.
    """
    logs = [log(ratio) for ratio in ratios]
    middle = median(logs)
    return exp(fmean(min(max(each, middle - log(2)), middle + log(2)) for each in logs))


def fit(co_runs: Iterable[CoRun], kind: str) -> Contention:
    """Multipliers by pair of groups from the co-runs that are not held out, scored on those that are.

    `kind`: "cpu", where a multiplier is the whole slow-down, or "gpu", where it comes on top of the modelled one. A multiplier is what is
    typical of its pair, or of its group beside anything, or of all, whichever foretells a co-run best from the others, and at least 1:
    nothing runs faster for not being alone. Where the held-out ones are not predicted better with multipliers than without, or there are
    none, the multipliers are rejected.
    """
    found = list(co_runs)
    fitted = [run for run in found if not run.held_out and run.slow_down > 0]
    held = [run for run in found if run.held_out and run.slow_down > 0]
    level = min(_LEVELS, key=lambda alike: _left_out_error(fitted, kind, alike)) if fitted else None
    pairs = sorted({(run.group, run.beside) for run in fitted})
    multipliers = {f"{a}|{b}": _multiplier([run for run in fitted if level(run) == level(CoRun(a, b, 1.0))], kind) for a, b in pairs}
    if not held:
        return Contention(rejected=multipliers, co_runs=found)
    error = fmean(abs(_base(run, kind) * multipliers.get(f"{run.group}|{run.beside}", 1.0) / run.slow_down - 1) for run in held)
    without = fmean(abs(run.modelled / run.slow_down - 1) for run in held)
    chosen = {"multipliers" if error < without else "rejected": multipliers}
    return Contention(held_out_error=_short(error), held_out_error_without=_short(without), co_runs=found, **chosen)


def best_share(co_runs: Mapping[float, Sequence[CoRun]], default: float) -> float | None:
    """The saturation share under which the engine's slow-downs come nearest to the co-runs; None where none is better than `default`.

    `co_runs`: the same ones as modelled under each share. Better means on those to be fitted and on those that are held out.
    """
    errors = {share: (_modelled_error(found, False), _modelled_error(found, True)) for share, found in co_runs.items()}
    best = min(errors, key=lambda share: (errors[share][0], abs(share - default)))
    return best if all(there < here for there, here in zip(errors[best], errors[default], strict=True)) else None


def _modelled_error(co_runs: Sequence[CoRun], held_out: bool) -> float:
    found = [abs(run.modelled / run.slow_down - 1) for run in co_runs if run.held_out == held_out and run.slow_down > 0]
    return fmean(found) if found else inf


#: Which co-runs share a multiplier, the fewest multipliers first.
_LEVELS = (lambda run: (), lambda run: run.group, lambda run: (run.group, run.beside))


def _left_out_error(fitted: Sequence[CoRun], kind: str, alike: Callable[[CoRun], Hashable]) -> float:
    """Mean relative error of each co-run as its like foretell it; as 1 where it has none."""
    parts: dict[Hashable, list[CoRun]] = {}
    for run in fitted:
        parts.setdefault(alike(run), []).append(run)
    errors = []
    for several in parts.values():
        for i, run in enumerate(several):
            errors.append(abs(_base(run, kind) * _multiplier(several[:i] + several[i + 1 :], kind) / run.slow_down - 1))
    return fmean(errors)


def _multiplier(co_runs: Sequence[CoRun], kind: str) -> float:
    return _short(max(1.0, typical([run.slow_down / _base(run, kind) for run in co_runs]))) if co_runs else 1.0


def _base(run: CoRun, kind: str) -> float:
    return 1.0 if kind == "cpu" else run.modelled


def _short(number: float) -> float:
    return float(f"{number:.4g}")
