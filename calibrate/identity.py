"""The identity of this machine: the part of a profile that must match before its figures may be used here."""

import platform
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

from executors.cpu.cores import available_cores
from traces.documents.profile import Identity, driver_branch


def comparable_cpu() -> Identity:
    """Return the fields of `cpu_identity` that `Identity.differences` compares, without importing torch, which takes seconds."""
    return Identity(kind="cpu", cpu=_model(), cores=len(available_cores()), pinned=True, torch=version("torch").split("+")[0])


def cpu_identity() -> Identity:
    """Identity of this machine's CPU with the software that decides an op's time."""
    import torch

    capability = torch.backends.cpu.get_cpu_capability()
    extras = {"capability": capability, "system": platform.system(), "python": platform.python_version()}
    return comparable_cpu().model_copy(update={"extras": extras})


def describe_cpu(identity: Identity) -> dict[str, object]:
    """A CPU and the version of torch as documents describe them."""
    return {"kind": "cpu", "name": identity.cpu, "cores": identity.cores, "torch": identity.torch}


def same_device(one: Mapping[str, object], other: Mapping[str, object]) -> bool:
    """Whether two descriptions are of one device. Drivers of one branch count as the same, as in `Identity.differences`."""
    branches = [str(device.get("driver", "")) for device in (one, other)]
    return dict(one) | {"driver": driver_branch(branches[0])} == dict(other) | {"driver": driver_branch(branches[1])}


def _model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:  # not Linux
        return platform.processor() or platform.machine()
    return platform.machine()
