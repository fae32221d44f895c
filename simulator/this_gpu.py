"""A calibrated GPU as a machine, whole or in partitions that work as devices of their own."""

from dataclasses import replace
from typing import TYPE_CHECKING

from traces.errors import StepcastError

from .machine import Device, HostLane, Link, Machine, Memory
from .measured_gpu import with_measured
from .presets import host_figures, one_gpu

if TYPE_CHECKING:
    from traces.profile import Profile

THIS_GPU = "this-gpu"
DEVICE = "cuda:0"
#: Parts of a GPU have multiples of this many SMs (green contexts on Hopper).
SMS_PER_STEP = 8


def gpu_machine(profile: "Profile", partitions: int = 1, name: str = THIS_GPU) -> Machine:
    """The profile's GPU as the device `cuda:0`, or split into `cuda:0/0`, `cuda:0/1`, ... that share its memory and one host lane.

    Figures that the profile lacks are those of the preset of the same product. Raises StepcastError where there is none, naming what is
    missing, and for more parts than the GPU has room for.
    """
    whole = replace(with_measured(one_gpu(profile.identity.gpu) or _unknown(profile), profile), name=name)
    return whole if partitions == 1 else _split(whole, profile, partitions)


def _unknown(profile: "Profile") -> Machine:
    """A GPU that no preset is of: what the profile must know stands in it, the rest are general assumptions."""
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
        raise StepcastError(
            f"the profile of {identity.gpu or identity.name} lacks {', '.join(missing)}, and no preset is of this GPU; calibrate it again"
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


def _split(whole: Machine, profile: "Profile", count: int) -> Machine:
    """`count` equal parts of a machine of one GPU. Between them a link moves nothing; with the host they share its links."""
    given = whole.devices[0]
    sms = _sms_per_part(profile, given.sms, count)
    names = [f"{given.name}/{index}" for index in range(count)]
    peaks = {precision: flops * sms / given.sms for precision, flops in given.peak_flops.items()}
    links = [
        replace(link, source=source, target=target, channel=link.channel or f"{link.source}>{link.target}")
        for link in whole.links
        for name in names
        for source, target in [tuple(name if end == given.name else end for end in (link.source, link.target))]
    ]
    bandwidth = whole.memories[0].bandwidth_bytes_per_s
    links += [Link(a, b, 0.0, bandwidth, alias=True) for a in names for b in names if a != b]
    measured = str(count) in profile.partition_sms
    note = f"{sms} of {given.sms}: " + ("as the driver split them" if measured else f"the largest multiple of {SMS_PER_STEP} that fits")
    return replace(
        whole,
        devices=tuple(replace(given, name=name, sms=sms, peak_flops=peaks) for name in names),
        hosts=tuple(replace(host, devices=tuple(names)) for host in whole.hosts),
        links=tuple(links),
        sources={**whole.sources, "sms": note, "peak_flops": "that of the whole GPU by the share of its SMs"},
    )


def _sms_per_part(profile: "Profile", sms: int, count: int) -> int:
    if count < 1:
        raise StepcastError(f"{count} partitions asked for; expected at least 1")
    found = profile.partition_sms.get(str(count)) or sms // count // SMS_PER_STEP * SMS_PER_STEP
    if not found:
        most = sms // SMS_PER_STEP
        raise StepcastError(f"{count} partitions asked for; a GPU of {sms} SMs has room for {most} of {SMS_PER_STEP}; choose 1 to {most}")
    return found
