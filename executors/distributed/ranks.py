"""This process's rank, read from torchrun's environment variables. Does not import torch."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

from traces.errors import SchedcastError
from traces.units import read_integer

#: The variables that torchrun sets for every process.
VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")


@dataclass(frozen=True)
class Ranks:
    """This process is `rank` of `world`, and on its node `local_rank` of `local_world`. Rank r owns device r of the machine."""

    rank: int
    world: int
    local_rank: int
    local_world: int

    def __post_init__(self):
        """Raise SchedcastError for numbers that no launcher gives."""
        if not (0 <= self.rank < self.world and 0 <= self.local_rank < self.local_world <= self.world):
            raise SchedcastError(
                f"this process is rank {self.rank} of {self.world}, on its node {self.local_rank} of {self.local_world}, which cannot be;"
                " start it with torchrun"
            )

    @property
    def first(self) -> bool:
        """Whether this is rank 0, which plans, measures and controls the others."""
        return self.rank == 0

    def device_index(self, visible: int) -> int:
        """The number of this process's GPU among the `visible` ones.

        torchrun shows every process all GPUs of the node, so it is the local rank. Other launchers set CUDA_VISIBLE_DEVICES so that each
        process sees its own GPU only, as number 0. Raises SchedcastError if the process sees several GPUs, but fewer than it needs.
        """
        if visible == 1:
            return 0
        if not visible or self.local_rank < visible:  # without any, opening the GPU says why
            return self.local_rank
        raise SchedcastError(
            f"process {self.rank} has local rank {self.local_rank} and sees {visible} GPUs; start at most {visible} processes per node,"
            " or show each process its own GPU with CUDA_VISIBLE_DEVICES"
        )

    @property
    def one_node(self) -> bool:
        """Whether all processes run on one node, and so share a clock."""
        return self.local_world == self.world


def launched(environment: Mapping[str, str] = os.environ) -> Ranks | None:
    """This process's ranks; None if torchrun did not start it, or started one process only.

    Raises SchedcastError if the variables are incomplete or are not whole numbers.
    """
    variables = {name: environment[name] for name in VARIABLES if name in environment}
    if "RANK" not in variables or variables.get("WORLD_SIZE", "1") == "1":
        return None
    missing = [name for name in VARIABLES if name not in variables]
    if missing:
        raise SchedcastError(f"RANK is {variables['RANK']}, but {', '.join(missing)} is not set; start the processes with torchrun")
    numbers = [number for name in VARIABLES if (number := read_integer(variables[name])) is not None]
    if len(numbers) < len(VARIABLES):
        shown = ", ".join(f"{name}={value}" for name, value in variables.items())
        raise SchedcastError(f"{shown}: expected whole numbers; start the processes with torchrun")
    return Ranks(*numbers)
