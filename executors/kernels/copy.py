"""Copies a tensor to another device's memory."""

from collections.abc import Callable

from simulator.plan import Task

from ..binding import Binding, Instance

KIND = "copy"


def compile_task(task: Task, binding: Binding) -> Callable[[Instance], None]:
    """A function that makes the write a fresh copy of the read on the target device."""
    (read,), (write,) = task.reads, task.writes
    get, put = binding.getter(read), binding.setter(write)
    target = binding.device(task.body.target)
    return lambda instance: put(instance, get(instance).to(target, copy=True))
