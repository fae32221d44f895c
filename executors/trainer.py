"""Trains a user's module with a plan."""

from typing import Any

from executors import in_turn
from executors.binding import same_strides, with_strides
from executors.kernels.update import initial_state, state_dict
from executors.program import Backend
from executors.tensors import job_tensors, module_tensors
from simulator.model.built import Built, arguments
from simulator.model.job import Job
from simulator.plan.plan import Plan


class Trainer:
    """Runs a job's plan step by step on new data.

    The executor trains copies of the module's tensors. `sync` completes pending updates (forward-fusion delays them) and writes parameters
    and buffers back to the module. A forward pass of the module and its `state_dict` call `sync` by themselves.
    """

    def __init__(self, plan: Plan, job: Job, built: Built, backend: Backend):
        """`plan`: a plan of the job. `built`: the result of `job.build()`, whose module is trained."""
        self.plan, self.job, self.module = plan, job, built.module
        self._built = built
        self._program = in_turn.load(backend, plan, job_tensors(job, built, job.graph()), job.seed)
        self._pending = False
        self.module.register_forward_pre_hook(lambda *_: self.sync())
        self.module.register_state_dict_pre_hook(lambda *_: self.sync())

    def step(self, inputs: Any, target: Any) -> float | None:
        """Train on one batch. Returns its loss, or None if the plan computes the loss in a later step (pipelines).

        `inputs`: as the factory returns them: a tensor, a tuple, or a dict of keyword arguments. Raises ValueError if a shape or dtype
        differs from the job's.
        """
        fed = Built(self.module, *arguments(self.module, inputs), target, self._built.loss).named_inputs()
        for name, tensor in self._built.named_inputs().items():
            actual = fed.get(name)
            if actual is None or actual.shape != tensor.shape or actual.dtype != tensor.dtype:
                shown = "missing" if actual is None else f"{tuple(actual.shape)} of {actual.dtype}"
                raise ValueError(f"{name} is {shown}; the job was planned for {tuple(tensor.shape)} of {tensor.dtype}")
            if not same_strides(actual, tensor.stride()):
                fed[name] = with_strides(actual, tensor.stride())
        iteration = self._program.iterations
        self._program.run(1, [fed])
        self._pending = True
        losses = self._program.losses.pop(iteration, None)
        return None if losses is None else float(sum(map(float, losses)) / len(losses))

    def sync(self) -> None:
        """Complete every iteration begun, and write parameters and buffers back to the module."""
        if not self._pending:
            return
        self._program.sync()
        self._pending = False
        self._program.copy_current(module_tensors(self.module))

    def optimizer_state_dict(self) -> dict:
        """The optimizer's state_dict in torch.optim's form, for a checkpoint. It can be loaded into the optimizer of plain PyTorch."""
        self.sync()
        job = self.job
        trained = {name: p for name, p in self.module.named_parameters() if p.requires_grad}
        updated = set(job.graph().parameters)  # torch.optim has no state for parameters without a gradient
        states = {name: initial_state(job.optimizer, p) if name in updated else {} for name, p in trained.items()}
        self._program.copy_current({f"{name}::{state}": tensor for name, own in states.items() for state, tensor in own.items()})
        return state_dict(job.optimizer, job.form, list(trained.values()), list(states.values()), job.hyper)
