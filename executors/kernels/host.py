"""Occupies a worker's lane for a stated time. On CUDA the stream calls the host instead; see `executors.cuda.issue`."""

import time
from collections.abc import Callable

from executors.binding import Binding, Instance
from simulator.plan.task import Task

KIND = "host"


def compile_task(task: Task, binding: Binding) -> Callable[[Instance], None]:
    """A function that sleeps for the body's duration."""
    duration_s = task.body.duration_s
    if not duration_s:
        return lambda instance: None
    return lambda instance: time.sleep(duration_s)
