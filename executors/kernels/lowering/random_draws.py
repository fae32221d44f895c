"""Random draws of the model's own (torch.randn_like): on the CPU, the generator is seeded for each draw.

On CUDA they are like the draws of dropout, with which they share their numbers; see `executors.forms`.
"""

from collections.abc import Callable

import torch

from executors.binding import Binding, Instance
from executors.dropout import key, run_seeded
from executors.kernels.call import compile_call
from executors.kernels.lowering import dropout
from simulator.plan.bodies.random_draws import RANDOM
from simulator.plan.task import Task


def _lower(task: Task, binding: Binding) -> Callable[[Instance], None] | None:
    return dropout.lower(task, binding, _seeded)


def _seeded(task: Task, binding: Binding) -> Callable[[Instance], None]:
    call, index = compile_call(task, binding), task.body.draw
    return lambda instance: run_seeded(key(binding.seed, instance.iteration, index), lambda: call(instance))


def _overloads(name: str) -> list[str]:
    packet = getattr(torch.ops.aten, name)
    return [str(getattr(packet, overload)) for overload in packet.overloads()]


TARGETS = {target: _lower for name in RANDOM for target in _overloads(name) if target not in dropout.TARGETS}
