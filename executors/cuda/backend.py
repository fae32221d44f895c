"""The CUDA backend: runs plans on one GPU, either whole or split into partitions that act as several devices."""

from collections.abc import Mapping

import torch

from executors.binding import Forms
from executors.cuda.driver import Driver, Partition
from executors.cuda.graphs import GraphProgram
from executors.cuda.partitions import check_disjoint, check_events, runnable_mode
from executors.cuda.program import EagerProgram, Site
from executors.program import AT_FIRST, Executable, Start
from simulator.engine.scenario import EAGER, GRAPH
from simulator.machine.machine import Machine
from simulator.plan.plan import Plan
from traces.errors import SchedcastError


class CudaBackend:
    """Runs plans on the GPU of `driver`, issued task by task (mode "eager") or in CUDA graphs (mode "graph")."""

    def __init__(self, machine: Machine, driver: Driver, mode: str = EAGER, precision: str = "fp32"):
        """A machine with several devices is run on partitions of the GPU; plans may use the whole GPU, too.

        If the driver cannot capture the work of several partitions in one graph, `mode` becomes eager; see `runnable_mode`.
        Raises SchedcastError if the GPU cannot be split.
        """
        if mode not in (EAGER, GRAPH):
            raise SchedcastError(f"unknown mode {mode!r}; expected {EAGER} or {GRAPH}")
        self.machine, self.driver = machine, driver
        self.partitions = _partitions(machine, driver)
        self.mode, _ = runnable_mode(driver, mode, len(machine.devices))
        draws = "keyed" if self.mode == EAGER else "stream"  # the host cannot seed between the nodes of a graph
        self.forms = Forms(True, draws, driver.seed, capturable=True)
        self.torch_device = driver.device
        host = machine.host(machine.devices[0].name)
        self.unit = 1 if self.mode == EAGER or host is None else host.graph_iterations
        driver.set_precision(precision)

    def load(
        self, plan: Plan, tensors: Mapping[str, torch.Tensor], seed: int = 0, keep: tuple[str, ...] = (), start: Start = AT_FIRST
    ) -> Executable:
        site = Site(self.driver, self.partitions, self.forms)
        if self.mode == EAGER:
            return EagerProgram(site, plan, tensors, seed, keep, start)
        return GraphProgram(site, plan=plan, tensors=tensors, seed=seed, keep=keep, unit=self.unit, start=start)

    def peak_bytes(self, plan: Plan, tensors: Mapping[str, torch.Tensor], seed: int = 0) -> dict[str, int]:
        """Peak bytes of the allocator for the plan in an untimed run; with graphs, up to the end of the first one's replay.

        Includes the workspaces of the plan's own lanes, but not those that remain from other streams, unless a graph retains them.
        There is one figure, because all partitions share a memory. It is under the device's name, or with several devices under the
        memory's name.
        """
        name = plan.devices[0] if len(plan.devices) == 1 else self.machine.memory(plan.devices[0]).name
        self.driver.synchronize()
        self.driver.free_workspaces()
        before = self.driver.allocated_bytes()
        self.driver.peak_bytes(reset=True)
        program = self.load(plan, tensors, seed)
        program.run(2 if program.unit == 1 else program.prologue + program.unit)  # type: ignore[attr-defined]  # one of graphs has it
        program.sync()
        return {name: max(0, self.driver.peak_bytes() - before)}


def _partitions(machine: Machine, driver: Driver) -> dict[str, Partition | None]:
    """By device name, its partition of the GPU; None for the whole GPU. Checks that the partitions share no SM before anything runs."""
    names = [device.name for device in machine.devices]
    if len(names) == 1:
        return {names[0]: None}
    whole = {device.name: None for device in machine.whole.devices} if machine.whole is not None else {}
    partitions = driver.partitions(len(names))
    for device, partition in zip(machine.devices, partitions, strict=True):
        if device.sms != partition.sms:
            raise SchedcastError(
                f"{device.name} was planned with {device.sms} SMs; the GPU's partition has {partition.sms}: calibrate it first"
            )
    check_events(driver, partitions)
    check_disjoint(driver, partitions)
    return whole | dict(zip(names, partitions, strict=True))
