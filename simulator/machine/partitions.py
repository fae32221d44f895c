"""One GPU in partitions that work as devices of their own: disjoint SMs, one memory."""

from dataclasses import replace
from typing import TYPE_CHECKING

from simulator.machine.machine import Link, Machine
from traces.errors import StepcastError

if TYPE_CHECKING:
    from traces.profile import Profile

#: Parts of a GPU have multiples of this many SMs (green contexts on Hopper).
SMS_PER_STEP = 8


def split(whole: Machine, count: int, profile: "Profile | None" = None) -> Machine:
    """`count` equal parts of a machine of one GPU. Between them a link moves nothing; with the host they share its links.

    They have as many SMs as the profile says the driver gave them, else the largest multiple that fits. Raises StepcastError for more parts
    than the GPU has room for.
    """
    given = whole.devices[0]
    measured = profile.partition_sms.get(str(count)) if profile is not None else None
    sms = measured or _sms_per_part(given.sms, count)
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
    note = f"{sms} of {given.sms}: " + ("as the driver split them" if measured else f"the largest multiple of {SMS_PER_STEP} that fits")
    return replace(
        whole,
        devices=tuple(replace(given, name=name, sms=sms, peak_flops=peaks) for name in names),
        hosts=tuple(replace(host, devices=tuple(names)) for host in whole.hosts),
        links=tuple(links),
        sources={**whole.sources, "sms": note, "peak_flops": "that of the whole GPU by the share of its SMs"},
    )


def _sms_per_part(sms: int, count: int) -> int:
    if count < 1:
        raise StepcastError(f"{count} partitions asked for; expected at least 1")
    found = sms // count // SMS_PER_STEP * SMS_PER_STEP
    if not found:
        most = sms // SMS_PER_STEP
        raise StepcastError(f"{count} partitions asked for; a GPU of {sms} SMs has room for {most} of {SMS_PER_STEP}; choose 1 to {most}")
    return found
