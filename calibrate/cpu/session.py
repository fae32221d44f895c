"""A calibration session on a CPU: samples the missing keys of plans in rounds and writes their costs into a profile."""

import time
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

from calibrate.cpu.sampler import KeyPairs
from calibrate.samples import missing_keys, save_samples, store_samples
from calibrate.testbed import Progress
from executors.cpu.anchor import Anchor
from simulator.machine.machine import Machine
from simulator.plan.plan import Plan
from simulator.plan.task import Task
from traces.documents.profile import Profile, Stats

#: Samples per key: the first is discarded, eight are kept.
ROUNDS = 9
#: Limits on a group of keys, which are measured in interleaved rounds and then saved: how many keys, and about how many seconds they take.
#: An interruption loses at most one group.
GROUP, GROUP_S = 120, 20.0


def calibrate_cpu(
    plans: Iterable[Plan],
    machine: Machine,
    open_sampler: Callable[[], KeyPairs],
    profile: Profile,
    save_to: Path | None,
    progress: Progress,
    rounds: int = ROUNDS,
    anchors: Collection[Anchor] | None = None,
) -> int:
    """Measure every missing key of `plans`, add its cost to `profile`, and return the number of keys measured.

    `open_sampler` makes a sampler without keys, for each group of keys. `anchors`: those of its workers, if they run them between keys.
    `rounds` is the number of samples per key, of which the first is discarded. With `save_to` the profile is saved after each group of
    keys, so that another session can continue an interrupted one.
    """
    todo = [(plan, key, task) for plan, keys in missing_keys(plans, machine, profile) for key, task in keys.items()]
    total, done = len(todo) * rounds, 0
    progress(0, total, "")

    def sample(sampler: KeyPairs, key: str, number: int) -> None:
        nonlocal done
        sampler.sample([key], number)
        done += 1
        progress(done, total, key.partition("|")[0])

    measured = 0
    while measured < len(todo):
        sampler = open_sampler()
        measured += _sample_first(sampler, todo[measured:], sample)
        for number in range(1, rounds):
            for key in list(sampler.samples):
                sample(sampler, key, number)
        store_samples(sampler.samples, sampler.failures, profile, range(1, rounds))
        anchor_s = [s for anchor in anchors or () for s in anchor.take()]
        if anchor_s:
            profile.anchor_s = Stats.of(anchor_s).median_s
        save_samples(sampler.samples, profile, save_to)
    return measured


def _sample_first(sampler: KeyPairs, todo: list[tuple[Plan, str, Task]], sample: Callable[[KeyPairs, str, int], None]) -> int:
    """Take the first sample of as many keys of `todo` as make a group, and return their number."""
    spent_s = 0.0
    for count, (plan, key, task) in enumerate(todo[:GROUP], start=1):
        sampler.add(plan, {key: task})
        begin = time.perf_counter()
        sample(sampler, key, 0)
        spent_s += time.perf_counter() - begin
        if spent_s * ROUNDS > GROUP_S:
            return count
    return min(len(todo), GROUP)
