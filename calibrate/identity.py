"""Who this machine is: the part of a profile that must agree before its figures may be used."""

import platform
from pathlib import Path

import torch

from executors.workers import available_cores
from traces.profile import Identity


def this_cpu() -> Identity:
    """Identity of this machine's CPU with the software that decides an op's time."""
    return Identity(
        kind="cpu",
        cpu=_model(),
        cores=len(available_cores()),
        pinned=True,
        torch=torch.__version__.split("+")[0],
        extras={"capability": torch.backends.cpu.get_cpu_capability(), "system": platform.system(), "python": platform.python_version()},
    )


def _model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:  # not Linux
        return platform.processor() or platform.machine()
    return platform.machine()
