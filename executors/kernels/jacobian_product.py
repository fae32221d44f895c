"""Multiplies two transposed Jacobians, or a transposed Jacobian and a gradient."""

from collections.abc import Callable

from executors.binding import Binding, Instance
from executors.kernels.csr.products import compile_product
from simulator.plan.task import Task

KIND = "jacobian-product"


def compile_task(task: Task, binding: Binding) -> Callable[[Instance], None]:
    """A function that multiplies an instance's tensors and stores the product. The sparsity pattern is computed here, once."""
    left, right = task.reads
    multiply = compile_product(task.body, task.body.samples(task), binding.device(task.device))
    get_left, get_right, put = binding.getter(left), binding.getter(right), binding.setter(task.writes[0])

    def run(instance: Instance) -> None:
        put(instance, multiply(get_left(instance), get_right(instance)))

    return run
