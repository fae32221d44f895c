"""Ops for which PyTorch has no kernel: RMS norm's backward on the CPU (its forward is decomposed), and products of groups in float64."""

from collections.abc import Callable

from executors.binding import Binding, Instance
from simulator.model.ops.products import by_group
from simulator.model.ops.rms_norm import BACKWARD, backward
from simulator.plan.bodies.op_class import GROUPED_PRODUCT
from simulator.plan.task import Task


def _rms_norm_backward(task: Task, binding: Binding) -> Callable[[Instance], None] | None:
    if binding.forms.cuda:
        return None
    fill, store = binding.arguments(task), binding.results(task)
    return lambda instance: store(instance, backward(*fill(instance)[0]))


def _by_group(task: Task, binding: Binding) -> Callable[[Instance], None] | None:
    if task.writes[0].dtype != "float64":
        return None
    fill, store = binding.arguments(task), binding.results(task)

    def run(instance: Instance) -> None:
        (left, right, *rest), named = fill(instance)
        store(instance, (by_group(left, right, named["offs"] if "offs" in named else rest[0]),))

    return run


TARGETS = {str(BACKWARD): _rms_norm_backward, GROUPED_PRODUCT: _by_group}
