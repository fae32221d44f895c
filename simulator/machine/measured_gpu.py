"""Puts measured figures of a profile in place of a data sheet's."""

from collections.abc import Mapping
from dataclasses import fields, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from simulator.machine.machine import HOST, HostLane, Link, Machine
from traces.documents.collectives import SCALED

if TYPE_CHECKING:
    from traces.documents.profile import Profile, Transfer

#: Fields of Memory that have another name in presets.
_IN_PRESETS = MappingProxyType({"size_bytes": "memory_bytes", "reached": "bandwidth_reached"})


def with_measured(machine: Machine, profile: "Profile") -> Machine:
    """`machine` with every figure that the profile has; `sources` lists them. All its GPUs must be of the profile's product.

    The figures include those of the host lanes, since the profile's costs say how long issuing a task takes, and of the links that join a
    GPU to the host (pinned memory). Links between GPUs, and those to the host that GPUs share, stay as they are; times of transfers
    between two GPUs and of collectives that run alone are added.
    """
    device = _measured(sms=profile.identity.sms, priority_levels=profile.priority_levels, workspace_bytes=profile.workspace_bytes)
    memory = _measured(
        size_bytes=profile.memory_bytes,
        bandwidth_bytes_per_s=profile.bandwidth_bytes_per_s,
        cache_bytes=profile.cache_bytes,
        saturation_share=profile.contention_in("").saturation_share,
        reached=float(bool(profile.bandwidth_bytes_per_s)),
    )
    peaks = _measured(**profile.peak_flops)
    is_rated = all(device.peak_flops for device in machine.devices)  # not so on a GPU without a data sheet
    host = _host_figures(profile)
    host_links = _host_links(machine, profile)
    links = {(link.source, link.target): link for link in machine.links} | host_links
    peers = _peer_transfers(machine, profile)
    named = [*device, *(_IN_PRESETS.get(name, name) for name in memory), *(f"peak_flops {name}" for name in peaks), *host]
    named += ["host link latency_s", "host link bandwidth_bytes_per_s"] if host_links else []
    named += ["peer copies"] if peers else []
    note = f"measured: profile of {profile.identity.gpu} of {profile.updated}"
    sources = dict.fromkeys(named, note) | ({"costs": f"{len(profile.costs)} keys {note}"} if profile.costs else {})
    if profile.collectives:
        sources["collectives"] = f"{', '.join(profile.collectives)} {note}; {SCALED}"
    measured = replace(
        machine,
        collectives=profile.collectives,
        peer_transfers=peers,
        devices=tuple(
            replace(d, **device, peak_flops={**d.peak_flops, **peaks}, reached=1.0 if peaks else d.reached) for d in machine.devices
        ),
        memories=tuple(replace(m, **memory) for m in machine.memories),
        hosts=tuple(replace(lane, **host, errors=_without(lane.errors, host)) for lane in machine.hosts),
        links=tuple(links.values()) if host_links else machine.links,
        sources={**machine.sources, **sources},
        rated=machine if (memory or peaks) and is_rated else None,
    )
    if profile.loop is None:
        return measured
    no_executor = tuple(replace(lane, dispatch_s=0.0, switch_s=0.0) for lane in measured.hosts)
    return replace(measured, plain=replace(measured, hosts=no_executor))


def _without(errors: Mapping[str, float], measured: Mapping[str, float]) -> dict[str, float]:
    """The errors of figures that were not measured."""
    return {name: error for name, error in errors.items() if name not in measured}


def _peer_transfers(machine: Machine, profile: "Profile") -> "dict[str, Transfer]":
    """The profile's transfers between two of the machine's devices."""
    names = {device.name for device in machine.devices}
    return {name: transfer for name, transfer in profile.transfers.items() if names.issuperset(name.split(">"))}


def _measured(**figures) -> dict:
    """The figures that were measured; a figure of 0 was not."""
    return {name: figure for name, figure in figures.items() if figure}


def _host_figures(profile: "Profile") -> dict:
    """The profile's figures of the issuing thread. Its costs include the gap between nodes, so that gap is 0 here."""
    names = {field.name for field in fields(HostLane)}
    figures = {name: seconds for name, seconds in profile.dispatch.model_dump().items() if name in names and seconds is not None}
    return {"node_gap_s": 0.0, **figures} if profile.costs else figures


def _host_links(machine: Machine, profile: "Profile") -> dict[tuple[str, str], Link]:
    """By (source, target), the measured links of GPUs to the host.

    A single GPU has one in each direction. Of several, those have it that the machine joins to the host directly: a profile of one GPU
    says nothing of a link that others share.
    """
    names = [device.name for device in machine.devices]
    direct = {(link.source, link.target) for link in machine.links}
    measured = {}
    for name in names:
        for ends, route in (((HOST, name), f"{HOST}>{names[0]}"), ((name, HOST), f"{names[0]}>{HOST}")):
            if route in profile.transfers and (len(names) == 1 or ends in direct):
                measured[ends] = Link(*ends, profile.transfers[route].latency_s, profile.transfers[route].bytes_per_s)
    return measured
