"""Which of several processes this is, as `torchrun` says it in the environment. Does not need torch."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

from traces.errors import StepcastError

#: The variables that torchrun sets for every process.
VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")


@dataclass(frozen=True)
class Ranks:
    """`rank` of `world` processes; on its own node `local_rank` of `local_world`. Process r owns device r of the machine."""

    rank: int
    world: int
    local_rank: int
    local_world: int

    def __post_init__(self):
        """Raise StepcastError for numbers that no launcher gives."""
        if not (0 <= self.rank < self.world and 0 <= self.local_rank < self.local_world <= self.world):
            raise StepcastError(
                f"this process is rank {self.rank} of {self.world}, on its node {self.local_rank} of {self.local_world}, which cannot be;"
                " start it with torchrun"
            )

    @property
    def first(self) -> bool:
        """Whether this process leads."""
        return self.rank == 0

    @property
    def one_node(self) -> bool:
        """Whether all processes share a node, and with it a clock."""
        return self.local_world == self.world


def launched(environment: Mapping[str, str] = os.environ) -> Ranks | None:
    """What torchrun says of this process; None where it did not start it, or started it alone.

    Raises StepcastError where the variables are incomplete or no numbers.
    """
    given = {name: environment[name] for name in VARIABLES if name in environment}
    if "RANK" not in given or given.get("WORLD_SIZE", "1") == "1":
        return None
    missing = [name for name in VARIABLES if name not in given]
    if missing:
        raise StepcastError(f"RANK is {given['RANK']}, but {', '.join(missing)} is not set; start the processes with torchrun")
    try:
        return Ranks(*(int(given[name]) for name in VARIABLES))
    except ValueError:
        shown = ", ".join(f"{name}={value}" for name, value in given.items())
        raise StepcastError(f"{shown}: expected whole numbers; start the processes with torchrun") from None
