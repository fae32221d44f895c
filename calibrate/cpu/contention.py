"""How tasks on different cores slow each other down: the plans' own cost keys, timed alone and while another worker runs other keys.

The other worker runs the keys of one group in a loop, as a lane does. This one takes a cold and a warm sample of each of its keys, as a
calibration does. The two work on different tensors, as lanes do: with tensors in common, each worker would find in the shared cache what
the other has just read, and some ops would run faster concurrently with others than alone. Solo and concurrent times come from the same
rounds: the machine's speed changes from minute to minute, but the ratio of the two does not. Multipliers are fitted to these ratios.
"""

import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from math import ceil

from calibrate.cpu.monitor import CpuMonitor, undisturbed_s
from calibrate.cpu.sampler import Sampler
from calibrate.operands import OperandPool
from calibrate.samples import store_samples
from executors.cpu.backend import CpuBackend
from simulator.engine.costs.contention import concurrent_pairs, fit, group_of, typical_ratio
from simulator.engine.costs.model import CostModel, measurable
from simulator.engine.interference import modeled_slow_downs
from simulator.machine.machine import Machine
from simulator.plan.keys import cost_key
from simulator.plan.plan import Plan
from simulator.plan.task import Task
from traces.documents.profile import Contention, Interference, Profile

#: Rounds that count; up to half as many again are added if some were disturbed.
ROUNDS = 8
#: After `BUDGET_S` seconds no further round begins, once there are at least `FEWEST`.
FEWEST, BUDGET_S = 3, 5.0


@dataclass
class KeyGroup:
    """Keys of one contention group, either fitted or held out, with their seconds by round.

    `alone_s` by key. `beside_s` by (key, group): the seconds of the key while the other worker ran keys of that group.
    """

    group: str
    held_out: bool
    keys: list[str]
    alone_s: dict[str, dict[int, float]] = field(default_factory=dict)
    beside_s: dict[tuple[str, str], dict[int, float]] = field(default_factory=dict)


def run_rounds(run_round: Callable[[int], None]) -> tuple[list[int], bool]:
    """Call `run_round` with the numbers of rounds.

    Returns the numbers of the rounds that count, and whether the machine was disturbed. If fewer than `FEWEST` rounds were undisturbed, all
    of them count.
    """
    quiet: list[int] = []
    begin = time.monotonic()
    number = 0
    while number < FEWEST or (number < ROUNDS + ROUNDS // 2 and len(quiet) < ROUNDS and time.monotonic() - begin < BUDGET_S):
        monitor = CpuMonitor()
        run_round(number)
        if not monitor.stop().rejected:
            quiet.append(number)
        number += 1
    return (quiet, False) if len(quiet) >= FEWEST else (list(range(number)), True)


def time_groups(sampler: Sampler, beside: Sampler, groups: Sequence[KeyGroup], pairs: set[tuple[str, str]], number: int) -> None:
    """Time every key alone and concurrently with each group that it pairs with, as round `number`.

    `beside` has the same keys, with other tensors.
    """
    for group in groups:
        for key, seconds in _time_keys(sampler, beside, group.keys, [], number).items():
            group.alone_s.setdefault(key, {})[number] = seconds
        for other in groups:
            if (group.group, other.group) in pairs and other.held_out == group.held_out:
                for key, seconds in _time_keys(sampler, beside, group.keys, other.keys, number).items():
                    group.beside_s.setdefault((key, other.group), {})[number] = seconds


def _time_keys(sampler: Sampler, beside: Sampler, keys: Sequence[str], other_keys: Sequence[str], number: int) -> dict[str, float]:
    """Cold plus warm seconds of each key on one worker, while another worker runs `other_keys` of `beside` in a loop.

    The two workers swap places from one round `number` to the next.
    """
    workers = len(sampler.backend.workers.cores)
    timing_worker, other_worker = number % workers, (number + 1) % workers
    begun, over = threading.Event(), threading.Event()
    seconds: dict[str, float] = {}

    def work(worker: int) -> None:
        try:
            if worker == timing_worker:
                if other_keys:
                    begun.wait()
                for key in keys:
                    seconds[key] = sum(sampler.timed(key, undisturbed_s))
                return
            for i in count(number):
                beside.run(other_keys[i % len(other_keys)])
                begun.set()
                if over.is_set():
                    return
        finally:  # if either worker fails, the other one ends too
            begun.set()
            over.set()

    sampler.backend.workers.run(work, (timing_worker, other_worker) if other_keys else (timing_worker,))
    return seconds


#: Keys per group that are fitted; as many others are held out.
KEYS = 4
#: A round times all keys up to this many times, until it has taken `SHORT_S` seconds.
TIMES, SHORT_S = 3, 0.5
#: Tasks that take longer than this are skipped if their group has shorter ones: several of them would take longer than all the rest.
LONGEST_S = 0.02


@dataclass(frozen=True)
class _Candidate:
    """A cost key whose interference may be measured. `seconds`: the estimated time of one task.

    `weight`: that of all tasks with this key in a period.
    """

    key: str
    plan: Plan
    task: Task
    seconds: float
    weight: float


def learn_contention(plans: Iterable[Plan], machine: Machine, profile: Profile) -> bool:
    """Measure the pairs of groups that meet in `plans` and that `profile` lacks, and fit the profile's multipliers again.

    Pairs measured while other work ran count as missing. Returns whether anything was measured.
    """
    known = frozenset() if profile.contention.disturbed else profile.contention.known
    interference = InterferenceRounds.for_plans(plans, machine, profile, known)
    if interference is None:
        return False
    interference.store(profile, *run_rounds(interference.run_round))
    return True


class InterferenceRounds:
    """The interference of the pairs of groups that meet in some plans, measured in rounds."""

    def __init__(self, sampler: Sampler, beside: Sampler, pairs: set[tuple[str, str]], model: CostModel):
        """`sampler`: with samples of each group's keys. `beside`: of the concurrent worker. `model`: without multipliers."""
        self._sampler, self._beside, self._pairs, self._model = sampler, beside, pairs, model
        self._groups = _key_groups(sampler, model.machine, pairs)

    @staticmethod
    def for_plans(
        plans: Iterable[Plan],
        machine: Machine,
        profile: Profile,
        known: Collection[tuple[str, str]] = (),
        pool: OperandPool | None = None,
    ) -> "InterferenceRounds | None":
        """The interference of the pairs that are not in `known`; None if there are none, or no second worker. `pool`: operands to share."""
        copied = {"contention": Contention(), "costs": dict(profile.costs), "failures": dict(profile.failures)}
        model = CostModel(machine, profile.model_copy(update=copied))  # without multipliers
        pairs_by_plan = [(plan, concurrent_pairs(plan, machine, model.resolve(plan))) for plan in plans]
        pairs = {pair for _, plan_pairs in pairs_by_plan for pair in plan_pairs} - set(known)
        backend = CpuBackend(machine) if pairs else None
        if backend is None or len(backend.workers.cores) < 2:
            return None
        samplers = Sampler(backend, pool), Sampler(backend, OperandPool(seed=1))
        _warm([plan for plan, plan_pairs in pairs_by_plan if plan_pairs & pairs], pairs, model, samplers)
        return InterferenceRounds(*samplers, pairs, model)

    def run_round(self, number: int) -> None:
        """Time the keys alone and concurrently with others once, or several times if they are short. Each time counts as the same round."""
        begin = time.monotonic()
        for again in range(TIMES):
            time_groups(self._sampler, self._beside, self._groups, self._pairs, TIMES * number + again)
            if time.monotonic() - begin > SHORT_S:
                return

    def store(self, profile: Profile, rounds: Collection[int], disturbed: bool = False) -> None:
        """Fit the profile's multipliers again, with what the given rounds measured in place of older measurements of the same pairs."""
        rounds = [TIMES * number + again for number in rounds for again in range(TIMES)]
        model, sampler = self._model, self._sampler
        assert model.profile is not None, "`for_plans` makes it of one"
        store_samples(sampler.samples, sampler.failures, model.profile, [1])
        old = Contention() if profile.contention.disturbed else profile.contention
        earlier = [run for run in old.co_runs if (run.group, run.beside) not in self._pairs]
        fresh = CostModel(model.machine, model.profile)
        fitted = fit([*earlier, *_rows(self._groups, rounds, fresh, sampler, model.machine)], "cpu")
        unmeasured = sorted({*old.unmeasured, *("|".join(pair) for pair in self._pairs - fitted.known)})
        profile.contention = fitted.model_copy(update={"disturbed": disturbed, "unmeasured": unmeasured})


def _warm(plans: Sequence[Plan], pairs: set[tuple[str, str]], model: CostModel, samplers: Sequence[Sampler]) -> None:
    """Give each sampler some keys of every group, and take two samples of them; the first sample is not a typical one."""
    chosen = [c for group in sorted({g for pair in pairs for g in pair}) for c in _spread(_candidates(plans, model, group), 2 * KEYS)]
    for sampler in samplers:
        for candidate in chosen:
            sampler.add(candidate.plan, {candidate.key: candidate.task})
        for number in range(2):
            sampler.sample(list(sampler.samples), number)


def _candidates(plans: Sequence[Plan], model: CostModel, group: str) -> list[_Candidate]:
    """The keys of `group` in `plans`, the shortest first."""
    candidates: dict[str, _Candidate] = {}
    for plan in plans:
        for task, cost in zip(plan.tasks, model.resolve(plan), strict=True):
            if not measurable(task) or cost.group != group:
                continue
            key, seconds = cost_key(task, model.machine), (cost.warm_s + cost.cold_s) / 2
            weight = seconds + (candidates[key].weight if key in candidates else 0.0)
            candidates[key] = _Candidate(key, plan, task, seconds, weight)
    short = [c for c in candidates.values() if c.seconds <= LONGEST_S]
    return sorted(short or candidates.values(), key=lambda c: (c.seconds, c.key))


def _spread(candidates: list[_Candidate], most: int) -> list[_Candidate]:
    """At most `most` of the candidates, chosen so that each represents about the same share of the group's time."""
    total, passed = sum(c.weight for c in candidates), 0.0
    chosen: list[_Candidate] = []
    for position, candidate in enumerate(candidates):
        passed += candidate.weight
        left = len(candidates) - position
        if passed >= total * (len(chosen) + 0.5) / most or left <= most - len(chosen):
            chosen.append(candidate)
        if len(chosen) == most:
            break
    return chosen


def _key_groups(sampler: Sampler, machine: Machine, pairs: set[tuple[str, str]]) -> list[KeyGroup]:
    """The sampled keys by contention group, according to their own samples.

    Every second key of a group is held out. The longest key, which weighs most, is fitted.
    """
    keys_by_group: dict[str, list[str]] = {}
    for key, samples in sampler.samples.items():
        if key not in sampler.failures:
            work = samples.task.body.work(samples.task)
            kind = machine.device(samples.task.device).kind
            group = group_of(work.op_class, (samples.cold_s[1] + samples.warm_s[1]) / 2, kind)
            keys_by_group.setdefault(group, []).append(key)
    wanted = {group for pair in pairs for group in pair}
    by_length = {g: sorted(keys, key=lambda key: -sampler.samples[key].cold_s[1]) for g, keys in keys_by_group.items() if g in wanted}
    return [KeyGroup(g, held_out, keys[held_out::2]) for g, keys in by_length.items() for held_out in (False, True) if keys[held_out::2]]


def _rows(groups: list[KeyGroup], rounds: Collection[int], model: CostModel, sampler: Sampler, machine: Machine) -> Iterable[Interference]:
    """A row per key and concurrent group: the measured slow-down, and the one that the engine models."""
    task_of = {key: samples.task for key, samples in sampler.samples.items()}
    lanes = {(group.group, group.held_out): [model.cost(task_of[key]) for key in group.keys] for group in groups}
    for group in groups:
        for (key, other), seconds in group.beside_s.items():
            cost, others = model.cost(task_of[key]), lanes[other, group.held_out]
            times = ceil(2 * cost.cold_s / max(sum(c.cold_s for c in others), 1e-9))
            modeled, _ = modeled_slow_downs([cost], others * times, machine.device(task_of[key].device), machine)
            slow_down = typical_ratio([seconds[r] / group.alone_s[key][r] for r in rounds if r in seconds])
            yield Interference(group.group, other, float(f"{slow_down:.4g}"), float(f"{modeled:.4g}"), group.held_out, key)
