"""The executor's own host time per task: its loop, and the extra time to issue an op when other ops were issued in between.

An op that is issued right after another of its kind finds its code in the core's caches; in a step it does not. Both costs are the same for
every op, so they are measured together, on a model of many different tiny ops: the time of a period less the time of its ops alone.
"""

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from calibrate.cuda.bench import Effort
from calibrate.cuda.sampler import CudaSampler
from calibrate.loop import loop_plan
from calibrate.tiny_model import tiny_job, tiny_plan
from executors.cuda.backend import CudaBackend
from executors.cuda.driver import Driver
from executors.cuda.program import EagerProgram
from executors.tensors import job_tensors
from simulator.machine.machine import HOST, Device, HostLane, Link, Machine, Memory
from simulator.model.job import Job
from simulator.plan.dependencies import Dependencies
from simulator.plan.keys import cost_key
from simulator.plan.plan import Plan

_WARM_UP, _PERIODS, _CHUNKS = 5, 8, 5


@dataclass(frozen=True)
class TinyOps:
    """A machine with the GPU, the plan of many tiny ops that the executor runs, and the host seconds to issue each op alone, by cost key.

    `loop_job` and `loop` are a job of such ops, and its plan as PyTorch's own loop.
    """

    machine: Machine
    job: Job
    plan: Plan
    loop_job: Job
    loop: Plan
    issue_s: Mapping[str, float]

    @staticmethod
    def measure(driver: Driver, effort: Effort | None = None) -> "TinyOps":
        """Time the issue of every op."""
        machine = plain_machine(driver)
        loop_job, loop = loop_plan(machine)
        job = tiny_job()
        plan = tiny_plan(job, machine)
        return TinyOps(machine, job, plan, loop_job, loop, CudaSampler(driver, effort=effort).issue_s([plan, loop], machine))


def dispatch_s(driver: Driver, tiny: TinyOps, record_s: float, wait_s: float) -> float:
    """Host seconds per task besides its op, at least 0. `record_s` and `wait_s` are those of recording an event and of waiting for one."""
    plan, job = tiny.plan, tiny.job
    alone_s = sum(tiny.issue_s.get(cost_key(task, tiny.machine), 0.0) for task in plan.tasks)
    waits = sum(map(len, (dependencies := Dependencies(plan)).waits(dependencies.steady)))
    program = cast(EagerProgram, CudaBackend(tiny.machine, driver).load(plan, job_tensors(job, job.build(), job.graph())))
    program.run(_WARM_UP)
    periods = [program.issue_s(_PERIODS) for _ in range(_CHUNKS)]
    return max(0.0, statistics.median(periods) - alone_s - waits * (record_s + wait_s)) / len(plan.tasks)


def plain_machine(driver: Driver, partitions: int = 1) -> Machine:
    """The GPU or its partitions, with only what an executor needs to know. Raises SchedcastError if the GPU cannot be split."""
    facts = driver.facts
    names, sms = ["cuda:0"], facts.sms
    if partitions > 1:
        names, sms = [f"cuda:0/{index}" for index in range(partitions)], driver.partitions(partitions)[0].sms
    devices = tuple(Device(name, "gpu", sms, {"fp32": 1.0}, "memory", priority_levels=facts.priority_levels) for name in names)
    memory = Memory("memory", facts.memory_bytes, 1.0, facts.cache_bytes)
    links = tuple(Link(*ends, 0.0, 1.0) for name in names for ends in ((HOST, name), (name, HOST)))
    whole = plain_machine(driver) if partitions > 1 else None
    return Machine(facts.name, devices, (memory,), (HostLane("host", tuple(names), 0.0),), links, whole=whole)
