"""The protocol of a testbed: a device of this machine on which plans are calibrated and run (`cpu.testbed`, `cuda.testbed`, ...)."""

from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Protocol

from executors.reference import Reference
from executors.run import Backend
from simulator.machine.machine import Machine
from simulator.plan.plan import Plan
from traces.profile import Identity, Profile

#: Reports progress as (done, total, text).
Progress = Callable[[int, int, str], None]


def no_progress(done: int, total: int, text: str) -> None:
    """Report nothing."""


class Conditions(Protocol):
    """The conditions during a measurement. `rejected`: whether the machine was disturbed, so that the measurement should be repeated."""

    @property
    def rejected(self) -> bool:
        """Whether the measurement should be repeated."""


class Monitor(Protocol):
    """Watches the machine for disturbances, from its creation until `stop`."""

    def stop(self) -> Conditions:
        """The conditions since the monitor was created."""


class Testbed(Protocol):
    """A device, or a group of devices, on which a validation measures.

    `backend` exists after `open`. `mode` is "eager" or "graph". In each round of a validation, every program runs `units_per_round` of its
    units (`Executable.unit`) and plain PyTorch runs `plain_steps_per_round` steps. `interleaved`: whether a validation measures keys in its
    rounds; if not, it measures them before the rounds. `memory_limit_bytes`: the largest size of each memory that counts; None: no limit.
    """

    identity: Identity
    backend: Backend
    mode: str
    units_per_round: int
    plain_steps_per_round: int
    interleaved: bool
    memory_limit_bytes: float | None

    @property
    def plain_threads(self) -> int | None:
        """The number of threads with which `time_plain` runs plain PyTorch; None on a GPU."""

    def machine(self, profile: Profile | None) -> Machine:
        """This machine with the figures of `profile`, its memories limited to `memory_limit_bytes`."""

    def measure_machine(self, profile: Profile) -> None:
        """Measure what belongs to the machine and not to an op, and store it in `profile`. Does nothing if the profile has it."""

    def calibrate(self, plans: Iterable[Plan], machine: Machine, profile: Profile, save_to: Path | None, progress: Progress) -> int:
        """Measure the missing keys of `plans` and return how many were measured."""

    def preview(self, plans: Iterable[Plan], machine: Machine, profile: Profile) -> int:
        """Measure the missing keys of `plans` roughly and return how many were measured. Does nothing if not `interleaved`."""

    def open(self, machine: Machine) -> None:
        """Make the backend."""

    def sample_keys(self, plans: Sequence[Plan], number: int) -> list[float]:
        """Take sample `number` of every key of `plans`, and return the seconds that the anchor op took meanwhile.

        A validation calls this between strategies' steps. Returns an empty list if not `interleaved`.
        """

    def sample_loop_keys(self, loop: Plan, number: int) -> None:
        """Take sample `number` of every key of PyTorch's own loop. A validation calls this before that loop's steps.

        Does nothing if not `interleaved`.
        """

    def sample_co_runs(self, plans: Sequence[Plan], profile: Profile, number: int) -> None:
        """Time how tasks slow each other down where lanes of `plans` share a memory, as round `number`; with 0, prepare to do so.

        Does nothing if not `interleaved`.
        """

    def anchor_samples(self) -> list[float]:
        """Seconds of the anchor op since the last call of `sample_keys`."""

    def monitor(self) -> Monitor:
        """Start watching this machine for disturbances."""

    def record(self, profile: Profile, samples: Collection[int], loop_samples: Collection[int] = ()) -> dict[str, dict[int, float]]:
        """Store the costs of all keys in `profile`, computed from the samples with the given numbers.

        `loop_samples`: those of the keys of PyTorch's own loop, and the numbers of the co-runs. Returns by key and number what each sample
        is as a multiple of the key's median, for `CostModel`; nothing if not `interleaved`.
        """

    def time_plain(self, plain: Reference, steps: int) -> list[float]:
        """Run `steps` steps of plain PyTorch and return their lengths in seconds."""

    def choose_threads(self, plain: Reference) -> str:
        """Find the number of threads with which plain PyTorch is fastest, for `time_plain`, by steps of `plain` that are discarded.

        Returns the choice in words, or an empty string if there is no choice.
        """

    def about(self) -> dict[str, object]:
        """The device as documents describe it."""
