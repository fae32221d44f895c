"""What PyTorch's own loop adds to every op on a CPU. Its tiny ops run on one core, however many threads there are."""

import mmap
import platform
import statistics
import time
from collections.abc import Callable

import torch

from calibrate.cpu.sampler import PairSampler
from calibrate.loop import loop_costs, loop_plan
from simulator.machine.this_cpu import this_cpu
from traces.documents.profile import LoopCosts

_SAMPLES = 15
#: Bytes of fresh memory that are written at a time: more than the caches of many CPUs hold, little enough to take milliseconds.
_FRESH_BYTES = 24 << 20


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
    costs = loop_costs(job, plan, machine, own_s, _seconds_of)
    return costs.model_copy(update={"fresh_s_per_byte": _fresh_s_per_byte()})


def _fresh_s_per_byte() -> float:
    """How much longer the first write to fresh memory takes than a later one, per byte, on PyTorch's threads; 0 without glibc's malloc."""
    if platform.libc_ver()[0] != "glibc":
        return 0.0
    return max(0.0, statistics.median(_first_write_s() for _ in range(_SAMPLES)) / _FRESH_BYTES)


def _first_write_s() -> float:
    block = torch.frombuffer(mmap.mmap(-1, _FRESH_BYTES), dtype=torch.float32)
    first_s, _, later_s = (_seconds_of(lambda: block.fill_(1.0)) for _ in range(3))
    return first_s - later_s


def _seconds_of(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin
