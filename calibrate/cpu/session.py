"""A calibration session: visits the missing keys of plans in rounds and writes what it learns into a profile."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from calibrate.cpu.sampler import Sampler
from calibrate.samples import save_samples, store_samples
from executors.cpu.backend import CpuBackend
from simulator.costs.model import measurable
from simulator.machine.machine import Machine
from simulator.plan.plan import Plan
from simulator.plan.task import Task
from traces.profile import Profile, Stats

#: Visits per key: the first is discarded, eight are kept.
ROUNDS = 9
#: Keys that are measured together in interleaved rounds before they are saved: at most so many, and for about so many seconds, which is
#: what an interruption can cost.
GROUP, GROUP_S = 120, 20.0

Progress = Callable[[int, int, str], None]


def missing_keys(plans: Iterable[Plan], machine: Machine, profile: Profile) -> Iterator[tuple[Plan, dict[str, Task]]]:
    """Per plan, the keys that the profile lacks and that have not failed before; keys of earlier plans are not repeated."""
    seen = set(profile.costs) | set(profile.failures)
    for plan in plans:
        found = {key: task for key, task in plan.keys(machine).items() if key not in seen and measurable(task)}
        seen |= set(found)
        yield plan, found


def calibrate(
    plans: Iterable[Plan],
    machine: Machine,
    backend: CpuBackend,
    profile: Profile,
    save_to: Path | None,
    progress: Progress,
    rounds: int = ROUNDS,
) -> int:
    """Measure every missing key of `plans` and add it to `profile`; the number of keys measured.

    `rounds`: visits per key, of which the first is discarded. With `save_to` the profile is saved after each group of keys, so that an
    interrupted session goes on where it stopped.
    """
    todo = [(plan, key, task) for plan, keys in missing_keys(plans, machine, profile) for key, task in keys.items()]
    total, done = len(todo) * rounds, 0
    progress(0, total, "")

    def visit(sampler: Sampler, key: str, turn: int) -> None:
        nonlocal done
        sampler.visit([key], turn)
        done += 1
        progress(done, total, key.partition("|")[0])

    measured = 0
    while measured < len(todo):
        sampler = Sampler(backend)
        measured += _first_visits(sampler, todo[measured:], visit)
        for turn in range(1, rounds):
            for key in list(sampler.samples):
                visit(sampler, key, turn)
        store(sampler, profile)
        save_samples(sampler.samples, profile, save_to)
    return measured


def _first_visits(sampler: Sampler, todo: list[tuple[Plan, str, Task]], visit: Callable[[Sampler, str, int], None]) -> int:
    """Visit the first keys of `todo` for the first time, as many as make a group; their number."""
    spent_s = 0.0
    for count, (plan, key, task) in enumerate(todo[:GROUP], start=1):
        sampler.add(plan, {key: task})
        begin = time.perf_counter()
        visit(sampler, key, 0)
        spent_s += time.perf_counter() - begin
        if spent_s * ROUNDS > GROUP_S:
            return count
    return min(len(todo), GROUP)


def store(sampler: Sampler, profile: Profile, rounds: Sequence[int] | None = None) -> None:
    """Write the sampler's statistics into the profile: of the given rounds, or of all but the first."""
    visits = max((len(samples.warm_s) for samples in sampler.samples.values()), default=0)
    store_samples(sampler.samples, sampler.failures, profile, range(1, visits) if rounds is None else rounds)
    if sampler.backend.anchors:
        taken = [s for anchor in sampler.backend.anchors for s in anchor.take()]
        if taken:
            profile.anchor_s = Stats.of(taken).median_s
