"""A machine with a profile's figures in place of a data sheet's."""

from dataclasses import fields, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from simulator.machine.machine import HOST, HostLane, Link, Machine
from traces.collectives import SCALED

if TYPE_CHECKING:
    from traces.profile import Profile, Transfer

#: Fields of Memory that presets call otherwise.
_IN_PRESETS = MappingProxyType({"size_bytes": "memory_bytes"})


def with_measured(machine: Machine, profile: "Profile") -> Machine:
    """`machine`, whose GPUs are all of the profile's product, with every figure that the profile has; `sources` says which.

    Host lanes are the profile's too, since its costs say what issuing a task takes. Links are, between a single GPU and the host (of pinned
    memory); with several GPUs they stay as they are, but for what transfers between two of them, and collectives, take alone.
    """
    device = _given(sms=profile.identity.sms, priority_levels=profile.priority_levels)
    memory = _given(
        size_bytes=profile.memory_bytes,
        bandwidth_bytes_per_s=profile.bandwidth_bytes_per_s,
        cache_bytes=profile.cache_bytes,
        saturation_share=profile.contention.saturation_share,
    )
    peaks = _given(**profile.peak_flops)
    host = _host_figures(profile)
    lines = {way: profile.transfers[">".join(way)] for way in _ways(machine) if ">".join(way) in profile.transfers}
    links = {(link.source, link.target): link for link in machine.links}
    peers = _peers(machine, profile)
    links |= {way: Link(*way, line.latency_s, line.bytes_per_s) for way, line in lines.items()}
    named = [*device, *(_IN_PRESETS.get(name, name) for name in memory), *(f"peak_flops {name}" for name in peaks), *host]
    named += ["host link latency_s", "host link bandwidth_bytes_per_s"] if lines else []
    named += ["peer copies"] if peers else []
    said = f"measured: profile of {profile.identity.gpu} of {profile.updated}"
    sources = dict.fromkeys(named, said) | ({"costs": f"{len(profile.costs)} keys {said}"} if profile.costs else {})
    if profile.collectives:
        sources["collectives"] = f"{', '.join(profile.collectives)} {said}; {SCALED}"
    return replace(
        machine,
        collectives=profile.collectives,
        lines=peers,
        devices=tuple(replace(d, **device, peak_flops={**d.peak_flops, **peaks}) for d in machine.devices),
        memories=tuple(replace(m, **memory) for m in machine.memories),
        hosts=tuple(replace(h, **host) for h in machine.hosts),
        links=tuple(links.values()) if lines else machine.links,
        sources={**machine.sources, **sources},
    )


def _peers(machine: Machine, profile: "Profile") -> "dict[str, Transfer]":
    """The profile's lines between two of the machine's devices."""
    names = {device.name for device in machine.devices}
    return {name: line for name, line in profile.transfers.items() if names.issuperset(name.split(">"))}


def _given(**figures) -> dict:
    """Those that were measured. A figure of 0 says nothing."""
    return {name: figure for name, figure in figures.items() if figure}


def _host_figures(profile: "Profile") -> dict[str, float]:
    """What the profile knows of the issuing thread. Its keys' times hold the gap between nodes, so no other may come on top."""
    names = {field.name for field in fields(HostLane)}
    found = {name: seconds for name, seconds in profile.dispatch.model_dump().items() if name in names and seconds is not None}
    return {"node_gap_s": 0.0, **found} if profile.costs else found


def _ways(machine: Machine) -> list[tuple[str, str]]:
    """To and from the host, on a machine of one GPU; with several the profile cannot say what they share."""
    names = [device.name for device in machine.devices]
    return [(HOST, names[0]), (names[0], HOST)] if len(names) == 1 else []
