"""Co-runs on a CPU: a plan's own keys, each alone and beside a lane of others, on two workers.

Beside means that the other worker runs tasks of one group in turn, as a lane does, while this one takes a cold and a warm sample of each
key as a calibration does. Both are taken in the same rounds: the machine's speed changes from minute to minute, the ratio does not.
"""

import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from math import ceil

from calibrate.cpu.noise import Watch, own_s
from calibrate.cpu.sampler import Sampler
from calibrate.cpu.session import store
from executors.cpu.backend import CpuBackend
from simulator.costs.contention import concurrent_pairs, fit, group_of, typical_ratio
from simulator.costs.model import CostModel, measurable
from simulator.engine.co_runs import modelled_slow_downs
from simulator.machine.machine import Machine
from simulator.plan.keys import cost_key
from simulator.plan.plan import Plan
from simulator.plan.task import Task
from traces.profile import Contention, CoRun, Profile

#: Keys per group that are fitted, and as many others that are held out.
KEYS = 4
#: Rounds that count, half as many again where some were disturbed; and seconds after which, with at least `FEWEST`, no more are begun.
ROUNDS, FEWEST, BUDGET_S = 8, 3, 5.0
#: Longer tasks are left out where a group has others: a few of them would take longer than all the rest.
LONGEST_S = 0.02


@dataclass(frozen=True)
class _Candidate:
    """A key that stands on a lane beside others, with all the seconds that its tasks are thought to take in a period."""

    key: str
    plan: Plan
    task: Task
    seconds: float
    weight: float


@dataclass
class _Side:
    """The keys of one group in one part, fitted or held out: timed alone, and beside each other group that it meets; by round."""

    group: str
    held_out: bool
    keys: list[str]
    alone: dict[str, list[float]] = field(default_factory=dict)
    beside: dict[tuple[str, str], list[float]] = field(default_factory=dict)  # by (key, group)


def learn_contention(plans: Iterable[Plan], machine: Machine, profile: Profile) -> bool:
    """Measure the pairs of groups that meet in `plans` and that the profile lacks, and fit its multipliers anew; whether there were any.

    Pairs measured while other work ran count as lacking.
    """
    old = Contention() if profile.contention.disturbed else profile.contention
    copied = {"contention": Contention(), "costs": dict(profile.costs), "failures": dict(profile.failures)}
    plain = profile.model_copy(update=copied)  # for what the engine says without multipliers
    model = CostModel(machine, plain)
    meeting = [(plan, concurrent_pairs(plan, machine, model.resolve(plan))) for plan in plans]
    pairs = {pair for _, found in meeting for pair in found} - old.known
    backend = CpuBackend(machine) if pairs else None
    if backend is None or len(backend.workers.cores) < 2:
        return False
    sampler = _sampler([plan for plan, found in meeting if found & pairs], pairs, model, backend)
    sides = _sides(sampler, machine, pairs)
    rounds, disturbed = _rounds(sampler, sides, pairs)
    store(sampler, plain, [1])
    co_runs = [*old.co_runs, *_rows(sides, rounds, CostModel(machine, plain), sampler, machine)]
    fitted = fit(co_runs, "cpu")
    unmeasured = sorted({*old.unmeasured, *("|".join(pair) for pair in pairs - fitted.known)})
    profile.contention = fitted.model_copy(update={"disturbed": disturbed, "unmeasured": unmeasured})
    return True


def _sampler(plans: Sequence[Plan], pairs: set[tuple[str, str]], model: CostModel, backend: CpuBackend) -> Sampler:
    """A sampler that has visited a few keys of every group twice: the first visit is not a typical one."""
    sampler = Sampler(backend)
    for group in sorted({group for pair in pairs for group in pair}):
        for candidate in _spread(_candidates(plans, model, group), 2 * KEYS):
            sampler.add(candidate.plan, {candidate.key: candidate.task})
    for turn in range(2):
        sampler.visit(list(sampler.samples), turn)
    return sampler


def _candidates(plans: Sequence[Plan], model: CostModel, group: str) -> list[_Candidate]:
    found: dict[str, _Candidate] = {}
    for plan in plans:
        for task, cost in zip(plan.tasks, model.resolve(plan), strict=True):
            if not measurable(task) or cost.group != group:
                continue
            key, seconds = cost_key(task, model.machine), (cost.warm_s + cost.cold_s) / 2
            weight = seconds + (found[key].weight if key in found else 0.0)
            found[key] = _Candidate(key, plan, task, seconds, weight)
    short = [c for c in found.values() if c.seconds <= LONGEST_S]
    return sorted(short or found.values(), key=lambda c: (c.seconds, c.key))


def _spread(candidates: list[_Candidate], most: int) -> list[_Candidate]:
    """So many of them, such that each stands for the same part of their group's time, as far as there are enough."""
    total, passed, chosen = sum(c.weight for c in candidates), 0.0, []
    for position, candidate in enumerate(candidates):
        passed += candidate.weight
        left = len(candidates) - position
        if passed >= total * (len(chosen) + 0.5) / most or left <= most - len(chosen):
            chosen.append(candidate)
        if len(chosen) == most:
            break
    return chosen


def _sides(sampler: Sampler, machine: Machine, pairs: set[tuple[str, str]]) -> list[_Side]:
    """The sampled keys by group as just timed, every other one of each group held out; the longest, which weighs most, is fitted."""
    groups: dict[str, list[str]] = {}
    for key, samples in sampler.samples.items():
        if key not in sampler.failures:
            work = samples.task.body.work(samples.task)
            kind = machine.device(samples.task.device).kind
            groups.setdefault(group_of(work.op_class, (samples.cold_s[1] + samples.warm_s[1]) / 2, kind), []).append(key)
    known = {group for pair in pairs for group in pair}
    ordered = {g: sorted(keys, key=lambda key: -sampler.samples[key].cold_s[1]) for g, keys in groups.items() if g in known}
    return [_Side(g, held_out, keys[held_out::2]) for g, keys in ordered.items() for held_out in (False, True) if keys[held_out::2]]


def _rounds(sampler: Sampler, sides: list[_Side], pairs: set[tuple[str, str]]) -> tuple[list[int], bool]:
    """Time everything in rounds; those that count, and whether too few were undisturbed, so that all do."""
    quiet: list[int] = []
    begin = time.monotonic()
    turn = 0
    while turn < FEWEST or (turn < ROUNDS + ROUNDS // 2 and len(quiet) < ROUNDS and time.monotonic() - begin < BUDGET_S):
        watch = Watch()
        for side in sides:
            for key, seconds in _timed(sampler, side.keys, [], turn).items():
                side.alone.setdefault(key, []).append(seconds)
            for other in sides:
                if (side.group, other.group) in pairs and other.held_out == side.held_out:
                    for key, seconds in _timed(sampler, side.keys, other.keys, turn).items():
                        side.beside.setdefault((key, other.group), []).append(seconds)
        if not watch.stop().rejected:
            quiet.append(turn)
        turn += 1
    return (quiet, False) if len(quiet) >= FEWEST else (list(range(turn)), True)


def _timed(sampler: Sampler, keys: Sequence[str], beside: Sequence[str], turn: int) -> dict[str, float]:
    """Cold and warm seconds together of each key on one worker, while another runs `beside` in turn; workers change places by `turn`."""
    workers = len(sampler.backend.workers.cores)
    here, there = turn % workers, (turn + 1) % workers
    begun, over = threading.Event(), threading.Event()
    found: dict[str, float] = {}

    def work(position: int) -> None:
        try:
            if position == here:
                if beside:
                    begun.wait()
                for key in keys:
                    found[key] = sum(sampler.timed(key, own_s))
                return
            for i in count(turn):
                sampler.run(beside[i % len(beside)])
                begun.set()
                if over.is_set():
                    return
        finally:  # whichever fails, the other ends too
            begun.set()
            over.set()

    sampler.backend.workers.run(work, (here, there) if beside else (here,))
    return found


def _rows(sides: list[_Side], rounds: list[int], model: CostModel, sampler: Sampler, machine: Machine) -> Iterable[CoRun]:
    """A row per key and group that it ran beside, with what the engine makes of it."""
    sampled = {key: samples.task for key, samples in sampler.samples.items()}
    lanes = {(side.group, side.held_out): [model.cost(sampled[key]) for key in side.keys] for side in sides}
    for side in sides:
        for (key, group), seconds in side.beside.items():
            cost, others = model.cost(sampled[key]), lanes[group, side.held_out]
            times = ceil(2 * cost.cold_s / max(sum(other.cold_s for other in others), 1e-9))
            modelled, _ = modelled_slow_downs([cost], others * times, machine.device(sampled[key].device), machine)
            slow_down = typical_ratio([seconds[r] / side.alone[key][r] for r in rounds])
            yield CoRun(side.group, group, float(f"{slow_down:.4g}"), float(f"{modelled:.4g}"), side.held_out, key)
