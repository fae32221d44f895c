"""How much of a step a plan has: one device for all that do the same (`DeviceClass`), and some microbatches for all (`Repeat`)."""

import math

from simulator.machine.machine import Machine
from simulator.model.job import Job

#: Microbatches, and tasks of a step, up to which plans have all of them.
MOST_MICROBATCHES, MOST_TASKS = 6, 20_000
#: The microbatches of a plan that runs them one after another and omits some: two that are compared and the last one. Others come before
#: these: the first, whose gradients the others are added to; and those whose sums over devices nothing waits for yet.
_SHOWN = 3


def folds(fold: str, job: Job, machine: Machine, most_devices: float = math.inf, per_replica: int = 1, tasks: int = 0) -> bool:
    """Whether one device represents all devices of a plan, which a library's collectives allow. `fold`: the option of strategies.

    `most_devices`: with more, it does, however few tasks there are. `per_replica`: the devices that divide a replica's microbatches.
    `tasks`: those of a plan of all devices; 0: if each runs the ops of its replica.
    """
    if fold != "auto":
        return fold == "on"
    if not machine.library:
        return False
    parts = len(machine.devices) // per_replica * job.accumulate
    tasks = tasks or len(machine.devices) * job.accumulate * len(job.graph(job.batch // parts, parts).ops)
    return len(machine.devices) > most_devices or tasks > MOST_TASKS


def omits(job: Job, microbatches: int, tasks: int, fold: str = "auto") -> bool:
    """Whether a plan of this many microbatches and tasks may omit microbatches. `fold`: the option of strategies that have one."""
    return job.compact and fold != "off" and microbatches > MOST_MICROBATCHES and (fold == "on" or tasks > MOST_TASKS)


def omitted(job: Job, tasks: int, fold: str = "auto", first: int = 1) -> int:
    """How many microbatches a plan omits that runs them one after another.

    `tasks`: those of a microbatch. `first`: how many microbatches come before the first one that does the same as the next.
    """
    return job.accumulate - first - _SHOWN if omits(job, job.accumulate, job.accumulate * tasks, fold) else 0
