"""What PyTorch's own loop adds to every op on a CPU. Its tiny ops run on one core, however many threads there are."""

import statistics
import time
from collections.abc import Callable

import torch

from calibrate.cpu.sampler import PairSampler
from calibrate.loop import loop_costs, loop_plan
from simulator.machine.this_cpu import this_cpu
from traces.profile import LoopCosts

_SAMPLES = 15


def measure_loop(sampler: PairSampler) -> LoopCosts:
    """Time a loop of tiny ops on this thread against the same ops one by one. `sampler`: of this thread, without keys."""
    machine = this_cpu(cores=1)
    job, plan = loop_plan(machine)
    keys = plan.keys(machine)
    sampler.add(plan, keys)
    with torch.no_grad():
        for number in range(_SAMPLES):
            sampler.sample(list(keys), number)
    own_s = {key: statistics.median(s.warm_s[1:]) for key, s in sampler.samples.items() if key not in sampler.failures}
    return loop_costs(job, plan, machine, own_s, _seconds_of)


def _seconds_of(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin
