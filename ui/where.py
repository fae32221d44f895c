"""Where a job is to run: what the command line says of devices."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Where:
    """`devices`: how many (None: all that a named machine has, else one). `link`: between groups of CPU cores, as in `this_cpu`.

    `memory_limit_gb`: at most so much of each memory counts; None: all there is.
    """

    device: str = "cpu"
    devices: int | None = None
    mode: str = "eager"
    link: str = "alias"
    memory_limit_gb: float | None = None

    @property
    def memory_limit_bytes(self) -> float | None:
        """The limit in bytes."""
        return None if self.memory_limit_gb is None else self.memory_limit_gb * 1e9


HERE = Where()
