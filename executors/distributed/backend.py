"""The leader's backend: it has a plan run by all processes, each its device's part, and puts together what they measured."""

from collections.abc import Callable, Mapping, Sequence
from itertools import count
from math import isnan, nan
from typing import Any
from weakref import finalize

import torch

from executors.distributed.control import ControlChannel, Named
from executors.distributed.programs import LoadedPlans, cpu_seconds
from executors.measured import ChunkTimes, Measured, lengths
from executors.run import WARM_UP, Executable
from simulator.machine.machine import Machine
from simulator.plan.json import dump
from simulator.plan.plan import Plan
from traces.errors import StepcastError


class TeamBackend:
    """Runs plans on the devices of `machine`, device r in the process of rank r. `local`: this process's own backend.

    Plans cannot move tensors between devices but by collectives.
    """

    mode = "eager"
    unit = 1

    def __init__(self, machine: Machine, channel: ControlChannel, kind: str = "cpu", precision: str = "fp32"):
        """`kind`: cpu or cuda. Raises StepcastError where a process cannot use its device, or devices and processes differ in number."""
        self.names = [device.name for device in machine.devices]
        if len(self.names) != channel.ranks.world:
            raise StepcastError(
                f"machine {machine.name} has {len(self.names)} devices for {channel.ranks.world} processes; expected one for each"
            )
        self.machine, self.channel = machine, channel
        given = {"kind": kind, "devices": self.names, "sms": machine.devices[0].sms, "precision": precision}
        self.parts, _ = self.tell(lambda: LoadedPlans.open(channel, **given), {"do": "open", **given})
        self.local = self.parts.backend
        self.forms, self.torch_device = self.local.forms, self.local.torch_device
        self._numbers, self._dropped = count(), []

    def tell(self, own: Callable[[], Any], message: Mapping[str, Any], tensors: Named | None = None) -> tuple[Any, list[dict[str, Any]]]:
        """Send a message, do one's own part, and hear the others: what `own` returns, and everyone's answers by rank.

        Of two failures the leader's own is raised.
        """
        self.channel.send(message, tensors)
        failed, found = None, None
        try:
            found = own()
        except StepcastError as error:
            failed = error
        try:
            answers = self.channel.gather({})
        except StepcastError as error:
            raise failed or error from error
        if failed is not None:
            raise failed
        return found, answers

    def cpu_seconds(self) -> list[float]:
        """What each process has used so far, by rank."""
        self.channel.send({"do": "cpu_seconds"})
        return [answer["cpu_s"] for answer in self.channel.gather(cpu_seconds())]

    def device(self, name: str) -> torch.device:
        """This process's."""
        return self.local.device(name)

    def load(self, plan: Plan, tensors: Named, seed: int = 0, keep: tuple[str, ...] = ()) -> "TeamProgram":
        """Bind every process's part of a plan to copies of `tensors`. Raises StepcastError where one cannot run its part."""
        number = next(self._numbers)
        message = {"do": "load", "program": number, "seed": seed, "keep": keep, "dropped": self._forgotten(), **_of(plan, tensors)}
        own, _ = self.tell(lambda: self.parts.load(number, plan, tensors, seed, keep), message, tensors)
        if own is None:
            raise StepcastError(f"plan {plan.strategy} has no task on {self.names[0]}, the device of the process that leads")
        program = TeamProgram(self, plan, number, own)
        finalize(program, self._dropped.append, number).atexit = False
        return program

    def _forgotten(self) -> list[int]:
        """Programs that nobody holds any more, told to the others with the next one."""
        gone = list(self._dropped)
        del self._dropped[: len(gone)]
        self.parts.drop(gone)
        return gone

    def peak_bytes(self, plan: Plan, tensors: Named, seed: int = 0) -> dict[str, int]:
        """Highest bytes that each process's allocator held for its part, by device."""
        self.channel.send({"do": "peak_bytes", "seed": seed, **_of(plan, tensors)}, tensors)
        answers = self.channel.gather(self.parts.peak_bytes(plan, tensors, seed))
        return {name: peak for answer in answers for name, peak in answer["peak_bytes"].items()}


class TeamProgram:
    """A plan that all processes have loaded; see Executable. `own`: this process's part of it."""

    unit = 1
    warm_up = WARM_UP - 1
    twin_overhead = 0.0

    def __init__(self, backend: TeamBackend, plan: Plan, number: int, own: Executable):
        self._backend, self._plan, self._number, self._own = backend, plan, number, own
        self.binding = own.binding
        self.losses: dict[int, tuple[torch.Tensor, ...]] = {}
        self._known: dict[int, dict[str, float]] = {}

    @property
    def kept(self) -> dict[str, torch.Tensor]:
        """Of this process's device."""
        return self._own.kept

    @property
    def iterations(self) -> int:
        """Iterations begun so far."""
        return self._own.iterations

    def run(self, steps: int, inputs: Sequence[Mapping[str, torch.Tensor]] | None = None) -> ChunkTimes:
        """Run `steps` more periods everywhere, from one moment on. A step takes until its last process has ended it.

        Each process counts seconds from its own beginning, so that their clocks need not agree.
        """
        feeds = None if inputs is None else list(inputs[0])
        tensors = {f"{i} {name}": tensor for i, feed in enumerate(inputs or ()) for name, tensor in feed.items()}
        return self._together(steps, feeds, tensors, inputs)

    def sync(self) -> ChunkTimes:
        """Run everywhere what lags behind."""
        return self._together(0, None, {}, None)

    def _together(self, steps: int, feeds: list[str] | None, tensors: Named, inputs) -> ChunkTimes:
        channel, parts = self._backend.channel, self._backend.parts
        channel.send({"do": "run", "program": self._number, "steps": steps, "feeds": feeds}, tensors)
        answers = channel.gather(parts.run(self._number, steps, inputs))
        self._take_losses(answers)
        ends_s = _latest([answer["ends_s"] for answer in answers])
        return ChunkTimes(lengths(ends_s), tuple(self._times(answers)), ends_s)

    def _take_losses(self, answers: list[dict[str, Any]]) -> None:
        """An iteration's losses are known when every device has told its own."""
        names = [[name for name in self._plan.losses if self._plan.values[name].device == device] for device in self._backend.names]
        for own, answer in zip(names, answers, strict=True):
            for iteration, losses in answer["losses"].items():
                self._known.setdefault(int(iteration), {}).update(zip(own, losses, strict=True))
        for iteration in sorted(self._known):
            found = self._known[iteration]
            if len(found) == len(self._plan.losses):
                self.losses[iteration] = tuple(torch.tensor(found[name], dtype=torch.float64) for name in self._plan.losses)
                del self._known[iteration]

    def _times(self, answers: list[dict[str, Any]]) -> list[Measured]:
        """All processes' on one clock: of one node they share it (CLOCK_MONOTONIC); of several, their beginnings are taken as one."""
        one, found = self._backend.channel.ranks.one_node, []
        for device, answer in zip(self._backend.names, answers, strict=True):
            shift_s = 0.0 if one else answers[0]["begun_s"] - answer["begun_s"]
            found += [
                Measured(index, period, start_s + shift_s, end_s + shift_s, core, device=device)
                for index, period, start_s, end_s, core in answer["times"]
            ]
        return sorted(found, key=lambda m: m.start_s)

    def trace(self) -> list[Measured]:
        """The times of a few more periods."""
        channel, parts = self._backend.channel, self._backend.parts
        channel.send({"do": "trace", "program": self._number})
        return self._times(channel.gather(parts.trace(self._number)))

    def parameter_difference(self, expected: Named) -> float:
        """Over all devices."""
        backend = self._backend
        message = {"do": "difference", "program": self._number}
        own, answers = backend.tell(lambda: backend.parts.difference(self._number, expected), message, expected)
        found = [own["difference"], *(answer.get("difference", 0.0) for answer in answers)]
        return nan if any(map(isnan, found)) else max(found)


def _of(plan: Plan, tensors: Named) -> dict[str, Any]:
    """What a message says of a plan and the tensors behind it."""
    return {"plan": dump(plan), "parameters": [name for name, tensor in tensors.items() if isinstance(tensor, torch.nn.Parameter)]}


def _latest(ends_s: list[list[float]]) -> tuple[float, ...]:
    """The latest end of each period; processes without tasks, of all or of the first periods, have none."""
    most = max(map(len, ends_s))
    filled = [[0.0] * (most - len(ends)) + ends for ends in ends_s]
    return tuple(map(max, zip(*filled, strict=True)))
