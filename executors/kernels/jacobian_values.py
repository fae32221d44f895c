"""Computes the values of an op's transposed Jacobian, or of many steps of one, as the body's rule says."""

from collections.abc import Callable

import torch

from simulator.plan import Task

from ..binding import Binding, Instance
from .csr import values as csr

KIND = "jacobian-values"

#: By `rule.of`: compile(rule, dtype, device), which gives a function of the tensors read. Rules without a static pattern join here.
_COMPILE = {**csr.COMPILE}


def compile_task(task: Task, binding: Binding) -> Callable[[Instance], None]:
    """A function that computes the values from an instance's tensors and stores them."""
    rule, (write,) = task.body.rule, task.writes
    values = _COMPILE[rule.of](rule, getattr(torch, write.dtype), binding.device(task.device))
    getters, put = [binding.getter(operand) for operand in task.reads], binding.setter(write)

    def run(instance: Instance) -> None:
        put(instance, values(*[get(instance) for get in getters]))

    return run
