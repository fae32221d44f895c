"""The CUDA backend: plans on one GPU, whole or split into partitions that act as several devices."""

from collections.abc import Mapping

import torch

from executors.cuda.driver import Driver, Partition
from executors.cuda.graphs import GraphProgram
from executors.cuda.partitions import prove_disjoint
from executors.cuda.program import EagerProgram, Site
from executors.forms import Forms
from executors.run import WARM_UP
from simulator.engine.simulation import EAGER, GRAPH
from simulator.machine.machine import Machine
from simulator.plan.plan import Plan
from traces.errors import StepcastError


class CudaBackend:
    """Runs plans on the GPU behind `driver`, issued task by task (`eager`) or in CUDA graphs (`graph`)."""

    def __init__(self, machine: Machine, driver: Driver, mode: str = EAGER, precision: str = "fp32"):
        """A machine of several devices needs a GPU that can be split. Raises StepcastError where it cannot."""
        if mode not in (EAGER, GRAPH):
            raise StepcastError(f"unknown mode {mode!r}; expected {EAGER} or {GRAPH}")
        self.machine, self.driver, self.mode = machine, driver, mode
        self.partitions = _partitions(machine, driver)
        draws = "keyed" if mode == EAGER else "stream"  # the host cannot seed between the nodes of a graph
        self.forms = Forms(True, draws, driver.seed, capturable=True)
        self.torch_device = driver.device
        self.unit = 1 if mode == EAGER else machine.host(machine.devices[0].name).graph_iterations
        driver.set_precision(precision)

    def load(
        self, plan: Plan, tensors: Mapping[str, torch.Tensor], seed: int = 0, keep: tuple[str, ...] = ()
    ) -> EagerProgram | GraphProgram:
        """Bind a plan to copies of `tensors`."""
        site = Site(self.driver, self.partitions, self.forms)
        if self.mode == EAGER:
            return EagerProgram(site, plan, tensors, seed, keep)
        return GraphProgram(site, plan, tensors, seed, keep, self.unit)

    def peak_bytes(self, plan: Plan, tensors: Mapping[str, torch.Tensor], seed: int = 0) -> dict[str, int]:
        """Highest bytes that the allocator held for the plan in an untimed run.

        One figure, since all partitions share a memory: of several, it is under the memory's name.
        """
        self.driver.synchronize()
        before = self.driver.allocated_bytes()
        self.driver.peak_bytes(reset=True)
        program = self.load(plan, tensors, seed)
        program.run(2 if program.unit == 1 else WARM_UP + program.unit + 1)
        program.sync()
        place = plan.devices[0] if len(plan.devices) == 1 else self.machine.memory(plan.devices[0]).name
        return {place: max(0, self.driver.peak_bytes() - before)}


def _partitions(machine: Machine, driver: Driver) -> dict[str, Partition | None]:
    """Device name -> its part of the GPU; None for the whole. Parts are proved to share no SM before anything runs on them."""
    names = [device.name for device in machine.devices]
    if len(names) == 1:
        return {names[0]: None}
    found = driver.partitions(len(names))
    for device, part in zip(machine.devices, found, strict=True):
        if device.sms != part.sms:
            raise StepcastError(f"{device.name} was planned with {device.sms} SMs; the GPU's partition has {part.sms}: calibrate it first")
    prove_disjoint(driver, found)
    return dict(zip(names, found, strict=True))
