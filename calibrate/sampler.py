"""Times cost keys on a CPU worker, through the very functions that the executor runs.

Per visit of a key: clear the caches, run once (the cold sample), run again at once (the warm sample). The anchor op ticks in between.
"""

import time
from dataclasses import dataclass, field, replace

import torch

from executors.binding import Binding, Instance
from executors.cpu import CpuBackend
from executors.kernels import handlers
from simulator.factory import brief
from simulator.plan import INPUT, Plan, Segment, Task, Value

from .operands import OperandPool, fill

#: Bytes streamed through between two visits: beyond a core's private caches (in-step truth lay between a 4 and a 24 MB flush).
FLUSH_BYTES = 24 << 20


@dataclass
class Samples:
    """Seconds per visit of one key."""

    task: Task
    cold_s: list[float] = field(default_factory=list)
    warm_s: list[float] = field(default_factory=list)


class Sampler:
    """Holds compiled tasks for keys of one or more plans and visits them on demand."""

    def __init__(self, backend: CpuBackend):
        self.backend = backend
        self.samples: dict[str, Samples] = {}
        self.failures: dict[str, str] = {}
        self._pool = OperandPool()
        self._compiled: dict[str, tuple] = {}
        self._flush = torch.ones(FLUSH_BYTES // 4)

    def add(self, plan: Plan, keys: dict[str, Task]) -> None:
        """Compile the tasks behind `keys`; those already known are skipped."""
        for key, task in keys.items():
            if key in self.samples or task.body.kind in ("copy", "host"):
                continue
            self.samples[key] = Samples(task)
            try:
                self._compiled[key] = self._compile(task, plan)
            except Exception as error:
                self.failures[key] = brief(error)

    def _compile(self, task: Task, plan: Plan):
        """The executor's function for the task, and an instance whose slots hold random operands."""
        tensors = fill(task, plan, self._pool)
        names = {o.value for o in (*task.inputs, *task.writes)}
        values = {name: plan.values[name] for name in names}
        values = {name: _detached(value, value.storage in plan.carried) for name, value in values.items()}
        alone = Plan("calibration", (Segment((task,)),), values, plan.storages)
        binding = Binding(alone, tensors, self.backend.device)
        run = handlers()[task.body.kind](task, binding)
        written = [binding.slot[o.value] for o in task.writes if o.value in binding.slot]
        instance = Instance(0, len(binding.slot), [])
        for name, tensor in tensors.items():
            if name in binding.slot:
                instance.slots[binding.slot[name]] = tensor
        return run, instance, written

    def visit(self, keys: list[str], turn: int) -> None:
        """Take one cold and one warm sample of each key, on one worker; cores take turns by `turn`."""
        position = turn % len(self.backend.workers.cores)
        anchor = self.backend.anchors[position] if self.backend.anchors else None

        def work(_: int) -> None:
            for key in keys:
                if key in self.failures:
                    continue
                if anchor is not None:
                    anchor.tick()
                try:
                    self._sample(key)
                except Exception as error:
                    self.failures[key] = brief(error)

        self.backend.workers.run(work, (position,))

    def _sample(self, key: str) -> None:
        run, instance, written = self._compiled[key]
        self._flush.sum()  # read, not written: dirty lines would be written back during the sample, which a step's data mostly are not
        cold = _timed(run, instance, written)
        warm = _timed(run, instance, written)
        samples = self.samples[key]
        samples.cold_s.append(cold)
        samples.warm_s.append(warm)


def _timed(run, instance: Instance, written: list[int]) -> float:
    begin = time.perf_counter_ns()
    run(instance)
    for slot in written:
        instance.slots[slot] = None
    return (time.perf_counter_ns() - begin) * 1e-9


def _detached(value: Value, carried: bool) -> Value:
    """The value as its task alone sees it: fetched as in the whole plan, a carried one bound for good, all others from an instance."""
    return replace(value, source=value.operand()) if carried else replace(value, source=None, kind=INPUT)
