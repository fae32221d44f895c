"""Rank 0's backend: it lets every process run its device's part of a plan, and merges what the processes measured."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count
from math import isnan, nan
from typing import Any, cast
from weakref import finalize

import torch

from executors.distributed.control import ControlChannel, Named
from executors.distributed.loaded_plans import LoadedPlans, check_distinct, cpu_seconds
from executors.measured import ChunkTimes, Measured, lengths
from executors.program import AT_FIRST, WARM_UP, Executable, Start
from executors.tensors import copy_current
from simulator.machine.machine import HOST, Machine
from simulator.plan.json import dump
from simulator.plan.messages import between_devices
from simulator.plan.plan import Plan
from simulator.plan.tensors import held
from traces.errors import Code, SchedcastError


class DistributedBackend:
    """Runs plans on the devices of `machine`, device r in the process of rank r. `local`: this process's own backend."""

    mode = "eager"
    unit = 1

    def __init__(self, machine: Machine, channel: ControlChannel, kind: str = "cpu", precision: str = "fp32"):
        """`kind`: cpu or cuda.

        Raises SchedcastError if a process cannot use its device, if two processes have the same GPU, or if the numbers of devices and
        processes differ.
        """
        self.names = [device.name for device in machine.devices]
        if len(self.names) != channel.ranks.world:
            raise SchedcastError(
                f"machine {machine.name} has {len(self.names)} devices for {channel.ranks.world} processes; expected one for each"
            )
        self.machine, self.channel = machine, channel
        options: dict[str, Any] = {"kind": kind, "devices": self.names, "sms": machine.devices[0].sms, "precision": precision}
        self.loaded, (_, *others) = self.run_everywhere(lambda: LoadedPlans.open(channel, **options), {"command": "open", **options})
        check_distinct([self.loaded.gpu, *(answer["gpu"] for answer in others)])
        self.local = self.loaded.backend
        self.forms, self.torch_device = self.local.forms, self.local.torch_device
        self.numbers = count()
        self._unused: list[int] = []

    def run_everywhere(
        self, on_rank_0: Callable[[], Any], message: Mapping[str, Any], tensors: Named | None = None
    ) -> tuple[Any, list[dict[str, Any]]]:
        """Send a command to the other ranks and execute it here. Returns the result of `on_rank_0`, and all ranks' answers by rank.

        If both this rank and another one fail, this rank's error is raised.
        """
        self.channel.send(message, tensors)
        own_error, result = None, None
        try:
            result = on_rank_0()
        except SchedcastError as error:
            own_error = error
        try:
            answers = self.channel.gather({})
        except SchedcastError as error:
            raise own_error or error from error
        if own_error is not None:
            raise own_error
        return result, answers

    def cpu_seconds(self) -> list[float]:
        """CPU seconds that each process and its children have used so far, by rank."""
        self.channel.send({"command": "cpu_seconds"})
        return [answer["cpu_s"] for answer in self.channel.gather(cpu_seconds())]

    def load(self, plan: Plan, tensors: Named, seed: int = 0, keep: tuple[str, ...] = (), start: Start = AT_FIRST) -> Executable:
        """Bind every process's part of a plan to copies of `tensors`. Raises SchedcastError if a process cannot run its part."""
        require_own_values(plan)
        number = next(self.numbers)
        unused = list(self._unused)  # the programs that are not referenced any more; the other ranks drop them with the plan
        del self._unused[: len(unused)]
        self.loaded.drop(unused)
        self._prepare(plan, tensors, unused)
        before = cast(DistributedProgram, start.before)
        begin = {"iteration": start.iteration, "before": None if before is None else before.number}
        message = {"command": "load", "program": number, "seed": seed, "keep": keep, **begin}
        local, _ = self.run_everywhere(lambda: self.loaded.load(number, seed, keep, **begin), message)
        if local is None:
            raise SchedcastError(
                f"plan {plan.strategy} has no task on {self.names[0]}, the device of rank 0; place at least one task there"
            )
        program = DistributedProgram(self, plan, number, local)
        finalize(program, self._unused.append, number).atexit = False
        return program

    def _prepare(self, plan: Plan, tensors: Named, dropped: Sequence[int] = ()) -> None:
        """Let every process cut its part out of the plan. Raises SchedcastError with the message of a process that fails."""
        parameters = [name for name, tensor in tensors.items() if isinstance(tensor, torch.nn.Parameter)]
        message = {"command": "prepare", "dropped": dropped, "plan": dump(plan), "parameters": parameters}
        self.run_everywhere(lambda: self.loaded.prepare(plan, tensors), message, tensors)

    def peak_bytes(self, plan: Plan, tensors: Named, seed: int = 0) -> dict[str, int]:
        """Peak bytes of each process's allocator for its part, by device."""
        self._prepare(plan, tensors)
        self.channel.send({"command": "peak_bytes", "seed": seed})
        answers = self.channel.gather(self.loaded.peak_bytes(seed))
        return {name: peak for answer in answers for name, peak in answer["peak_bytes"].items()}


class DistributedProgram:
    """A plan that all processes have loaded; see `Executable`. `number`: its number, the same in all processes."""

    unit = 1
    warm_up = WARM_UP - 1
    tracing_overhead: float | None = 0.0

    def __init__(self, backend: DistributedBackend, plan: Plan, number: int, local: Executable):
        """`local`: this process's part of the plan."""
        self._backend, self._plan, self.number, self._local = backend, plan, number, local
        self.binding = local.binding
        self.losses: dict[int, tuple[torch.Tensor, ...]] = {}
        self._partial_losses: dict[int, dict[str, float]] = {}  # by iteration and value name, until every device has reported

    @property
    def kept(self) -> dict[str, torch.Tensor]:
        """The kept values of this process's device."""
        return self._local.kept

    @property
    def iterations(self) -> int:
        return self._local.iterations

    def run(self, steps: int, inputs: Sequence[Mapping[str, torch.Tensor]] | None = None) -> ChunkTimes:
        """Run `steps` more periods in all processes, starting together. A step ends when its last process ends it.

        Each process counts seconds from its own start, so that the clocks of several nodes need not agree.
        """
        feeds = None if inputs is None else list(inputs[0])
        tensors = {f"{i} {name}": tensor for i, feed in enumerate(inputs or ()) for name, tensor in feed.items()}
        return self._run(steps, feeds, tensors, inputs)

    def sync(self) -> ChunkTimes:
        """Run the lagging tasks in all processes, so that every iteration begun is complete."""
        return self._run(0, None, {}, None)

    def _run(self, steps: int, feeds: list[str] | None, tensors: Named, inputs) -> ChunkTimes:
        channel, loaded = self._backend.channel, self._backend.loaded
        about = {"steps": steps, "feeds": feeds, "deterministic": torch.backends.cudnn.deterministic}
        channel.send({"command": "run", "program": self.number, **about}, tensors)
        answers = channel.gather(loaded.run(self.number, steps, inputs))
        self._take_losses(answers)
        ends_s = _latest([answer["ends_s"] for answer in answers])
        return ChunkTimes(lengths(ends_s), tuple(self._times(answers)), ends_s)

    def _take_losses(self, answers: list[dict[str, Any]]) -> None:
        """Collect the answers' losses. An iteration's losses are complete once every device has reported its own."""
        names = [[name for name in self._plan.losses if self._plan.values[name].device == device] for device in self._backend.names]
        for names_of_rank, answer in zip(names, answers, strict=True):
            for iteration, losses in answer["losses"].items():
                self._partial_losses.setdefault(int(iteration), {}).update(zip(names_of_rank, losses, strict=True))
        for iteration in sorted(self._partial_losses):
            by_name = self._partial_losses[iteration]
            if len(by_name) == len(self._plan.losses):
                self.losses[iteration] = tuple(torch.tensor(by_name[name], dtype=torch.float64) for name in self._plan.losses)
                del self._partial_losses[iteration]

    def _times(self, answers: list[dict[str, Any]]) -> list[Measured]:
        """All processes' task times on one clock.

        Processes of one node share a clock (CLOCK_MONOTONIC). On several nodes, all are assumed to have started at the same moment.
        """
        one_node, times = self._backend.channel.ranks.one_node, []
        for device, answer in zip(self._backend.names, answers, strict=True):
            shift_s = 0.0 if one_node else answers[0]["begin_s"] - answer["begin_s"]
            times += [
                Measured(index, period, start_s + shift_s, end_s + shift_s, core, device=device)
                for index, period, start_s, end_s, core in answer["times"]
            ]
        return sorted(self._joined(times, one_node), key=lambda m: m.start_s)

    def _joined(self, times: list[Measured], one_clock: bool) -> Iterator[Measured]:
        """The times, with one for each message: from when it can be sent until it has arrived, or with two clocks until it is sent.

        A receive begins as soon as its lane is free, and so says little about the transfer.
        """
        tasks = self._plan.tasks
        arrived_s = {
            (item.index, item.period): item.end_s
            for item in times
            if between_devices(tasks[item.index]) and item.device == tasks[item.index].body.target
        }
        for item in times:
            if not between_devices(tasks[item.index]):
                yield item
            elif item.device == tasks[item.index].body.source:
                yield replace(item, end_s=arrived_s.get((item.index, item.period), item.end_s)) if one_clock else item

    def trace(self) -> list[Measured]:
        channel, loaded = self._backend.channel, self._backend.loaded
        channel.send({"command": "trace", "program": self.number})
        return self._times(channel.gather(loaded.trace(self.number)))

    def copy_current(self, targets: Named) -> None:
        """Copy the parameters, buffers and optimizer state of all processes; see `Executable`."""
        channel, values = self._backend.channel, held(self._plan, targets)
        channel.send({"command": "current", "program": self.number, "names": [value.name for value in values]})
        carried = dict(self.binding.carried)
        for value in values:
            if value.device != self._backend.names[0]:
                empty = torch.empty_strided(value.shape, value.strides, dtype=getattr(torch, value.dtype))
                carried[value.name] = channel.take(empty, self._backend.names.index(value.device))
        channel.gather({})
        copy_current(self._plan, carried, targets)

    def parameter_difference(self, expected: Named) -> float:
        """The largest difference on any device; see `Executable`."""
        return self._difference(expected, gradients=False)

    def gradient_difference(self, expected: Named) -> float:
        return self._difference(expected, gradients=True)

    def _difference(self, expected: Named, gradients: bool) -> float:
        backend = self._backend
        message = {"command": "difference", "program": self.number, "gradients": gradients}
        own, answers = backend.run_everywhere(lambda: backend.loaded.difference(self.number, expected, gradients), message, expected)
        differences = [own["difference"], *(answer.get("difference", 0.0) for answer in answers)]
        return nan if any(map(isnan, differences)) else max(differences)


def require_own_values(plan: Plan) -> None:
    """Raise SchedcastError if values pass the host's memory from one process to another."""
    if any(task.body.is_copy and task.body.ends and task.body.ends[1] == HOST for task in plan.tasks):
        raise SchedcastError(
            f"{plan.strategy} with sends=staged is predicted only: here processes send to each other; drop it", Code.DEVICES
        )


def _latest(ends_s: list[list[float]]) -> tuple[float, ...]:
    """The latest end of each period over all processes. A process that has no task in the first periods, or in any, has fewer ends."""
    longest = max(map(len, ends_s))
    filled = [[0.0] * (longest - len(ends)) + ends for ends in ends_s]
    return tuple(map(max, zip(*filled, strict=True)))
