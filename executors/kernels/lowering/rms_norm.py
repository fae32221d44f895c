"""The backward of RMS norm on the CPU, where PyTorch has no kernel for the whole op. The forward op runs as PyTorch decomposes it."""

from collections.abc import Callable

from executors.binding import Binding, Instance
from simulator.model.ops.rms_norm import BACKWARD, backward
from simulator.plan.task import Task


def _backward(task: Task, binding: Binding) -> Callable[[Instance], None] | None:
    if binding.forms.cuda:
        return None
    fill, store = binding.arguments(task), binding.results(task)

    def run(instance: Instance) -> None:
        args, _ = fill(instance)
        store(instance, backward(*args))

    return run


TARGETS = {str(BACKWARD): _backward}
