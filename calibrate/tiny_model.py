"""A model of many different tiny ops, on which both testbeds measure overheads per task, and what PyTorch's own loop adds to them.

The time of the ops themselves hardly counts: on a CPU the ops are timed, on a GPU the host's time to issue them on idle streams. The
optimizer is timed on one parameter and on many, since its cost grows with their number.
"""

import statistics
from collections.abc import Callable, Mapping

import torch
from torch import nn

from calibrate.numerics import reference
from executors.kernels.update import apply_update, initial_state, torch_optimizer
from executors.program import Backend
from simulator.machine.machine import Machine
from simulator.model.factory import Factory
from simulator.model.job import Job
from simulator.plan.bodies.update import Update
from simulator.plan.keys import cost_key
from simulator.plan.plan import Plan
from simulator.plan.task import BACKWARD, FORWARD
from simulator.strategies import registry as strategies
from traces.documents.comparison import PYTORCH
from traces.documents.profile import LoopCosts


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


#: Steps that are timed by default, and those before them that are not.
_STEPS, _WARM_UP = 40, 10
#: Views that are timed together.
_VIEWS = 200
#: Numbers of parameters with which the optimizer is timed, and the elements of each.
_FEW, _MANY, _ELEMENTS = 1, 33, 16

#: Takes a function that issues work, runs it, and returns its seconds.
SecondsOf = Callable[[Callable[[], object]], float]


def loop_plan(machine: Machine) -> tuple[Job, Plan]:
    """The job of tiny ops, and its plan as PyTorch's own loop on `machine`."""
    job = tiny_job(lowered=False)
    strategy, options = strategies.parse(PYTORCH)
    return job, strategy.plan(job, machine.for_pytorch, None, options)


def loop_costs(
    job: Job,
    plan: Plan,
    machine: Machine,
    own_s: Mapping[str, float],
    seconds_of: SecondsOf,
    backend: Backend | None = None,
    steps: int = _STEPS,
) -> LoopCosts:
    """Time the loop. `job` and `plan` are those of `loop_plan`; `own_s`: seconds of the executor's call by cost key.

    `backend`: the GPU's (default: the loop runs on the CPU).
    """
    device = backend.torch_device if backend is not None else torch.device("cpu")
    forward_s, backward_s = _passes(job, seconds_of, backend, steps)
    view_s = _view_s(seconds_of, device)
    tasks = {phase: [task for task in plan.tasks if task.phase == phase] for phase in (FORWARD, BACKWARD)}
    alone_s = {
        phase: sum(own_s.get(cost_key(task, machine), 0.0) + task.view_calls * view_s for task in each) for phase, each in tasks.items()
    }
    alone_s[BACKWARD] += len(job.graph().parameters) * view_s  # a gradient is handed over as a view
    few_s, many_s = (_update_s(job, count, seconds_of, device, steps) for count in (_FEW, _MANY))
    parameter_s = (many_s - few_s) / (_MANY - _FEW)
    return LoopCosts(
        view_s=view_s,
        forward_s=(forward_s - alone_s[FORWARD]) / len(tasks[FORWARD]),
        backward_s=(backward_s - alone_s[BACKWARD]) / len(tasks[BACKWARD]),
        update_s=few_s - _FEW * parameter_s,
        parameter_s=parameter_s + view_s,
    )


def _passes(job: Job, seconds_of: SecondsOf, backend: Backend | None, steps: int) -> tuple[float, float]:
    """Median seconds of the forward pass with the loss, and of the backward pass."""
    loop = reference(job, job.build(), same_masks=False, backend=backend)
    inputs, target = loop.microbatches[0]
    losses: list[torch.Tensor] = []
    seconds: dict[str, list[float]] = {FORWARD: [], BACKWARD: []}
    for _ in range(_WARM_UP + steps):
        loop.optimizer.zero_grad(set_to_none=True)
        losses.clear()
        seconds[FORWARD].append(seconds_of(lambda: losses.append(loop.loss(loop.module(*inputs), target))))
        seconds[BACKWARD].append(seconds_of(lambda: losses[0].backward()))
        loop.optimizer.step()
    return statistics.median(seconds[FORWARD][_WARM_UP:]), statistics.median(seconds[BACKWARD][_WARM_UP:])


def _view_s(seconds_of: SecondsOf, device: torch.device) -> float:
    """Median seconds of a view, with and without autograd: as many in forward as in backward."""
    plain, tracked = torch.zeros(4, 4, device=device), torch.zeros(4, 4, device=device, requires_grad=True)

    def views() -> None:
        for _ in range(_VIEWS // 2):
            plain.t()
            tracked.t()

    return statistics.median(seconds_of(views) for _ in range(_WARM_UP)) / _VIEWS


def _update_s(job: Job, count: int, seconds_of: SecondsOf, device: torch.device, steps: int) -> float:
    """Median seconds by which the optimizer's step and `zero_grad` take longer than the executor's update of the same parameters."""
    parameters = [torch.zeros(_ELEMENTS, device=device, requires_grad=True) for _ in range(count)]
    grads = [torch.ones(_ELEMENTS, device=device) for _ in parameters]
    optimizer = torch_optimizer(job.optimizer, job.form, parameters, job.hyper)
    body = Update(job.optimizer, job.form, tuple(map(str, range(count))), job.hyper, capturable=False)
    own = [tensor for p in parameters for tensor in (p.detach().clone(), *initial_state(job.optimizer, p).values())]
    extra_s = []

    def step() -> None:
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    for _ in range(_WARM_UP + steps):
        for parameter, grad in zip(parameters, grads, strict=True):
            parameter.grad = grad
        extra_s.append(seconds_of(step) - seconds_of(lambda: apply_update(body, grads, own)))
    return statistics.median(extra_s[_WARM_UP:])
