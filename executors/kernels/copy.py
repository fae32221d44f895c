"""Copies tensors between memories, and pauses: a task of the host sleeps. On CUDA its stream calls the host; see `executors.cuda.issue`.

A task that the host waits for is a pause of no length.
"""

import time
from collections.abc import Callable

import torch

from executors.binding import Binding, Instance
from simulator.machine.machine import HOST
from simulator.plan.bodies.copy import ALIAS, LINK
from simulator.plan.task import Task


def compile_pause(task: Task, binding: Binding) -> Callable[[Instance], None]:
    """A function that sleeps for the body's duration."""
    duration_s = task.body.duration_s
    if not duration_s:
        return lambda instance: None
    return lambda instance: time.sleep(duration_s)


def compile_copy(task: Task, binding: Binding) -> Callable[[Instance], None]:
    """A function that stores a copy of each read on the target device, or copies or adds the reads to the mutated operands in place.

    Only what is in the target's memory already can be added (`over_links`).
    """
    body = task.body
    sources = [binding.getter(operand) for operand in task.reads]
    if task.mutates:
        targets = [binding.getter(operand) for operand in task.mutates]
        if body.means == LINK and HOST not in body.ends and not body.add:  # functions of many tensors expect them in one memory
            pairs = list(zip(targets, sources, strict=True))

            def send(instance: Instance) -> None:
                for target, source in pairs:
                    target(instance).copy_(source(instance), non_blocking=True)

            return send
        merge = torch._foreach_add_ if body.add else torch._foreach_copy_
        return lambda instance: merge([get(instance) for get in targets], [get(instance) for get in sources])
    setters = [binding.setter(operand) for operand in task.writes]
    target = binding.device(body.target)
    aliased = body.means == ALIAS
    non_blocking = body.source == HOST  # the host does not wait for copies from its memory; on CUDA that memory is pinned

    def run(instance: Instance) -> None:
        for get, put in zip(sources, setters, strict=True):
            put(instance, get(instance) if aliased else get(instance).to(target, non_blocking=non_blocking, copy=True))

    return run


HANDLERS = {"copy": compile_copy, "host": compile_pause, "synchronize": compile_pause}
