"""Copies between two devices as tasks of a plan: by which means they go, and in which lane."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from simulator.machine.machine import HOST, Machine
from simulator.plan.bodies.copy import ALIAS, KERNEL, LINK, Copy
from simulator.plan.task import ACTIVATION, INPUT, TRANSFER, Operand, Task
from simulator.plan.tensors import PlanTensors

#: Streams of a device. It sends to each other device on a stream of its own, from SEND on, in all directions alike.
COMPUTE, SEND = 0, 1


def means(machine: Machine, source: str, target: str, changed: bool = False) -> str:
    """How a value gets from one device, or the host, to another: see `Copy`.

    In one memory it may stay where it is, unless it is `changed` later on either side. With a library every device is a process, and
    processes share no memory.
    """
    apart = machine.library and HOST not in (source, target)
    if apart or machine.memory_name(source) != machine.memory_name(target):
        return LINK
    return KERNEL if changed or machine.link_between(source, target) else ALIAS


def fetches(machine: Machine, tensors: PlanTensors, device: str) -> list[Task]:
    """Copies of the inputs from the host to a device. The inputs are values of the host from then on."""
    copies = []
    for value in [v for v in tensors.values.values() if v.kind == INPUT and v.device == device]:
        on_host = tensors.on_host(f"{value.name}@{HOST}@{device}", value)
        tensors.values[value.name] = replace(value, kind=ACTIVATION, source=None)
        body = Copy(HOST, device, means=means(machine, HOST, device))
        copies.append(Task(f"fetch {value.name}", body, device, reads=(on_host.operand(),), writes=(value.operand(),), phase=TRANSFER))
    return copies


@dataclass(frozen=True)
class Sender:
    """Makes the tasks that send tensors among `devices`, which give each of them its stream."""

    machine: Machine
    devices: tuple[str, ...]

    @property
    def streams(self) -> int:
        """The number of streams that computing and sending take, from 0 on."""
        return SEND + len(self.devices)

    def send(
        self,
        name: str,
        source: str,
        target: str,
        reads: Sequence[Operand],
        writes: Sequence[Operand] = (),
        mutates: Sequence[Operand] = (),
        add: bool = False,
        changed: bool = False,
        micro_batch: int = 0,
    ) -> Task:
        """The task that puts `reads`, on device `source`, into fresh values or, with `mutates`, into parts of values on `target`."""
        body = Copy(source, target, add, means(self.machine, source, target, changed or bool(mutates)))
        levels = self.machine.device(source).priority_levels
        return Task(
            name,
            body,
            source,
            SEND + self.devices.index(target),
            1 - levels,
            tuple(reads),
            tuple(writes),
            tuple(mutates),
            phase=TRANSFER,
            micro_batch=micro_batch,
        )
