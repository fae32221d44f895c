"""A model of many different tiny ops, on which both testbeds measure overheads per task."""

import torch
from torch import nn

from simulator.machine.machine import Machine
from simulator.model.factory import Factory
from simulator.model.job import Job
from simulator.plan.plan import Plan
from simulator.strategies import registry as strategies


class _Tiny(nn.Module):
    """About eighty ops of thirty kinds, each of which takes a few microseconds.

    Without `lowered`, it has no op that executors run in another form than PyTorch does.
    """

    def __init__(self, lowered: bool):
        super().__init__()
        self.convolution = nn.Conv2d(2, 4, 3, padding=1)
        self.batch_norm = nn.BatchNorm2d(4) if lowered else nn.Identity()
        self.pool = nn.MaxPool2d(2)
        self.layer_norm = nn.LayerNorm(16)
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True) if lowered else None
        self.first, self.second = nn.Linear(16, 32), nn.Linear(32, 16)
        self.head = nn.Linear(16, 4)

    def forward(self, x):
        """(N, 2, 8, 8) -> (N, 4)."""
        x = torch.relu(self.pool(self.batch_norm(self.convolution(x))))
        x = self.layer_norm(x.flatten(2))
        if self.attention is not None:
            x = x + self.attention(x, x, x, need_weights=False)[0]
        x = x + self.second(nn.functional.gelu(self.first(x)))
        x = torch.cat([x.tanh(), x.sigmoid(), x.exp().clamp(max=2.0)], dim=1)
        return self.head(x.mean(dim=1))


def tiny_job(lowered: bool = True) -> Job:
    """A job that trains the tiny model with a batch of two samples.

    `lowered`: with the ops that executors run in another form than PyTorch does, batch-norm and attention.
    """

    def make(batch: int) -> tuple:
        return _Tiny(lowered), torch.randn(batch, 2, 8, 8), torch.randint(0, 4, (batch,))

    job = Job("tiny" if lowered else "tiny-plain", 2)
    job.__dict__["factory"] = Factory(job.model, make, __file__)
    return job


def tiny_plan(job: Job, machine: Machine) -> Plan:
    """The backward-fusion plan of `job`, which has many small updates."""
    strategy, options = strategies.parse("backward-fusion")
    return strategy.plan(job, machine, None, options)
