"""What a machine is in a prediction or a measurement, in words: how its GPU is split, and in which precision its kernels compute."""

from collections.abc import Iterable

from simulator.machine.machine import Machine
from traces import units
from traces.documents.shipped import shipped_validations


def specification_words(machine: Machine, precision: str) -> str:
    """What a machine is: 8 GPUs, each with 132 SMs, 66.9 TFLOP/s (fp32) and 80 GiB at 3350 GB/s. `precision`: of the FLOP/s."""
    device, memory, count = machine.devices[0], machine.memories[0], len(machine.devices)
    several = f"{count} GPUs, each with " if count > 1 else ""
    parts = "SMs" if device.kind == "gpu" else "core" if device.sms == 1 else "cores"
    named = precision if precision in device.peak_flops else "fp32"
    flops = f"{units.digits(device.peak_flops[named] / 1e12)} TFLOP/s ({named})"
    rate = f"{memory.bandwidth_bytes_per_s / 1e9:.0f} GB/s"
    return f"{several}{device.sms} {parts}, {flops}, {units.capacity(memory.size_bytes)} at {rate}"


def partition_words(machine: Machine) -> str:
    """How the machine's GPU is split; empty if it is not."""
    if machine.whole is None:
        return ""
    parts, gpu = machine.devices, machine.whole.devices[0]
    left = gpu.sms - sum(part.sms for part in parts)
    unused = f" ({left} of its {gpu.sms} SMs stay unused)" if left else ""
    return (
        f"One GPU of {machine.name} is split into {len(parts)} parts of {parts[0].sms} SMs{unused}."
        " The baseline, and every schedule of one device, uses the whole GPU."
    )


def unmeasured_words(machines: Iterable[Machine]) -> str:
    """What a prediction for a GPU rests on, if the package has no measured step of a schedule on any GPU; else empty."""
    if not any(machine.devices[0].kind == "gpu" for machine in machines):
        return ""
    if any(validation.device.get("kind") == "gpu" for validation in shipped_validations()):
        return ""
    return (
        "Not yet measured on a GPU: schedules, the baseline among them, run in our executor, whose time on the host is assumed."
        " What you have is plain PyTorch."
    )


def precision_words(machines: Iterable[Machine], precision: str) -> str:
    """What PyTorch's default precision means on the GPUs that have TF32; otherwise empty."""
    names = [machine.name for machine in machines if machine.devices[0].kind == "gpu" and "tf32" in machine.devices[0].peak_flops]
    if precision != "default" or not names:
        return ""
    return f"{', '.join(dict.fromkeys(names))}: convolutions in TF32, products in fp32, as is PyTorch's default (--precision)"
