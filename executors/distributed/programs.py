"""What every process of a team does alike when the leader says so: load its part of a plan, run it, measure its memory."""

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from executors import process_groups
from executors.cpu.workers import available_cores
from executors.distributed.control import ControlChannel, Named
from executors.distributed.ranks import Ranks
from executors.kernels.collective import LIBRARIES
from executors.replicas import parameter_difference
from executors.run import Backend, Executable
from simulator.collectives.local import LocalPlan, groups_of, local_plan
from simulator.machine.machine import Device, Machine, Memory
from simulator.plan.plan import Plan


@dataclass
class LoadedPlans:
    """This process's programs, one per plan that the leader has loaded. `devices`: of the machine, by rank."""

    channel: ControlChannel
    backend: Backend
    devices: tuple[str, ...]
    _programs: dict[int, tuple[LocalPlan, Executable | None]] = field(default_factory=dict)

    @staticmethod
    def open(channel: ControlChannel, kind: str, devices: Sequence[str], sms: int, precision: str) -> "LoadedPlans":
        """With this process's own backend: its cores, or the whole of its GPU. `kind`: cpu or cuda."""
        backend = _local_backend(kind, channel.ranks, devices[channel.ranks.rank], sms, precision)
        return LoadedPlans(channel, backend, tuple(devices))

    @property
    def library(self) -> str:
        """What makes collectives between the devices."""
        return LIBRARIES[self.backend.torch_device.type]

    def load(self, number: int, plan: Plan, tensors: Named, seed: int, keep: Sequence[str]) -> Executable | None:
        """This device's part of `plan` as program `number`; None where it has none. Raises StepcastError where it cannot run."""
        part = self._part(plan)
        program = None if part.empty else self.backend.load(part, tensors, seed, tuple(name for name in keep if name in part.values))
        if hasattr(program, "agreed"):
            program.agreed = self.channel.largest
        self._programs[number] = part, program
        return program

    def _part(self, plan: Plan) -> LocalPlan:
        part = local_plan(plan, self.devices[self.channel.ranks.rank])
        process_groups.make(groups_of(plan), self.devices, self.library)
        return part

    def drop(self, numbers: Sequence[int]) -> None:
        """Forget programs."""
        for number in numbers:
            self._programs.pop(number, None)

    def run(self, number: int, steps: int, feeds: Sequence[Named] | None) -> dict[str, Any]:
        """Run `steps` periods, in step with the others from the first on; 0: drain. The answer for the leader."""
        part, program = self._programs[number]
        self.channel.barrier()
        begun_s = time.perf_counter()
        if program is None:
            return {"begun_s": begun_s, "ends_s": [], "times": [], "losses": {}}
        chunk = program.run(steps, None if feeds is None else list(feeds)) if steps else program.sync()
        return {
            "begun_s": begun_s,
            "ends_s": chunk.ends_s,
            "times": [[part.numbers[t.index], t.period, t.start_s, t.end_s, t.core] for t in chunk.times],
            "losses": _losses(program, part),
        }

    def trace(self, number: int) -> dict[str, Any]:
        """Task times of a few more periods, where a program times them apart from its steps."""
        part, program = self._programs[number]
        self.channel.barrier()
        times = program.trace() if program is not None else []
        return {"begun_s": 0.0, "times": [[part.numbers[t.index], t.period, t.start_s, t.end_s, t.core] for t in times]}

    def difference(self, number: int, expected: Named) -> dict[str, Any]:
        """How far this device's parameters are from `expected`."""
        _, program = self._programs[number]
        return {"difference": 0.0 if program is None else parameter_difference(program.binding, expected)}

    def peak_bytes(self, plan: Plan, tensors: Named, seed: int) -> dict[str, Any]:
        """What the allocator of this process held at most for its part."""
        part = self._part(plan)
        self.channel.barrier()
        return {"peak_bytes": {} if part.empty else self.backend.peak_bytes(part, tensors, seed)}


def cpu_seconds() -> dict[str, Any]:
    """CPU seconds of this process so far."""
    own = os.times()
    return {"cpu_s": own.user + own.system}


def _losses(program: Executable, part: LocalPlan) -> dict[int, list[float]]:
    """By iteration, in the order of the part's losses; told once."""
    if not part.losses:
        program.losses.clear()
        return {}
    return {iteration: [float(loss) for loss in program.losses.pop(iteration)] for iteration in list(program.losses)}


def _local_backend(kind: str, ranks: Ranks, device: str, sms: int, precision: str) -> Backend:
    if kind == "cpu":
        from executors.cpu.backend import CpuBackend

        return CpuBackend(_alone(Device(device, "cpu", sms, {}, "memory")), cores=cores_of(ranks.local_rank, sms))
    from executors.cuda.backend import CudaBackend
    from executors.cuda.torch_driver import gpu

    return CudaBackend(_alone(Device(device, "gpu", sms, {}, "memory")), gpu(ranks.local_rank), precision=precision)


def _alone(device: Device) -> Machine:
    """A machine of one device: backends ask of it what there is, not how fast it is."""
    return Machine("this process", (device,), (Memory("memory", 0, 0.0, 0),))


def cores_of(local_rank: int, count: int) -> list[int]:
    """The cores of a process that needs `count`: its own while there are enough, else shared with others."""
    there = available_cores()
    return [there[(local_rank * count + i) % len(there)] for i in range(count)]


def as_parameters(tensors: Mapping[str, torch.Tensor], names: Sequence[str]) -> dict[str, torch.Tensor]:
    """`tensors`, those of `names` as parameters again: programs copy these, and keep the others."""
    return {name: torch.nn.Parameter(t, requires_grad=False) if name in names else t for name, t in tensors.items()}
