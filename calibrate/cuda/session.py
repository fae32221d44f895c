"""A calibration session on a GPU: measures the missing keys of plans, each within its part of the GPU, and writes them into a profile."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from calibrate.cpu.session import Progress, missing_keys
from calibrate.cuda.bench import Effort, objects_kept
from calibrate.cuda.sampler import MEMORY_SHARE, CudaSampler
from calibrate.samples import save_samples, store_samples
from executors.cuda.driver import Driver, Partition
from simulator.machine.machine import Machine
from simulator.plan.plan import Plan
from traces.errors import StepcastError
from traces.profile import Profile

#: Keys between two saves, which share one profiler session, at most. Few sessions: each takes about a second, and once used the profiler
#: may slow the launches that follow. Operands, of which the profiler needs all at once, end a group early.
GROUP = 300


@dataclass(frozen=True)
class Outcome:
    """What a session did: how many keys it took up, failures included, the keys that a deadline left, and what was odd, in words."""

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

    No key is begun later than `deadline_s` seconds from now; another session goes on with what is left. Raises StepcastError where
    `machine` does not describe this GPU, or a key left it unusable; what was measured before is in the profile then. Without `keep_samples`
    the profile is saved, and raw samples are not.
    """
    end_s = float("inf") if deadline_s is None else driver.now_s() + deadline_s
    todo = [(plan, key, task) for plan, keys in missing_keys(plans, machine, profile) for key, task in keys.items()]
    parts = {device: _part(device, machine, driver) for device in dict.fromkeys(task.device for _, _, task in todo)}
    samplers = {sms: CudaSampler(driver, partition=part, effort=effort) for sms, part in {_sms(p): p for p in parts.values()}.items()}
    todo.sort(key=lambda item: _sms(parts[item[2].device]))
    notes: list[str] = []
    done = 0
    progress(0, len(todo), "")
    with objects_kept():
        while done < len(todo) and driver.now_s() < end_s:
            sms = _sms(parts[todo[done][2].device])
            sampler = samplers[sms]
            try:
                for plan, key, task in todo[done : done + GROUP]:
                    full = sampler.held_bytes > driver.facts.memory_bytes * MEMORY_SHARE
                    if full or driver.now_s() >= end_s or _sms(parts[task.device]) != sms:
                        break
                    done += 1
                    sampler.measure(plan, {key: task})
                    progress(done, len(todo), key.partition("|")[0])
                sampler.learn_geometry()
            finally:  # also what was measured before an interruption
                store_samples(sampler.samples, sampler.failures, profile)
                notes += sampler.notes
                profile.notes = list(dict.fromkeys([*profile.notes, *sampler.notes]))
                save_samples(sampler.samples if keep_samples else None, profile, save_to)
                sampler.release()
    return Outcome(done, tuple(key for _, key, _ in todo[done:]), tuple(notes))


def _part(device: str, machine: Machine, driver: Driver) -> Partition | None:
    """The part of the GPU that stands for a device of `machine`: all of it, or the first of as many as share its memory."""
    sms = machine.device(device).sms
    if sms == driver.facts.sms:
        return None
    count = sum(other.memory == machine.device(device).memory for other in machine.devices)
    part = driver.partitions(count)[0] if count > 1 else None
    there = part.sms if part else driver.facts.sms
    if there != sms:
        what = f"one of {count} parts of {driver.facts.name}" if part else driver.facts.name
        raise StepcastError(f"{machine.name} says that {device} has {sms} SMs; {what} has {there}: describe the machine that you calibrate")
    return part


def _sms(part: Partition | None) -> int:
    """0 stands for all."""
    return part.sms if part else 0
