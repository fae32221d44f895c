"""Computes the values of an op's transposed Jacobian, or of the Jacobians of many recurrent steps, by the body's rule."""

from collections.abc import Callable

import torch

from executors.binding import Binding, Instance
from executors.kernels.csr import values as csr
from executors.kernels.csr.full import to_full
from executors.kernels.step_jacobians import compile_steps
from simulator.plan.task import Task

KIND = "jacobian-values"


def compile_task(task: Task, binding: Binding) -> Callable[[Instance], None]:
    """A function that computes the values from an instance's tensors and stores them."""
    rule, (write,) = task.body.rule, task.writes
    device = binding.device(task.device)
    static = csr.COMPILE.get(rule.of)
    values = static(rule, getattr(torch, write.dtype), device) if static is not None else compile_steps(task, binding)
    full = to_full(rule.pattern(), device) if task.body.full else None
    getters, put = [binding.getter(operand) for operand in task.reads], binding.setter(write)

    def run(instance: Instance) -> None:
        result = values(*[get(instance) for get in getters])
        put(instance, result if full is None else full(result))

    return run
