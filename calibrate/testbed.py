"""What a testbed is: a device of this machine on which plans are calibrated and run (`cpu.testbed`, `cuda.testbed`, ...)."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import torch

from executors.program import Backend
from simulator.machine.machine import Machine
from simulator.model.built import Built
from simulator.model.job import Job
from simulator.plan.plan import Plan
from traces.documents.comparison import PARALLEL_LOOPS
from traces.documents.profile import Identity, Profile
from traces.errors import Code, SchedcastError

#: Reports progress as (done, total, text).
Progress = Callable[[int, int, str], None]


def no_progress(done: int, total: int, text: str) -> None:
    """Report nothing."""


class Conditions(Protocol):
    """The conditions during a measurement."""

    @property
    def rejected(self) -> bool:
        """Whether the machine was disturbed, so that the measurement should be repeated."""

    @property
    def busy_share(self) -> float | None:
        """The share of the device that other processes took, from 0 to 1; None if unknown."""


class Monitor(Protocol):
    """Watches the machine for disturbances, from its creation until `stop`."""

    def stop(self) -> Conditions:
        """The conditions since the monitor was created."""


class TimedLoop(Protocol):
    """One of PyTorch's own loops, which trains a job. `about`: with how many threads it runs, in words; empty on a GPU."""

    about: str

    @property
    def losses(self) -> Sequence[float]:
        """One per step so far."""

    def train(self, steps: int, batches: Sequence[tuple] | None = None) -> list[float]:
        """Run `steps` steps, on `batches` of (inputs, target) or on the job's own, and return their lengths in seconds."""

    def restart(self, warm_up: int) -> None:
        """Start the training again in a new process with `warm_up` steps, if it has a separate process."""


class PlainLoop(TimedLoop, Protocol):
    """Plain PyTorch's training of a job, whose numbers plans are compared with."""

    def copy_current(self, targets: Mapping[str, torch.Tensor]) -> None:
        """Copy the current parameters and buffers into `targets`, by name."""


class Testbed(Protocol):
    """A device, or a group of devices, on which a validation measures.

    `mode` is "eager" or "graph". In each round of a validation, every program runs `units_per_round` of its units
    (`Executable.unit`), or fewer if those that count take more than `round_s` seconds, and plain PyTorch runs `plain_steps_per_round`
    steps. `interleaved`: whether a validation measures keys in its rounds; if not, it measures them before the rounds, and methods that
    sample keys in the rounds do nothing. `backend`: where plans run, after `open`. `memory_limit_bytes`: the largest size of each memory
    that counts; None: no limit. `other_loops`: those of `OTHER_LOOPS` that can be timed here, if the machine has what they need.
    """

    identity: Identity
    mode: str
    units_per_round: int
    round_s: float
    plain_steps_per_round: int
    interleaved: bool
    backend: Backend
    memory_limit_bytes: float | None = None
    other_loops: Sequence[str] = PARALLEL_LOOPS

    @property
    def plain_threads(self) -> tuple[int, str] | None:
        """The number of threads of plain PyTorch, and how they wait (`LoopCosts.waiting`); None on a GPU, where it does not matter."""
        return None

    def machine(self, profile: Profile | None) -> Machine:
        """This machine with the figures of `profile`, its memories limited to `memory_limit_bytes`."""

    def measure_machine(self, profile: Profile) -> None:
        """Measure what belongs to the machine and not to an op, and store it in `profile`. Does nothing if the profile has it."""

    def calibrate(self, plans: Iterable[Plan], machine: Machine, profile: Profile, save_to: Path | None, progress: Progress) -> int:
        """Measure the missing cost keys of `plans` and return how many were measured."""

    def preview(self, plans: Iterable[Plan], machine: Machine, profile: Profile) -> int:
        """Measure the missing cost keys of `plans` roughly and return how many were measured, if `interleaved`."""
        return 0

    def open(self, machine: Machine) -> None:
        """Make the backend."""

    def sample_keys(self, plans: Sequence[Plan], number: int) -> list[float]:
        """Take sample `number` of every cost key of `plans`, and return the seconds that the reference kernel took meanwhile.

        A validation calls this between strategies' steps.
        """
        return []

    def sample_loop_keys(self, loop: Plan, number: int) -> None:
        """Take sample `number` of every cost key of PyTorch's own loop. A validation calls this before that loop's steps."""
        return

    def sample_interference(self, plans: Sequence[Plan], profile: Profile, number: int) -> None:
        """Time how tasks slow each other down where lanes of `plans` share a memory, as round `number`; with 0, prepare to do so."""
        return

    def reference_kernel_s(self) -> list[float]:
        """Seconds of the reference kernel since the last call of `sample_keys`."""

    def monitor(self) -> Monitor:
        """Start watching this machine for disturbances."""

    def record(self, profile: Profile, samples: Collection[int], loop_samples: Collection[int] = ()) -> dict[str, dict[int, float]]:
        """Store the costs of all keys in `profile`, computed from the samples with the given numbers.

        `loop_samples`: those of the keys of PyTorch's own loop, and the rounds of `sample_interference`. Returns by key and number each
        sample as a multiple of the key's median, for `CostModel`.
        """
        return {}

    def plain_loop(self, job: Job, built: Built, same_masks: bool) -> PlainLoop:
        """Plain PyTorch's training of `job`, which `built` is made of; it may train the module of `built`.

        `same_masks`: as in `calibrate.numerics.reference`. A testbed has one such loop at a time.
        """

    def other_loop(self, job: Job, strategy: str) -> TimedLoop:
        """One of PyTorch's `other_loops`: of several processes, on a testbed of several. Raises SchedcastError if it cannot train."""
        raise SchedcastError(f"{strategy} runs in several processes; start them with torchrun", Code.DEVICES)

    def close(self) -> None:
        """End the processes that the testbed has started. Those that are needed later are started again."""
        return

    def about(self) -> dict[str, object]:
        """The device as documents describe it."""


def drained_periods(plan: Plan, unit: int) -> int:
    """How many periods at the end of a chunk do not count, in programs of this unit: one if lanes run side by side until the chunk ends.

    In a program of graphs, lanes join at the end of each graph.
    """
    lanes = max(len({task.lane for task in own.tasks}) for own in plan.sequence)
    return 1 if unit == 1 and lanes > 1 else 0


def units_in_round(testbed: Testbed, unit_s: float) -> int:
    """How many units of `unit_s` seconds a program runs in a round: two at least if the testbed runs more than one.

    The first one does not count.
    """
    units = testbed.units_per_round
    while units > 2 and (units - 1) * unit_s > testbed.round_s:  # never on a testbed whose `round_s` is infinite
        units -= 1
    return units
