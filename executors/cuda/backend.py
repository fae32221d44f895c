"""The CUDA backend: runs plans on the GPUs of this process. Each GPU is a device of the machine, or its partitions are several."""

from collections.abc import Mapping, Sequence

import torch

from executors.binding import Forms
from executors.cuda.driver import Driver, Place
from executors.cuda.graphs import GraphProgram
from executors.cuda.partitions import check_disjoint, check_events, runnable_mode
from executors.cuda.program import EagerProgram, Site, drivers_of
from executors.program import AT_FIRST, Executable, Start
from simulator.engine.scenario import EAGER, GRAPH
from simulator.machine.machine import Device, Machine
from simulator.plan.plan import Plan
from traces.errors import Code, SchedcastError


class CudaBackend:
    """Runs plans on the GPU of `driver` and on `others`, issued task by task (mode "eager") or in CUDA graphs (mode "graph").

    `places`: by device name, the GPU or the partition of one that it is.
    """

    def __init__(self, machine: Machine, driver: Driver, mode: str = EAGER, precision: str = "fp32", others: Sequence[Driver] = ()):
        """Devices of one memory are partitions of one GPU; plans may use the whole GPU, too. Each further memory is one of `others`.

        If the driver cannot capture the work of several partitions or GPUs in one graph, `mode` becomes eager; see `runnable_mode`.
        Raises SchedcastError if a GPU cannot be split, and if there are too few.
        """
        if mode not in (EAGER, GRAPH):
            raise SchedcastError(f"unknown mode {mode!r}; expected {EAGER} or {GRAPH}")
        self.machine, self.driver = machine, driver
        self.places = _places(machine, (driver, *others))
        self._drivers = drivers_of(self.places)
        self.mode, _ = runnable_mode(driver, mode, len(machine.devices), self._drivers[1:])
        self._home = driver.stream() if len(self._drivers) > 1 else None
        draws = "keyed" if self.mode == EAGER else "stream"  # the host cannot seed between the nodes of a graph
        self.forms = Forms(True, draws, self._seed, capturable=True)
        self.torch_device = driver.device
        host = machine.host(machine.devices[0].name)
        self.unit = 1 if self.mode == EAGER or host is None else host.graph_iterations
        driver.set_precision(precision)

    def _seed(self, value: int) -> None:
        """Seed the generator of every GPU: a task draws from that of its own."""
        for driver in self._drivers:
            driver.seed(value)

    def load(
        self, plan: Plan, tensors: Mapping[str, torch.Tensor], seed: int = 0, keep: tuple[str, ...] = (), start: Start = AT_FIRST
    ) -> Executable:
        site = Site(self.places, self.forms, self._home)
        if self.mode == EAGER:
            return EagerProgram(site, plan, tensors, seed, keep, start)
        return GraphProgram(site, plan=plan, tensors=tensors, seed=seed, keep=keep, unit=self.unit, start=start)

    def peak_bytes(self, plan: Plan, tensors: Mapping[str, torch.Tensor], seed: int = 0) -> dict[str, int]:
        """Peak bytes of the allocator for the plan in an untimed run; with graphs, up to the end of the first one's replay.

        Includes the workspaces of the plan's own lanes, but not those that remain from other streams, unless a graph retains them.
        There is one figure for each GPU, because its partitions share a memory. It is under the device's name, or with several devices
        in one memory under the memory's name.
        """
        before: dict[Driver, int] = {}
        for driver in self._drivers:
            driver.synchronize()
            driver.free_workspaces()
            before[driver] = driver.allocated_bytes()
            driver.peak_bytes(reset=True)
        program = self.load(plan, tensors, seed)
        program.run(2 if program.unit == 1 else program.prologue + program.unit)  # type: ignore[attr-defined]  # one of graphs has it
        program.sync()
        peaks = {}
        for driver in self._drivers:
            own = [name for name in plan.devices if self.places[name].driver is driver]
            if own:
                name = own[0] if len(own) == 1 else self.machine.memory(own[0]).name
                peaks[name] = max(0, driver.peak_bytes() - before[driver])
        return peaks


def _places(machine: Machine, drivers: Sequence[Driver]) -> dict[str, Place]:
    """By device name, its place: of devices that share a memory a partition each, else a whole GPU, one for each memory.

    Checks that partitions share no SM before anything runs. Raises SchedcastError if there are fewer GPUs than memories.
    """
    by_memory: dict[str, list[Device]] = {}
    for device in machine.devices:
        by_memory.setdefault(device.memory, []).append(device)
    if len(by_memory) > len(drivers):
        raise SchedcastError(f"{machine.name} has {len(by_memory)} GPUs, and this process has {len(drivers)}", Code.DEVICES)
    unsplit = machine.whole.devices if machine.whole is not None else ()
    places = {device.name: Place(driver) for device, driver in zip(unsplit, drivers, strict=False)}
    for driver, devices in zip(drivers, by_memory.values(), strict=False):
        if len(devices) == 1:
            places[devices[0].name] = Place(driver)
            continue
        partitions = driver.partitions(len(devices))
        for device, partition in zip(devices, partitions, strict=True):
            if device.sms != partition.sms:
                raise SchedcastError(
                    f"{device.name} was planned with {device.sms} SMs; the GPU's partition has {partition.sms}: calibrate it first"
                )
            places[device.name] = Place(driver, partition)
        check_events(driver, partitions)
        check_disjoint(driver, partitions)
    return places
