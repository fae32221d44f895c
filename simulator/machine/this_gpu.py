"""A calibrated GPU as a machine, whole or split into partitions that work as separate devices."""

from dataclasses import replace
from typing import TYPE_CHECKING

from simulator.machine.machine import Device, HostLane, Machine, Memory
from simulator.machine.measured_gpu import with_measured
from simulator.machine.partitions import split
from simulator.machine.presets import host_figures, one_gpu
from traces.errors import SchedcastError

if TYPE_CHECKING:
    from traces.documents.profile import Profile

THIS_GPU = "this-gpu"
DEVICE = "cuda:0"


def gpu_machine(profile: "Profile", partitions: int = 1, name: str = THIS_GPU) -> Machine:
    """The profile's GPU as the device `cuda:0`, or split into `cuda:0/0`, `cuda:0/1`, ..., which share its memory and one host lane.

    Figures that the profile lacks are taken from the preset of the same product. Raises SchedcastError with the missing figures if there is
    no such preset, and if the GPU has too few SMs for the partitions.
    """
    whole = replace(with_measured(one_gpu(profile.identity.gpu, profile.identity.sms) or _without_preset(profile), profile), name=name)
    return whole if partitions == 1 else split(whole, partitions, profile)


def _without_preset(profile: "Profile") -> Machine:
    """A GPU without a preset: the profile must have its figures; those of the host are general assumptions."""
    identity = profile.identity
    needed = {
        "the number of SMs": identity.sms,
        "the peak FLOP/s in fp32": profile.peak_flops.get("fp32"),
        "the size of its memory": profile.memory_bytes,
        "the memory's bandwidth": profile.bandwidth_bytes_per_s,
        "the size of its cache": profile.cache_bytes,
        "the number of priority levels": profile.priority_levels,
    }
    missing = [what for what, figure in needed.items() if not figure]
    if missing:
        raise SchedcastError(
            f"the profile of {identity.gpu or identity.name} lacks {', '.join(missing)}, and this GPU has no preset; calibrate it again"
        )
    figures, sources = host_figures()
    memory = f"memory of {DEVICE}"
    return Machine(
        identity.gpu,
        (Device(DEVICE, "gpu", identity.sms, {}, memory),),
        (Memory(memory, profile.memory_bytes, profile.bandwidth_bytes_per_s, profile.cache_bytes),),
        (HostLane(f"host of {DEVICE}", (DEVICE,), **figures),),
        sources={**sources, "saturation_share": "assumed: 30 % of the SMs saturate the memory"},
    )
