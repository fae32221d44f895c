"""Where a job is to run: what the command line says of devices."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Where:
    """`devices`: how many (None: all that a named machine has, else one). `link`: between groups of CPU cores, as in `this_cpu`."""

    device: str = "cpu"
    devices: int | None = None
    mode: str = "eager"
    link: str = "alias"


HERE = Where()
