"""The CPU backend: a device is a group of cores, an SM is a core, and a task occupies exactly one core.

Every core has one pinned worker. A worker takes the most urgent stream head whose dependencies have ended, runs it, and takes the next one;
there is no host lane. Streams are serial, so a plan with one stream runs on one worker without a scheduler.
"""

import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch

from executors.binding import PLAIN, Binding, Instance, task_storages
from executors.cpu import allocator
from executors.cpu.cores import available_cores
from executors.cpu.memory_watch import WATCHED_FROM, MemoryWatch
from executors.cpu.reference_kernel import ReferenceKernel
from executors.cpu.schedule import Entry, Schedule, transfer_of
from executors.cpu.workers import Callers, Workers
from executors.kernels.registry import handlers
from executors.measured import ChunkTimes, Measured, ends_from_start, lengths
from executors.program import AT_FIRST, WARM_UP, Executable, Start, failure
from executors.tensors import BoundPlan
from simulator.machine.machine import Machine
from simulator.plan.dependencies import Dependencies
from simulator.plan.plan import Plan
from traces.errors import SchedcastError
from traces.process import gc_paused

#: The position of a thread that is not pinned to a core; see `Callers`.
UNPINNED = -1


class CpuBackend:
    """Runs plans on groups of cores."""

    mode = "eager"
    unit = 1
    forms = PLAIN
    torch_device = torch.device("cpu")

    def __init__(self, machine: Machine, reference_kernel: bool = False, cores: Sequence[int] | None = None):
        """`reference_kernel`: time one inside runs. `cores`: the cores to use, in order (default: all that this process may use).

        Raises SchedcastError if the machine has more cores than that.
        """
        cores = deque(available_cores() if cores is None else cores)
        self.groups: dict[str, tuple[int, ...]] = {}
        positions: list[int] = []
        for device in machine.devices:
            if len(cores) < device.sms:
                total = sum(d.sms for d in machine.devices)
                raise SchedcastError(
                    f"machine {machine.name} has {total} cores; this process may use {len(available_cores())}; ask for fewer"
                )
            group = [cores.popleft() for _ in range(device.sms)]
            self.groups[device.name] = tuple(range(len(positions), len(positions) + len(group)))
            positions += group
        self.machine = machine
        self.workers = Workers(tuple(positions))
        self.callers = Callers()
        self.reference_kernels = [ReferenceKernel() for _ in positions] if reference_kernel else None

    def load(
        self, plan: Plan, tensors: Mapping[str, torch.Tensor], seed: int = 0, keep: tuple[str, ...] = (), start: Start = AT_FIRST
    ) -> Executable:
        return CpuExecutable(self, plan, tensors, seed, keep, start)

    def peak_bytes(self, plan: Plan, tensors: Mapping[str, torch.Tensor], seed: int = 0) -> dict[str, int]:
        """Peak bytes of the allocator for each device of the plan, in untimed steps that run one task at a time.

        Returns an empty dict if the C library's allocator has no count. See `memory_watch`.
        """
        if allocator.allocated_bytes() is None:
            return {}
        with allocator.without_holes():
            program = CpuExecutable(self, plan, tensors, seed, ())
            program.watch = MemoryWatch(plan, program.binding)
            program.run(WATCHED_FROM + 2 + program.dependencies.largest_lag)
            return program.watch.peaks()


class CpuExecutable(BoundPlan):
    """A plan bound to tensors; see `Executable`."""

    tracing_overhead: float | None = 0.0  # every step times its own tasks

    def __init__(
        self,
        backend: CpuBackend,
        plan: Plan,
        tensors: Mapping[str, torch.Tensor],
        seed: int,
        keep: tuple[str, ...],
        start: Start = AT_FIRST,
    ):
        super().__init__(Binding(plan, tensors, lambda name: backend.torch_device, seed, carried=start.carried), start.iteration)
        self.backend, self.tasks = backend, plan.tasks
        self.dependencies = Dependencies(plan, receives=backend.machine.receives)
        compile_by_kind = handlers()
        self._run = [compile_by_kind[task.body.kind](task, self.binding) for task in self.tasks]
        self._transfers = [transfer_of(task, backend.machine) for task in self.tasks]
        index, self._task_storages = task_storages(plan, self.tasks)
        self._accesses = [0] * len(index)  # by storage: how many tasks of an iteration access it
        for storages in self._task_storages:
            for storage in storages:
                self._accesses[storage] += 1
        slots = self.binding.slots_by_storage((*keep, *plan.losses))
        self._storage_slots: list[list[int]] = [slots.get(storage, []) for storage in index]
        self._keep = keep
        self._inputs = {name: tensor for name, tensor in tensors.items() if not isinstance(tensor, torch.nn.Parameter)}
        self._calls = 0
        self.watch: MemoryWatch | None = None

    def run(self, steps: int, inputs: list[Mapping[str, torch.Tensor]] | None = None) -> ChunkTimes:
        """Issue `steps` more periods back to back. `inputs`: the feeds of each new iteration (default: the job's own inputs)."""
        for i in range(steps):
            iteration = self._period + i
            instance = Instance(self._first_iteration + iteration, len(self.binding.slot), self._accesses.copy())
            self.binding.feed(instance, self._inputs if inputs is None else {**self._inputs, **inputs[i]})
            self._instances[iteration] = instance
        entries = self._entries(self._period, self._period + steps, self._period + steps)
        self._period += steps
        measured = self._execute(entries)
        self._finish(self._period - 1)
        return self._chunk_times(measured)

    def sync(self) -> ChunkTimes:
        end = self._period + self.dependencies.largest_lag
        measured = self._execute(self._entries(self._period, end, self._period), self._period)
        self._finish(end - 1)
        self._first_iteration += self._period
        self._period = 0
        return self._chunk_times(measured)

    def trace(self) -> list[Measured]:
        return list(self.run(WARM_UP).times)

    @staticmethod
    def _chunk_times(measured: list[Measured]) -> ChunkTimes:
        ends_s = ends_from_start(measured)
        return ChunkTimes(lengths(ends_s), tuple(measured), ends_s)

    def _entries(self, first: int, end: int, iterations: int) -> list[Entry]:
        """(period, task) in issue order for the periods from `first` to before `end`, of `iterations` iterations in all."""
        return [(period, index) for period in range(first, end) for index in self.dependencies.existing(period, iterations)]

    def _execute(self, entries: list[Entry], iterations: int | None = None) -> list[Measured]:
        """Run entries. `iterations`: how many there are in all when draining, which decides the tasks that are skipped."""
        if not entries:
            return []
        self._calls += 1
        lanes = {task.lane for task in self.tasks}
        with gc_paused():
            one_by_one = self.watch is not None or (len(lanes) == 1 and not any(self._transfers))
            return self._run_serially(entries) if one_by_one else self._run_in_parallel(entries, iterations)

    def _run_serially(self, entries: list[Entry]) -> list[Measured]:
        """Run all entries in order on one worker. The cores of the group take turns from call to call.

        Used for plans with one lane, and for all plans under a memory watch.
        """
        group = self.backend.groups[self.tasks[0].device]
        measured: list[Measured] = []

        def work(position: int) -> None:
            measured.extend(self._run_task(entry, position, release=True) for entry in entries)

        self.backend.workers.run(work, (group[self._calls % len(group)],))
        return measured

    def _run_task(self, entry: Entry, position: int, release: bool) -> Measured:
        """Run one task on the worker at `position`.

        `release`: free tensors after the task. With several workers the caller does so under the schedule's lock instead.
        """
        period, index = entry
        instance = self._instances[period - self.tasks[index].lag]
        kernels = self.backend.reference_kernels
        reference_ns = kernels[position].tick() if kernels and position >= 0 else 0
        if self.watch is not None:
            self.watch.before_task(instance, period)
        begin = time.perf_counter_ns()
        try:
            self._run[index](instance)
        except Exception as error:
            raise failure(self.tasks[index], error) from error
        if self.watch is not None:
            self.watch.after_task(index)
        if release:
            self._release(instance, index)
        end = time.perf_counter_ns()
        return Measured(index, period, begin * 1e-9, end * 1e-9, position, reference_ns * 1e-9)

    def _release(self, instance: Instance, index: int) -> None:
        """Free the tensors of the storages that no later task of the iteration accesses, after the task at `index` has run."""
        accesses_left = instance.accesses_left
        for storage in self._task_storages[index]:
            accesses_left[storage] -= 1
            if not accesses_left[storage]:
                for slot in self._storage_slots[storage]:
                    instance.slots[slot] = None
                if self.watch is not None:
                    self.watch.after_drop(storage)

    def _run_in_parallel(self, entries: list[Entry], iterations: int | None) -> list[Measured]:
        """Run several lanes: the workers of each group take the most urgent ready head of their device's streams."""
        schedule = Schedule(self.tasks, self.dependencies, entries, iterations)
        served = [name for name in self.plan.devices if name in schedule.servers]  # not a device that only passes messages on
        device_of = {p: name for name in served for p in self.backend.groups[name]}
        measured: list[Measured] = []

        def on_end(item: Measured, end_s: float | None) -> None:
            measured.append(item if end_s is None else replace(item, end_s=end_s))
            self._release(self._instances[item.period - self.tasks[item.index].lag], item.index)

        def serve(server: str, position: int) -> None:
            entry = schedule.first(server)
            while entry is not None:
                try:
                    item = self._run_task(entry, position, release=False)
                except BaseException:
                    schedule.stop()
                    raise
                entry = schedule.advance(entry, server, partial(on_end, item), self._transfers[entry[1]])

        networked = dict.fromkeys(server for server in schedule.servers if server not in self.backend.groups)
        wait = self.backend.callers.start(lambda server: serve(server, UNPINNED), networked)
        # If a worker fails, this raises before the wait for the network's threads, which may be waiting for other processes.
        self.backend.workers.run(lambda position: serve(device_of[position], position), tuple(device_of))
        wait()
        return sorted(measured, key=lambda m: m.start_s)

    def _finish(self, last_period: int) -> None:
        """Collect the losses computed so far, and drop the iterations whose last task has run by the end of this period.

        It may be a task of another process, so that this one has nothing to run in the last periods.
        """
        for iteration, instance in sorted(self._instances.items()):
            losses = tuple(instance.slots[self.binding.slot[name]] for name in self.plan.losses)
            if all(loss is not None for loss in losses):
                self.losses[instance.iteration] = losses
            if iteration + self.dependencies.largest_lag <= last_period:
                self.kept = {name: instance.slots[self.binding.slot[name]] for name in self._keep if name in self.binding.slot}
                del self._instances[iteration]
