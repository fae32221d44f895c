"""What an op costs more in a step than alone because other ops ran in between: its code has left the core's nearest caches.

A sample taken right after another of the same op does not have that cost. It is the same few microseconds for every op, so it is measured
once, on a model of many different tiny ops, and becomes part of the machine's overhead per task.
"""

import statistics

import torch
from torch import nn

from calibrate.cpu.sampler import Sampler
from executors.cpu.backend import CpuBackend
from executors.tensors import job_tensors
from simulator.job import Job
from simulator.machine.machine import Machine
from simulator.machine.this_cpu import this_cpu
from simulator.models.factory import Factory
from simulator.plan.keys import cost_key
from simulator.plan.plan import Plan
from simulator.strategies import registry as strategies

_CHUNKS, _STEPS, _VISITS = 6, 12, 15


class _Tiny(nn.Module):
    """Some eighty ops of thirty kinds, each a few microseconds."""

    def __init__(self):
        super().__init__()
        self.convolution = nn.Conv2d(2, 4, 3, padding=1)
        self.batch_norm = nn.BatchNorm2d(4)
        self.pool = nn.MaxPool2d(2)
        self.layer_norm = nn.LayerNorm(16)
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.first, self.second = nn.Linear(16, 32), nn.Linear(32, 16)
        self.head = nn.Linear(16, 4)

    def forward(self, x):
        """(N, 2, 8, 8) -> (N, 4)."""
        x = torch.relu(self.pool(self.batch_norm(self.convolution(x))))
        x = self.layer_norm(x.flatten(2))
        x = x + self.attention(x, x, x, need_weights=False)[0]
        x = x + self.second(nn.functional.gelu(self.first(x)))
        x = torch.cat([x.tanh(), x.sigmoid(), x.exp().clamp(max=2.0)], dim=1)
        return self.head(x.mean(dim=1))


def _make(batch: int) -> tuple:
    return _Tiny(), torch.randn(batch, 2, 8, 8), torch.randint(0, 4, (batch,))


def tiny_job() -> Job:
    """Two samples for the model of tiny ops."""
    job = Job("tiny", 2)
    job.__dict__["factory"] = Factory("tiny", _make, __file__)
    return job


def tiny_plan(job: Job, machine: Machine) -> Plan:
    """Its plan with many small updates."""
    strategy, options = strategies.parse("backward-fusion")
    return strategy.plan(job, machine, None, options)


def unfamiliar_s(backend: CpuBackend) -> float:
    """Seconds per task by which tiny ops take longer in a step than right after themselves; at least 0."""
    job, machine = tiny_job(), this_cpu()
    plan = tiny_plan(job, machine)
    built = job.build()
    program = backend.load(plan, job_tensors(job, built, job.graph()))
    sampler = Sampler(backend)
    keys = plan.keys(machine)
    sampler.add(plan, keys)
    for turn in range(_VISITS):
        sampler.visit(list(keys), turn)
    measured: dict[int, list[float]] = {}
    for _ in range(_CHUNKS):
        for item in program.run(_STEPS).times:
            measured.setdefault(item.index, []).append(item.end_s - item.start_s)
    names = {cost_key(task, machine): index for index, task in enumerate(plan.tasks)}
    extra = [
        statistics.median(measured[index]) - statistics.median(sampler.samples[key].warm_s[1:])
        for key, index in names.items()
        if key not in sampler.failures
    ]
    return max(0.0, statistics.fmean(extra))
