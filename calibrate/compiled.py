"""Compiles one task alone with the executors' own functions; both samplers time the result."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch

from executors.binding import PLAIN, Binding, Forms, Instance
from executors.kernels.registry import handlers
from simulator.plan.plan import Plan
from simulator.plan.task import INPUT, Segment, Task


@dataclass(frozen=True)
class Compiled:
    """The executor's function for a task, an instance whose slots hold the task's operands, and the slots that it writes."""

    run: Callable[[Instance], None]
    instance: Instance
    written: list[int]

    def __call__(self) -> None:
        """Run the task and drop its results, as a step does after their last reader."""
        self.run(self.instance)
        for slot in self.written:
            self.instance.slots[slot] = None


def compile_alone(
    task: Task, plan: Plan, tensors: Mapping[str, torch.Tensor], device_of: Callable[[str], torch.device], forms: Forms = PLAIN
) -> Compiled:
    """Compile `task` of `plan` on `tensors`, one for each value that it reads or changes. They are bound as they are, not copied."""
    task = replace(task, body=task.body.as_measured)
    names = {o.value for o in (*task.inputs, *task.writes)}
    values = {name: plan.values[name] for name in names}
    carried = {name: tensors[name] for name, value in values.items() if value.storage in plan.carried}
    values = {name: value if name in carried else replace(value, source=None, kind=INPUT) for name, value in values.items()}
    alone = Plan("calibration", (Segment((task,)),), values, plan.storages)
    binding = Binding(alone, {}, device_of, forms=forms, carried=carried)
    run = handlers()[task.body.kind](task, binding)
    written = [binding.slot[o.value] for o in task.writes if o.value in binding.slot]
    instance = Instance(0, len(binding.slot), [])
    for name, tensor in tensors.items():
        if name in binding.slot:
            instance.slots[binding.slot[name]] = tensor
    return Compiled(run, instance, written)
