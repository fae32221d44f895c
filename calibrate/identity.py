"""The identity of this machine: the part of a profile that must agree before its figures may be used here."""

import platform
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from executors.cpu.cores import available_cores
from traces.documents.profile import Identity, driver_branch

if TYPE_CHECKING:
    from calibrate.device_record import DeviceRecord
    from executors.cuda.driver import Driver


def comparable_cpu() -> Identity:
    """Return the fields of `this_cpu` that `Identity.differences` compares, without importing torch, which takes seconds."""
    return Identity(kind="cpu", cpu=_model(), cores=len(available_cores()), pinned=True, torch=version("torch").split("+")[0])


def this_cpu() -> Identity:
    """Identity of this machine's CPU with the software that decides an op's time."""
    import torch

    capability = torch.backends.cpu.get_cpu_capability()
    extras = {"capability": capability, "system": platform.system(), "python": platform.python_version()}
    return comparable_cpu().model_copy(update={"extras": extras})


def this_gpu(driver: "Driver", precision: str, record: "DeviceRecord | None" = None) -> Identity:
    """Identity of the driver's GPU with the software and the flags that decide an op's time, which are set for `precision`.

    `record` holds what NVML reports about the same GPU. Without it, or where NVML does not answer, clocks and settings are missing.
    """
    facts, software = driver.facts, driver.software()
    reported: Mapping[str, Any] = record.facts if record else {}
    flags: dict[str, Any] = driver.set_precision(precision)
    clocks = {"sm": reported.get("max_clock_sm_mhz"), "mem": reported.get("max_clock_memory_mhz")}
    extras: dict[str, Any] = {
        "capability": f"{facts.capability[0]}.{facts.capability[1]}",
        "l2_bytes": facts.cache_bytes,
        "nccl": software.get("nccl"),
        "max_connections": software.get("max_connections"),
        "ecc": reported.get("ecc"),
        "mig": reported.get("mig"),
        "pcie_generation": reported.get("pcie_generation"),
        "pcie_width": reported.get("pcie_width"),
        "python": platform.python_version(),
    }
    return Identity(
        kind="gpu",
        gpu=facts.name,
        sms=facts.sms,
        clocks_mhz={name: float(clock) for name, clock in clocks.items() if clock is not None},
        driver=software.get("driver") or str(reported.get("driver", "")),
        cuda=software.get("cuda", ""),
        torch=software.get("torch", "").split("+")[0],
        cudnn={"version": software.get("cudnn", "")} | flags,
        tf32=precision == "tf32",
        conv_tf32=precision == "default",
        extras={name: value for name, value in extras.items() if value is not None},
    )


def describe_cpu(identity: Identity) -> dict[str, object]:
    """A CPU and the version of torch as documents describe them."""
    return {"kind": "cpu", "name": identity.cpu, "cores": identity.cores, "torch": identity.torch}


def describe_gpu(identity: Identity, partitions: int = 1) -> dict[str, object]:
    """A GPU and its software versions as documents describe them, with the number of partitions if there are several."""
    return {
        "kind": "gpu",
        "name": identity.gpu,
        "sms": identity.sms,
        "driver": identity.driver,
        "cuda": identity.cuda,
        "torch": identity.torch,
        **({"devices": partitions} if partitions > 1 else {}),
    }


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
