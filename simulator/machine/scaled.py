"""A machine whose figures are multiplied: what if its memory were twice as fast?"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from types import MappingProxyType

from simulator.machine.machine import Device, HostLane, Link, Machine, Memory
from traces.errors import SchedcastError, UnknownNameError
from traces.units import read_number

#: Factors further from 1 than this are refused.
MOST = 1000.0
#: The times of a host and of a CPU's device that `Scale.launch` multiplies.
_HOST_TIMES = (
    "dispatch_s", "record_s", "wait_s", "switch_s", "graph_launch_s", "graph_node_s", "graph_branch_s", "callback_s", "call_s", "loop_s",
    "forward_step_s", "backward_step_s", "batch_s", "sample_s",
)  # fmt: skip
_DEVICE_TIMES = ("task_overhead_s", "shared_overhead_s", "wake_s")
#: What the names of `Scale` mean, for people.
ABOUT: Mapping[str, str] = MappingProxyType({
    "sms": "SMs of a GPU or cores of a CPU, at the same clock: FLOP/s grow with them",
    "flops": "FLOP/s of each SM or core, in every precision",
    "memory": "bandwidth of the memory",
    "launch": "time of the host per op: PyTorch's own loop, launches, events and waits; on a CPU, the executor's time per task",
    "link": "bandwidth of the links",
})  # fmt: skip


@dataclass(frozen=True)
class Scale:
    """The factor of each figure of a machine; 1 leaves it unchanged. `ABOUT` says what the fields mean."""

    sms: float = 1.0
    flops: float = 1.0
    memory: float = 1.0
    launch: float = 1.0
    link: float = 1.0

    def __post_init__(self):
        for field in fields(self):
            factor = getattr(self, field.name)
            if not 1 / MOST <= factor <= MOST:
                raise SchedcastError(f"--scale {field.name}={factor:g}; expected a factor from {1 / MOST:g} to {MOST:g}, such as 2")

    @property
    def text(self) -> str:
        """The factors other than 1 as `scale_of` reads them: memory=2,link=0.5."""
        factors = ((field.name, getattr(self, field.name)) for field in fields(self))
        return ",".join(f"{name}={factor:g}" for name, factor in factors if factor != 1)


AS_IT_IS = Scale()


def scale_of(text: str) -> Scale:
    """Read FIGURE=FACTOR,... Raises SchedcastError for anything else."""
    factors = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, value = (piece.strip() for piece in part.partition("="))
        if name not in ABOUT:
            raise UnknownNameError("figure for --scale", name[:40], list(ABOUT), "give it as in --scale memory=2,link=0.5")
        factor = read_number(value)
        if factor is None:
            raise SchedcastError(f"--scale {part[:60]!r}: {value[:40]!r} is not a number; give it as in --scale memory=2")
        factors[name] = factor
    return Scale(**factors)


def scaled(machine: Machine, scale: Scale) -> Machine:
    """The machine with its figures multiplied, and its variants (`whole`, `plain`, `rated`) likewise. Latencies of links stay.

    >>> from simulator.machine.presets import load_machine
    >>> h100 = load_machine("h100")
    >>> scaled(h100, scale_of("memory=2")).memory("cuda:0").bandwidth_bytes_per_s / h100.memory("cuda:0").bandwidth_bytes_per_s
    2.0
    """
    if scale == AS_IT_IS:
        return machine
    whole, plain, rated = (variant and scaled(variant, scale) for variant in (machine.whole, machine.plain, machine.rated))
    return replace(
        machine,
        devices=tuple(_device(device, scale) for device in machine.devices),
        memories=tuple(_memory(memory, scale) for memory in machine.memories),
        hosts=tuple(_host(host, scale) for host in machine.hosts),
        links=tuple(_link(link, scale) for link in machine.links),
        collectives={name: law.faster(scale.link) for name, law in machine.collectives.items()},
        peer_transfers={
            ends: transfer.model_copy(update={"bytes_per_s": transfer.bytes_per_s * scale.link, "points": []})
            for ends, transfer in machine.peer_transfers.items()
        },
        sources={**machine.sources, "scaled": f"figures multiplied by {scale.text}"},
        whole=whole,
        plain=plain,
        rated=rated,
    )


def _device(device: Device, scale: Scale) -> Device:
    """A device that works on one task with several threads has one SM; then its threads are scaled."""
    many = "threads" if device.threads else "sms"
    count = max(1, round(getattr(device, many) * scale.sms))
    factor = count / getattr(device, many) * scale.flops
    peaks = {precision: flops * factor for precision, flops in device.peak_flops.items()}
    return replace(
        device,
        peak_flops=peaks,
        power_w=device.power_w * factor,
        **{many: count},
        **{name: getattr(device, name) * scale.launch for name in _DEVICE_TIMES},
    )


def _memory(memory: Memory, scale: Scale) -> Memory:
    """One SM draws what it drew before, so more bandwidth takes more SMs to saturate, and with more SMs a smaller share of them."""
    share = min(1.0, memory.saturation_share * scale.memory / scale.sms)
    return replace(memory, bandwidth_bytes_per_s=memory.bandwidth_bytes_per_s * scale.memory, saturation_share=share)


def _host(host: HostLane, scale: Scale) -> HostLane:
    return replace(host, **{name: getattr(host, name) * scale.launch for name in _HOST_TIMES})


def _link(link: Link, scale: Scale) -> Link:
    rate = link.bandwidth_bytes_per_s
    return replace(link, bandwidth_bytes_per_s=rate * scale.link if math.isfinite(rate) else rate)
