"""The interfaces of backends and of the programs that they make of plans."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch

from executors.binding import Binding, Forms
from executors.errors import PeerLostError
from executors.measured import ChunkTimes, Measured
from simulator.model.user_code import brief
from simulator.plan.plan import Plan
from simulator.plan.task import Task
from traces.errors import SchedcastError, out_of_memory

#: Periods at the start of a program that are not counted.
WARM_UP = 3


class Executable(Protocol):
    """A plan bound to tensors on a backend. It retains its state between calls.

    `losses`: by iteration, one tensor per microbatch. `unit`: `run` returns one step length per `unit` periods. `warm_up`: how many step
    lengths at the start are not typical. `tracing_overhead`: the relative slowdown of the steps in which `trace` timed the tasks, compared
    with steps without events.
    """

    losses: dict[int, tuple[torch.Tensor, ...]]
    unit: int
    warm_up: int
    tracing_overhead: float | None

    @property
    def binding(self) -> Binding:
        """The values' tensors."""

    @property
    def kept(self) -> dict[str, torch.Tensor]:
        """The retained values of the last complete iteration."""

    @property
    def iterations(self) -> int:
        """How many iterations have begun."""

    def run(self, steps: int, inputs: "list[Mapping[str, torch.Tensor]] | None" = None) -> ChunkTimes:
        """Issue `steps` more periods back to back and wait for them. `inputs`: the feeds of each iteration (default: the job's own)."""

    def sync(self) -> ChunkTimes:
        """Drain: run the lagging tasks, so that every iteration begun is complete. The next run starts a new prologue."""

    def trace(self) -> list[Measured]:
        """The times of every task in some typical periods. Runs more periods for them."""

    def copy_current(self, targets: Mapping[str, torch.Tensor]) -> None:
        """Copy the current parameters, buffers and optimizer state into `targets`, by the job's names, between two runs.

        A tensor in `targets` is whole, also if the plan has it in pieces; what no piece covers stays. Nothing is drained. They are the
        newest ones: if stages work on different iterations, each stage's values have all updates that it has made.
        """

    def parameter_difference(self, expected: Mapping[str, torch.Tensor]) -> float:
        """The largest |a − b| between any device's current copy of a parameter and its value in `expected`; see `executors.tensors`."""

    def gradient_difference(self, expected: Mapping[str, torch.Tensor]) -> float:
        """The same of the gradients by parameter. The plan's gradients must be among the retained values."""


@dataclass(frozen=True)
class Start:
    """What a program starts with: the number of its first iteration, and the program whose carried tensors it continues with, if any."""

    iteration: int = 0
    before: Executable | None = None

    @property
    def carried(self) -> Mapping[str, torch.Tensor]:
        """The tensors to continue with, by value name."""
        return {} if self.before is None else self.before.binding.carried


AT_FIRST = Start()


class Backend(Protocol):
    """A place where plans run. `mode`: eager or graph. `unit`: periods per graph, or 1. `forms`: the forms of canonical ops."""

    mode: str
    unit: int
    forms: Forms
    torch_device: torch.device

    def load(
        self, plan: Plan, tensors: Mapping[str, torch.Tensor], seed: int = 0, keep: tuple[str, ...] = (), start: Start = AT_FIRST
    ) -> Executable:
        """Bind a plan to tensors by name (parameters, buffers, optimizer state and inputs of the job)."""

    def peak_bytes(self, plan: Plan, tensors: Mapping[str, torch.Tensor], seed: int = 0) -> dict[str, int]:
        """Peak bytes of the allocator for the plan in an untimed run, by device; empty if the allocator has no count.

        If the allocator counts several devices of one memory together, the one figure is under the memory's name.
        """


class TaskFailedError(SchedcastError):
    """A task raised an error. The program that it belongs to is unusable; the backend can still be used."""


#: What to do about a task that failed.
RUN_PLAIN = "run the model in plain PyTorch to see why"


def failure(task: Task, error: Exception, advice: str = RUN_PLAIN) -> Exception:
    """The error to raise after a task raised `error`: a TaskFailedError with the advice, or `error` itself if it is not the task's fault.

    That is so if memory ran out or another process was lost.
    """
    if isinstance(error, PeerLostError) or out_of_memory(error):
        return error
    where = f" in layer {task.layer!r}" if task.layer else ""
    if isinstance(error, SchedcastError):
        return TaskFailedError(f"task {task.name}{where}: {error}")
    return TaskFailedError(f"task {task.name}{where} failed: {brief(error)}; {advice}")
