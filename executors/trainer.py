"""Training a user's module by a plan."""

from collections.abc import Mapping
from typing import Any

import torch

from executors.kernels.update import state_dict
from executors.run import Backend
from executors.tensors import job_tensors
from simulator.job import Job
from simulator.models.built import Built
from simulator.plan.plan import Plan


class Trainer:
    """Runs a job's plan step by step on new data, and keeps the module up to date when it is looked at.

    The executor trains copies. `sync` completes pending updates (forward-fusion delays them) and writes parameters and buffers back to the
    module; so do, by themselves, a forward of the module (evaluation) and its `state_dict`.
    """

    def __init__(self, plan: Plan, job: Job, built: Built, backend: Backend):
        """`built` is what `job.build()` made: its module is the one trained. The plan must be one of the job's."""
        self.plan, self.job, self.module = plan, job, built.module
        self._built = built
        self._program = backend.load(plan, job_tensors(job, built, job.graph()), job.seed)
        self._pending = False
        self.module.register_forward_pre_hook(lambda *_: self.sync())
        self.module.register_state_dict_pre_hook(lambda *_: self.sync())

    def step(self, inputs: Any, target: Any) -> float | None:
        """Train on one batch; its loss, or None where the plan reports it in a later step (pipelines).

        `inputs` as the factory gives them: a tensor, a tuple, or a dict of keyword arguments. Raises ValueError for another shape than the
        job's.
        """
        keywords = dict(inputs) if isinstance(inputs, Mapping) else {}
        positional = () if keywords else tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,)
        fed = Built(self.module, positional, keywords, target, self._built.loss).named_inputs()
        for name, tensor in self._built.named_inputs().items():
            given = fed.get(name)
            if given is None or given.shape != tensor.shape or given.dtype != tensor.dtype:
                shown = "nothing" if given is None else f"{tuple(given.shape)} of {given.dtype}"
                raise ValueError(f"{name} is {shown}; the job was planned for {tuple(tensor.shape)} of {tensor.dtype}")
        iteration = self._program.iterations
        self._program.run(1, [fed])
        self._pending = True
        losses = self._program.losses.pop(iteration, None)
        return None if losses is None else float(sum(map(float, losses)) / len(losses))

    def sync(self) -> None:
        """Complete all begun iterations and write parameters and buffers back to the module."""
        if not self._pending:
            return
        self._program.sync()
        self._pending = False
        carried = self._program.binding.carried
        with torch.no_grad():
            for name, tensor in (*self.module.named_parameters(), *self.module.named_buffers()):
                if name in carried:
                    tensor.copy_(carried[name])

    def optimizer_state_dict(self) -> dict:
        """The optimizer's state in torch.optim's form, for a checkpoint: load it into the optimizer of plain PyTorch."""
        self.sync()
        job, carried = self.job, self._program.binding.carried
        trained = {name: p for name, p in self.module.named_parameters() if p.requires_grad}
        states = [
            {name.partition("::")[2]: tensor for name, tensor in carried.items() if name.startswith(f"{parameter}::")}
            for parameter in trained
        ]
        return state_dict(job.optimizer, job.form, list(trained.values()), states, job.hyper)
