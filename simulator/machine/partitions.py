"""Splits one GPU into partitions that work as separate devices with disjoint SMs and one memory."""

from dataclasses import replace
from typing import TYPE_CHECKING

from simulator.machine.machine import Link, Machine
from traces.errors import SchedcastError

if TYPE_CHECKING:
    from traces.documents.profile import Profile

#: The SM count of a partition is a multiple of this (green contexts on Hopper).
SMS_PER_STEP = 8


def split(whole: Machine, count: int, profile: "Profile | None" = None) -> Machine:
    """`count` equal partitions of a machine with one GPU.

    Links between partitions are aliases and move nothing; links to the host are shared. A partition has as many SMs as the profile says the
    driver gave it, otherwise the largest multiple of SMS_PER_STEP that fits. Raises SchedcastError if the GPU has too few SMs.
    """
    gpu = whole.devices[0]
    measured = profile.partition_sms.get(str(count)) if profile is not None else None
    sms = measured or _sms_per_partition(gpu.sms, count)
    names = [f"{gpu.name}/{index}" for index in range(count)]
    peaks = {precision: flops * sms / gpu.sms for precision, flops in gpu.peak_flops.items()}
    links = [
        replace(link, source=source, target=target, channel=link.channel or f"{link.source}>{link.target}")
        for link in whole.links
        for name in names
        for source, target in [tuple(name if end == gpu.name else end for end in (link.source, link.target))]
    ]
    bandwidth = whole.memories[0].bandwidth_bytes_per_s
    links += [Link(a, b, 0.0, bandwidth, alias=True) for a in names for b in names if a != b]
    note = f"{sms} of {gpu.sms}: " + ("as the driver split them" if measured else f"the largest multiple of {SMS_PER_STEP} that fits")
    return replace(
        whole,
        devices=tuple(replace(gpu, name=name, sms=sms, peak_flops=peaks) for name in names),
        hosts=tuple(replace(host, devices=tuple(names)) for host in whole.hosts),
        links=tuple(links),
        sources={**whole.sources, "sms": note, "peak_flops": "that of the whole GPU by the share of its SMs"},
        whole=whole,
    )


def _sms_per_partition(sms: int, count: int) -> int:
    if count < 1:
        raise SchedcastError(f"{count} partitions requested; expected at least 1")
    per_partition = sms // count // SMS_PER_STEP * SMS_PER_STEP
    if not per_partition:
        most = sms // SMS_PER_STEP
        raise SchedcastError(f"{count} partitions requested; {sms} SMs give at most {most} of {SMS_PER_STEP} SMs; choose 1 to {most}")
    return per_partition
