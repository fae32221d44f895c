"""The cost of switching from one op to another: an op in a step takes longer than in a loop, since other ops evicted its code.

A sample taken right after another sample of the same op does not have this cost. It is the same few microseconds for every op, so it is
measured once, on a model of many different tiny ops, and becomes part of the machine's overhead per task.
"""

import statistics

from calibrate.cpu.sampler import Sampler
from calibrate.tiny_model import tiny_job, tiny_plan
from executors.cpu.backend import CpuBackend
from executors.tensors import job_tensors
from simulator.machine.this_cpu import this_cpu
from simulator.plan.keys import cost_key

_CHUNKS, _STEPS, _SAMPLES = 6, 12, 15


def op_switch_s(backend: CpuBackend) -> float:
    """Mean seconds by which a tiny op takes longer in a step than when it is repeated; at least 0."""
    job, machine = tiny_job(), this_cpu()
    plan = tiny_plan(job, machine)
    built = job.build()
    program = backend.load(plan, job_tensors(job, built, job.graph()))
    sampler = Sampler(backend)
    keys = plan.keys(machine)
    sampler.add(plan, keys)
    for number in range(_SAMPLES):
        sampler.sample(list(keys), number)
    measured: dict[int, list[float]] = {}
    for _ in range(_CHUNKS):
        for item in program.run(_STEPS).times:
            measured.setdefault(item.index, []).append(item.end_s - item.start_s)
    index_of = {cost_key(task, machine): index for index, task in enumerate(plan.tasks)}
    extra_s = [
        statistics.median(measured[index]) - statistics.median(sampler.samples[key].warm_s[1:])
        for key, index in index_of.items()
        if key not in sampler.failures
    ]
    return max(0.0, statistics.fmean(extra_s))
