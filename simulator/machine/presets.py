"""Machines by name: the presets of `machines.json`, several GPUs of one (`8xh100`), and this machine's CPU.

Every number of `machines.json` is `[value, source]`, where the source is a name under "sources". `product`: the driver's name of a GPU.
"errors" has the error of the numbers of a source, one standard deviation of their logarithm, and where it comes from ("error_sources").
Data sheets have none: what a GPU reaches of its peaks is in the errors of `efficiencies.json`.

Links are built kind by kind. `group`: size of the groups of successive GPUs that a kind connects (0: all GPUs are one group).
- `host` connects every GPU to the host.
- `pairs` connects every two GPUs of a group.
- `switch` connects every GPU to its group's switch (NVSwitch).
- `bridge` connects every GPU to its group's bridge (a PCI Express switch, or the root of a node).
- `riser` connects every bridge to the switch above it, which serves the bridges of its group.
- `uplink` connects every bridge, or every riser if there are any, to the host; all GPUs below share it.
- `network` connects every bridge to the network between nodes, as the NIC that the bridge's GPUs share.
Links with the same `channel` share its bandwidth.

`NxGPU` names N GPUs of the preset with a single `GPU`, in nodes of the GPU's usual form ("nodes"). A network joins several nodes.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from itertools import combinations, permutations
from types import MappingProxyType
from typing import Any

from simulator.machine.machine import FREE, HOST, NETWORK, Device, HostLane, Link, Machine, Memory, SmLimits, split
from simulator.machine.measured_gpu import with_measured
from simulator.machine.preset_data import HostEntry, LinkEntry, MachineEntry, NodeEntry, data
from simulator.machine.protocols import Protocol
from simulator.machine.this_cpu import ALIAS_LINK, receives_of, this_cpu
from traces.documents.profile import Profile, Transfer, slug
from traces.errors import Code, SchedcastError, UnknownNameError

THIS_CPU = "this-cpu"
#: What issues a GPU's tasks: eager PyTorch on the host of the machine, or Caffe's C++.
HOSTS = PYTORCH, CAFFE = "pytorch", "caffe"
_SEVERAL = re.compile(r"(0|[1-9][0-9]{0,5})x(.+)")
#: The most GPUs of a machine.
MOST_GPUS = 4096
_CHIP = re.compile(r"[a-z]+[0-9]+")


def machine_names() -> list[str]:
    """The names of the presets and of this CPU. `load_machine` also accepts several GPUs of a preset, such as `8xh100`."""
    return [*data().machines, THIS_CPU]


@lru_cache(maxsize=64)
def _entry(name: str) -> MachineEntry | None:
    """The entry of a preset, or of `NxGPU`; None if there is neither. Raises SchedcastError for a number of GPUs that fills no nodes."""
    numbered = _SEVERAL.fullmatch(name)
    if name in data().machines or numbered is None:
        return data().machines.get(name)
    count, single = int(numbered[1]), data().machines.get(numbered[2])
    if single is None or single.count != 1:
        return None
    node = data().node_of(single.gpu)
    if count > node.size and count % node.size:
        near = count // node.size * node.size
        raise SchedcastError(
            f"machine {name}: nodes of {numbered[2]} have {node.size} GPUs; choose at most {node.size} or a multiple, such as {near}",
            Code.DEVICES,
        )
    if not 1 <= count <= MOST_GPUS:
        raise SchedcastError(f"machine {name}: {count} GPUs requested; choose 1 to {MOST_GPUS}", Code.DEVICES)
    links = [link for link in node.links if link.kind != "network" or count > node.size]
    return single if count == 1 else single.model_copy(update={"count": count, "links": links})


def device_count(name: str) -> int:
    """How many devices the machine called `name` has; 1 if no preset has this name. Raises SchedcastError for too many."""
    entry = _entry(name)
    return 1 if entry is None else entry.count


THIS_GPU = "this-gpu"
#: This machine's devices, as PyTorch calls them.
_OWN = {"cuda": THIS_GPU, "cuda:0": THIS_GPU, "gpu": THIS_GPU, "cpu": THIS_CPU}
#: What is said of cards in addition to the names of presets, which are the usual ones of their kind.
_USUAL_FORMS = {"h10080gb": "h100", "a10080gb": "a100", "v10016gb": "v100", "h200141gb": "h200"}


def listed_name(name: str) -> str:
    """The name of a machine as presets are listed, for what users write of it; any other text as it is.

    >>> listed_name("8xH100-SXM"), listed_name("NVIDIA GeForce RTX 4090"), listed_name("4090"), listed_name("cuda"), listed_name("h101")
    ('8xh100', 'rtx4090', 'rtx4090', 'this-gpu', 'h101')
    """
    text = name.strip().lower()
    if text in data().machines or text in (THIS_CPU, THIS_GPU):
        return text
    several = _SEVERAL.fullmatch(text)
    count, card = (f"{several[1]}x", several[2]) if several else ("", text)
    letters = re.sub(r"sxm\d?", "", _letters(card).removeprefix("nvidia").removeprefix("geforce").removeprefix("tesla"))
    known = _USUAL_FORMS | {_letters(each): each for each, entry in data().machines.items() if entry.count == 1}
    preset = next((known[each] for each in (letters, f"rtx{letters}", f"gtx{letters}") if each in known), "")
    return f"{count}{preset}" if preset else _OWN.get(text, name)


def _letters(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text)


def single_gpu(name: str) -> str:
    """The preset of one GPU of the machine called `name`, of one kind of node: h100 of `8xh100`; "" if there is none."""
    several = _SEVERAL.fullmatch(name)
    card = several[2] if several else name
    entry = data().machines.get(card)
    return card if entry is not None and entry.count == 1 else ""


def precisions_of(name: str) -> frozenset[str]:
    """The precisions in which the GPUs of the preset called `name` multiply at a rate of their own; none of any other machine."""
    entry = _entry(name)
    return frozenset() if entry is None else frozenset(data().gpus[entry.gpu].peak_flops)


def load_machine(
    name: str,
    profile: Profile | None = None,
    devices: int | None = None,
    link: str = ALIAS_LINK,
    partitions: int = 1,
    host: str = PYTORCH,
) -> Machine:
    """The machine called `name`; a profile (of this CPU, or of the preset's GPU) adds its measured figures.

    `devices`: the number of devices to use, from the first on (None: all of them; on this CPU, or with several `partitions`, one).
    `partitions`: the number of devices that the one GPU is split into. `link`: connection of this CPU's core groups
    (`this_cpu.link_bytes_per_s`), and how any machine's devices receive messages (`this_cpu.receives_of`). `host`: what issues a GPU's
    tasks, PYTORCH or CAFFE. Raises UnknownNameError for an unknown
    name or host, and SchedcastError for more devices than the machine has, or a profile with PyTorch's launches for another host.

    >>> machine = load_machine("16xh100")
    >>> machine.device("cuda:0").sms, machine.by_node(["cuda:0", "cuda:7", "cuda:8"])
    (132, {0: ['cuda:0', 'cuda:7'], 1: ['cuda:8']})
    """
    if host not in HOSTS:
        raise UnknownNameError("host", host, HOSTS)
    if name == THIS_CPU:
        if partitions > 1:
            raise SchedcastError(f"--partition {partitions} splits a GPU; --devices {partitions} makes as many groups of this CPU's cores")
        return this_cpu(profile, devices=devices or 1, link=link)
    entry = _entry(name)
    if entry is None:
        raise UnknownNameError("machine", name, machine_names(), "`schedcast machines` lists them, and 8xh100 names eight of one")
    if devices is not None and devices > entry.count:
        raise SchedcastError(_too_many(name, entry, devices), Code.DEVICES)
    if partitions > 1 and devices is None and entry.count > 1:
        raise SchedcastError(f"--partition {partitions} splits one GPU, and machine {name} has {entry.count}; add --devices 1 to use one")
    if host != PYTORCH:
        entry = entry.model_copy(update={"host": host})
    machine = replace(preset(name, entry, devices or entry.count), receives=receives_of(link))
    if partitions > 1 and machine.receives != FREE:
        raise SchedcastError(f"link is {link!r}: the partitions of one GPU share its memory and send nothing; drop it")
    if profile is not None and profile.dispatch.dispatch_s is not None and host != PYTORCH:
        raise SchedcastError(f"--host {host}: the launches of {name} were measured with PyTorch; drop it")
    if profile is not None:
        machine = with_measured(machine, profile)
    return machine if partitions == 1 else split(machine, partitions, profile)


def _too_many(name: str, entry: MachineEntry, devices: int) -> str:
    """Why a machine cannot give `devices` GPUs, and what can."""
    larger = [other for other, item in data().machines.items() if item.gpu == entry.gpu and item.count >= devices]
    larger += [f"{devices}x{name}"] if entry.count == 1 else []
    own = f"split its GPU with --partition {devices}" if entry.count == 1 else f"choose 1 to {entry.count}"
    others = f"choose a machine with that many such GPUs ({', '.join(larger)})" if larger else "choose another machine"
    return f"--devices {devices}: machine {name} has {entry.count} GPU{'s' if entry.count > 1 else ''}; {own}, or {others}"


def rated(machine: Machine) -> Machine:
    """A preset as its data sheet rates it, even if its costs come from a profile; any other machine unchanged.

    These are the figures to show for a named machine: which costs and figures were measured differs from job to job.
    """
    entry = _entry(machine.name)
    if entry is None:
        return machine
    own = preset(machine.name, entry, len(machine.devices))
    return replace(own, sources={**own.sources, **{name: about for name, about in machine.sources.items() if name == "costs"}})


def product_of(name: str) -> str:
    """The driver's name of the GPUs of the preset called `name`; "" for any other machine."""
    entry = _entry(name)
    return data().gpus[entry.gpu].product if entry is not None else ""


def card_of(name: str) -> str:
    """The card of a preset, whatever its form and memory: a100 of `a100-40gb-pcie` and `2xdgx-a100`; "" if there is no such preset."""
    entry = _entry(name)
    if entry is None:
        return ""
    data_center = re.match(r"[akptvlhb]\d+(?=-|$)", entry.gpu)
    return data_center[0] if data_center else entry.gpu


def one_gpu(product: str, sms: int = 0) -> Machine | None:
    """The preset with a single GPU called `product`, or None. The vendor's name is ignored, since older drivers omit it.

    With `sms`, a preset of the same chip with as many SMs serves as well: a Tesla V100-DGXS-32GB has the peaks of a Tesla V100-SXM2-16GB.
    """
    single = {name: entry for name, entry in data().machines.items() if entry.count == 1}
    same = [name for name in single if _unbranded(product_of(name)) == _unbranded(product)]
    alike = [name for name, entry in single.items() if _chips(product_of(name)) & _chips(product) and data().gpus[entry.gpu].sms[0] == sms]
    return preset(name, single[name]) if (name := next(iter(same + alike), None)) else None


def _chips(product: str) -> set[str]:
    """The words of a product's name that name its chip: v100 of Tesla V100-SXM2-16GB."""
    return {word for word in slug(product).split("-") if _CHIP.match(word) and not word.startswith("sxm")}


def _unbranded(product: str) -> str:
    return slug(product).removeprefix("nvidia-")


def host_figures() -> tuple[dict[str, Any], dict[str, str]]:
    """Fields of HostLane as in the newest preset, and the source of each."""
    entry = data().hosts[max(filter(str.isdecimal, data().hosts))]
    return _host_figures(entry), {field: data().sources[source] for field, (_, source) in entry}


def _host_figures(entry: HostEntry) -> dict[str, Any]:
    """Fields of HostLane."""
    errors = {field: _error(source) for field, (_, source) in entry if _error(source)}
    return {**{field: value for field, (value, _) in entry}, "errors": errors}


def _error(source: str) -> float:
    """The error of the numbers of a source; 0 for a data sheet."""
    return data().errors.get(source, (0.0, ""))[0]


def preset(name: str, entry: MachineEntry, count: int | None = None) -> Machine:
    """The machine that an entry describes. `count`: number of GPUs (default: the entry's)."""
    gpu = data().gpus[entry.gpu]
    names = [f"cuda:{index}" for index in range(entry.count if count is None else count)]
    host = _host_figures(data().hosts[entry.host])
    peaks = {precision: flops for precision, (flops, _) in gpu.peak_flops.items()}
    return Machine(
        name,
        tuple(
            Device(
                n,
                "gpu",
                gpu.sms[0],
                peaks,
                f"memory of {n}",
                priority_levels=gpu.priority_levels[0],
                reached=gpu.peak_reached[0],
                sm=SmLimits(**{field: count for field, (count, _) in gpu.sm.items()}) if gpu.sm else None,
                clock_hz=gpu.clock_hz[0],
                power_w=gpu.power_w[0],
            )
            for n in names
        ),
        tuple(
            Memory(
                f"memory of {n}",
                gpu.memory_bytes[0],
                gpu.bandwidth_bytes_per_s[0],
                gpu.cache_bytes[0],
                gpu.saturation_share[0],
                gpu.bandwidth_reached[0],
            )
            for n in names
        ),
        tuple(HostLane(f"host of {n}", (n,), **host) for n in names),
        tuple(link for kind in entry.links for link in _links(kind, names, {kind.kind: kind.group for kind in entry.links})),
        _sources(entry),
        library="nccl" if len(names) > 1 else "",
        pipe_bytes_per_s=entry.pipe_bytes_per_s[0],
        protocols=_protocols(data().node_of(entry.gpu)) if len(names) > 1 else (),
    )


def _protocols(node: NodeEntry) -> tuple[Protocol, ...]:
    """How a library runs collectives among GPUs whose usual node this is."""
    latency, source = node.latency
    entries = [data().protocols[name] for name in node.protocols]
    return tuple(
        Protocol(
            **{
                field: value if field == "form" else value[0] * (latency if field in ("start_s", "hop_s") else 1.0)
                for field, value in entry
            },
            blocks=node.channels[entry.form][0],
            latency_error=_error(source),
            bandwidth_error=_error(entry.share[1]),
        )
        for entry in entries
    )


def _links(entry: LinkEntry, names: list[str], sizes: Mapping[str, int]) -> list[Link]:
    """All links of one kind, in both directions. `sizes`: of the groups of each kind of the machine."""
    (latency_s, latency_source), (bandwidth, bandwidth_source) = entry.latency_s, entry.bandwidth_bytes_per_s
    latency_error, bandwidth_error = _error(latency_source), _error(bandwidth_source)
    return [
        Link(
            source=a,
            target=b,
            latency_s=latency_s,
            bandwidth_bytes_per_s=bandwidth,
            duplex=entry.duplex,
            channel=entry.channel,
            latency_error=latency_error,
            bandwidth_error=bandwidth_error,
        )
        for one, other in _ends(entry, names, sizes)
        for a, b in ((one, other), (other, one))
    ]


def _ends(entry: LinkEntry, names: list[str], sizes: Mapping[str, int]) -> list[tuple[str, str]]:
    size = entry.group or len(names)
    groups = [names[first : first + size] for first in range(0, len(names), size)]
    match entry.kind:
        case "host":
            return [(name, HOST) for name in names]
        case "pairs":
            return [pair for group in groups for pair in combinations(group, 2)]
        case "switch" | "bridge":
            return [(name, f"{entry.kind} {number}") for number, group in enumerate(groups) for name in group]
        case "riser":
            firsts = range(0, len(names), sizes["bridge"])
            return [(f"bridge {number}", f"riser {first // size}") for number, first in enumerate(firsts)]
        case "uplink" if "riser" in sizes:
            return [(f"riser {number}", HOST) for number in range(len(groups))]
    return [(f"bridge {number}", HOST if entry.kind == "uplink" else NETWORK) for number in range(len(groups))]


def figures(name: str) -> dict[str, tuple[float, str]]:
    """Each figure of the preset called `name`, by field, with its source; none if no preset has this name."""
    entry = _entry(name)
    return {} if entry is None else _figures(entry)


def _sources(entry: MachineEntry) -> dict[str, str]:
    """The source of each figure of a machine, by field."""
    return {name: source for name, (_, source) in _figures(entry).items()}


def _figures(entry: MachineEntry) -> dict[str, tuple[float, str]]:
    """Each figure of a machine and its source, by field."""
    figures: dict[str, tuple[float, str]] = {}
    entries: list[tuple[str, Any]] = [("", data().gpus[entry.gpu]), ("", data().hosts[entry.host]), ("", entry)]
    entries += [(f"{link.kind} link ", link) for link in entry.links]
    if entry.count > 1:
        node = data().node_of(entry.gpu)
        entries += [("collectives ", node), *((f"collectives {name} ", data().protocols[name]) for name in node.protocols)]
    for prefix, fields in entries:
        for field, value in fields:
            numbers = {f"{field} {key}": item for key, item in value.items()} if isinstance(value, dict) else {field: value}
            for name, item in numbers.items():
                if isinstance(item, tuple) and item[1]:
                    figures[f"{prefix}{name}"] = item[0], data().sources[item[1]]
    return figures


# A calibrated GPU as a machine, whole or split into partitions that work as separate devices.


DEVICE = "cuda:0"


def gpu_machine(profile: "Profile", partitions: int = 1, name: str = THIS_GPU) -> Machine:
    """The profile's GPU as the device `cuda:0`, or split into `cuda:0/0`, `cuda:0/1`, ..., which share its memory and one host lane.

    Figures that the profile lacks are taken from the preset of the same product. Raises SchedcastError with the missing figures if there is
    no such preset, and if the GPU has too few SMs for the partitions.
    """
    whole = replace(with_measured(one_gpu(profile.identity.gpu, profile.identity.sms) or _without_preset(profile), profile), name=name)
    return whole if partitions == 1 else split(whole, partitions, profile)


def replicated(one: Machine, count: int) -> Machine:
    """A machine with `count` copies of the only GPU of `one`, each with its own memory, host lane and links to the host.

    Its collectives are NCCL's. Until those are measured, their times are predicted as if they passed through the host.
    """
    device, memory = one.devices[0], one.memories[0]
    names = [f"cuda:{rank}" for rank in range(count)]
    return replace(
        one,
        devices=tuple(replace(device, name=name, memory=f"memory of {name}") for name in names),
        memories=tuple(replace(memory, name=f"memory of {name}") for name in names),
        hosts=tuple(replace(host, name=f"host of {name}", devices=(name,)) for host in one.hosts for name in names),
        links=tuple(
            replace(link, source=source, target=target, channel=link.channel and f"{link.channel} of {name}")
            for link in one.links
            for name in names
            for source, target in [tuple(name if end == device.name else end for end in (link.source, link.target))]
        ),
        library="nccl",
        rated=one.rated and replicated(one.rated, count),
    )


def together(one: Machine, count: int, transfers: Mapping[str, Transfer] = MappingProxyType({})) -> Machine:
    """A machine with `count` copies of the only GPU of `one` in one process, whose thread issues the tasks of all of them.

    `transfers`: by "SOURCE>TARGET", measured copies from one GPU to another. Copies between others pass through the host's memory.
    """
    several = replicated(one, count)
    names = [device.name for device in several.devices]
    links = [
        Link(source, target, line.latency_s, line.bytes_per_s)
        for source, target in permutations(names, 2)
        if (line := transfers.get(f"{source}>{target}")) is not None
    ]
    return replace(
        several,
        hosts=tuple(replace(host, devices=tuple(names)) for host in one.hosts),
        links=(*several.links, *links),
        library="",
        plain=one.plain or one,
        rated=one.rated and together(one.rated, count, transfers),
    )


def _without_preset(profile: "Profile") -> Machine:
    """A GPU without a preset: the profile must have its figures; those of the host are general assumptions."""
    identity = profile.identity
    memory_bytes, bandwidth_bytes_per_s, cache_bytes = profile.memory_bytes, profile.bandwidth_bytes_per_s, profile.cache_bytes
    needed = {
        "the number of SMs": identity.sms,
        "the peak FLOP/s in fp32": profile.peak_flops.get("fp32"),
        "the size of its memory": memory_bytes,
        "the memory's bandwidth": bandwidth_bytes_per_s,
        "the size of its cache": cache_bytes,
        "the number of priority levels": profile.priority_levels,
    }
    missing = [what for what, figure in needed.items() if not figure]
    if missing or not (memory_bytes and bandwidth_bytes_per_s and cache_bytes):
        raise SchedcastError(
            f"the profile of {identity.gpu or identity.name} lacks {', '.join(missing)}, and this GPU has no preset; calibrate it again"
        )
    figures, sources = host_figures()
    memory = f"memory of {DEVICE}"
    return Machine(
        identity.gpu,
        (Device(DEVICE, "gpu", identity.sms, {}, memory),),
        (Memory(memory, memory_bytes, bandwidth_bytes_per_s, cache_bytes),),
        (HostLane(f"host of {DEVICE}", (DEVICE,), **figures),),
        sources={**sources, "saturation_share": "assumed: 30 % of the SMs saturate the memory"},
    )
