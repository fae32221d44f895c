"""A calibration session on a GPU: measures the missing keys of plans, each on its device's partition, and writes them into a profile."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from calibrate.cuda.bench import Effort, objects_kept
from calibrate.cuda.sampler import MEMORY_SHARE, CudaSampler
from calibrate.cuda.stall import stalled
from calibrate.samples import missing_keys, save_samples, store_samples
from calibrate.testbed import Progress
from executors.cuda.driver import Driver, Partition
from simulator.machine.machine import Machine
from simulator.plan.plan import Plan
from traces.documents.profile import Profile
from traces.errors import SchedcastError

#: The most keys between two saves, which share one profiler session. A group is large, since each session takes about a second and a used
#: profiler may slow the launches that follow. A group ends early when its operands, which the profiler needs all at once, fill the memory.
GROUP = 300


@dataclass(frozen=True)
class Outcome:
    """The result of a session.

    `measured` counts the keys that were tried, failures included; `left` are the keys that the deadline left; `notes` are oddities in
    words.
    """

    measured: int
    left: tuple[str, ...]
    notes: tuple[str, ...]


def calibrate_gpu(
    plans: Iterable[Plan],
    machine: Machine,
    driver: Driver,
    profile: Profile,
    save_to: Path | None,
    progress: Progress,
    deadline_s: float | None = None,
    effort: Effort | None = None,
    keep_samples: bool = True,
) -> Outcome:
    """Measure every missing key of `plans` and add it to `profile`, which is saved to `save_to` after each group of keys.

    No key is begun later than `deadline_s` seconds from now; another session can continue with the rest. Without `keep_samples` only the
    profile is saved, without raw samples. Raises SchedcastError if `machine` does not describe this GPU, or if a key left the GPU unusable;
    what was measured before is then in the profile.
    """
    end_s = float("inf") if deadline_s is None else driver.now_s() + deadline_s
    todo = [
        (plan, key, task)
        for plan, keys in missing_keys(plans, machine, profile)
        for key, task in keys.items()
        if not stalled([profile.failures.get(key, "")])
    ]
    partitions = {device: _partition(device, machine, driver) for device in dict.fromkeys(task.device for _, _, task in todo)}
    by_sms = {_sms(partition): partition for partition in partitions.values()}
    samplers = {sms: CudaSampler(driver, partition=partition, effort=effort) for sms, partition in by_sms.items()}
    todo.sort(key=lambda item: _sms(partitions[item[2].device]))
    notes: list[str] = []
    done = 0
    progress(0, len(todo), "")
    with objects_kept():
        while done < len(todo) and driver.now_s() < end_s:
            sms = _sms(partitions[todo[done][2].device])
            sampler = samplers[sms]
            try:
                for plan, key, task in todo[done : done + GROUP]:
                    full = sampler.held_bytes > driver.facts.memory_bytes * MEMORY_SHARE
                    if full or driver.now_s() >= end_s or _sms(partitions[task.device]) != sms:
                        break
                    done += 1
                    sampler.measure(plan, {key: task})
                    progress(done, len(todo), key.partition("|")[0])
                sampler.learn_geometry()
            finally:  # stores what was measured before an interruption, too
                store_samples(sampler.samples, sampler.failures, profile)
                notes += sampler.notes
                profile.notes = list(dict.fromkeys([*profile.notes, *sampler.notes]))
                save_samples(sampler.samples if keep_samples else None, profile, save_to)
                sampler.release()
    return Outcome(done, tuple(key for _, key, _ in todo[done:]), tuple(notes))


def _partition(device: str, machine: Machine, driver: Driver) -> Partition | None:
    """The partition of the GPU that represents a device of `machine`: the first of as many as share its memory, or None for all SMs."""
    sms = machine.device(device).sms
    if sms == driver.facts.sms:
        return None
    count = sum(other.memory == machine.device(device).memory for other in machine.devices)
    partition = driver.partitions(count)[0] if count > 1 else None
    actual = partition.sms if partition else driver.facts.sms
    if actual != sms:
        what = f"one of {count} partitions of {driver.facts.name}" if partition else driver.facts.name
        raise SchedcastError(
            f"{machine.name} says that {device} has {sms} SMs; {what} has {actual}: describe the machine that you calibrate"
        )
    return partition


def _sms(partition: Partition | None) -> int:
    """SMs of a partition; 0 for the whole GPU."""
    return partition.sms if partition else 0
