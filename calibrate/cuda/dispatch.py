"""The executor's own host time per task: its loop, and the extra time to issue an op when other ops were issued in between.

An op that is issued right after another of its kind finds its code in the core's caches; in a step it does not. Both costs are the same for
every op, so they are measured together, on a model of many different tiny ops: the time of a period less the time of its ops alone.
"""

import statistics

from calibrate.cuda.bench import Effort
from calibrate.cuda.sampler import CudaSampler
from calibrate.tiny_model import tiny_job, tiny_plan
from executors.cuda.backend import CudaBackend
from executors.cuda.driver import Driver
from executors.tensors import job_tensors
from simulator.machine.machine import HOST, Device, HostLane, Link, Machine, Memory
from simulator.plan.dependencies import Dependencies
from simulator.plan.keys import cost_key

_WARM_UP, _PERIODS, _CHUNKS = 5, 8, 5


def dispatch_s(driver: Driver, record_s: float, wait_s: float, effort: Effort | None = None) -> float:
    """Host seconds per task besides its op, at least 0. `record_s` and `wait_s` are those of recording an event and of waiting for one."""
    machine = plain_machine(driver)
    job = tiny_job()
    plan = tiny_plan(job, machine)
    sampler = CudaSampler(driver, effort=effort)
    sampler.measure(plan, plan.keys(machine))
    issue_s = {key: statistics.median(samples.issue_s) for key, samples in sampler.samples.items() if samples.issue_s}
    sampler.release()
    alone_s = sum(issue_s.get(cost_key(task, machine), 0.0) for task in plan.tasks)
    waits = sum(map(len, (dependencies := Dependencies(plan)).waits(dependencies.steady)))
    program = CudaBackend(machine, driver).load(plan, job_tensors(job, job.build(), job.graph()))
    program.run(_WARM_UP)
    periods = [program.issue_s(_PERIODS) for _ in range(_CHUNKS)]
    return max(0.0, statistics.median(periods) - alone_s - waits * (record_s + wait_s)) / len(plan.tasks)


def plain_machine(driver: Driver, partitions: int = 1) -> Machine:
    """The GPU or its partitions, with only what an executor needs to know. Raises StepcastError if the GPU cannot be split."""
    facts = driver.facts
    names, sms = ["cuda:0"], facts.sms
    if partitions > 1:
        names, sms = [f"cuda:0/{index}" for index in range(partitions)], driver.partitions(partitions)[0].sms
    devices = tuple(Device(name, "gpu", sms, {"fp32": 1.0}, "memory", priority_levels=facts.priority_levels) for name in names)
    memory = Memory("memory", facts.memory_bytes, 1.0, facts.cache_bytes)
    links = tuple(Link(*ends, 0.0, 1.0) for name in names for ends in ((HOST, name), (name, HOST)))
    whole = plain_machine(driver) if partitions > 1 else None
    return Machine(facts.name, devices, (memory,), (HostLane("host", tuple(names), 0.0),), links, whole=whole)
