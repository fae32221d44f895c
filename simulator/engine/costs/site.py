"""What the table of efficiencies knows of the hardware of a task: a device, or a part of it, and its memory; and a number of the table."""

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple, TypeVar

from simulator.machine.machine import Device, Machine, Memory, SmLimits

_T = TypeVar("_T")

#: Lanes of an SM in single precision, for the clock of a GPU whose data sheet's is not known.
_LANES = 128


class Number(NamedTuple):
    """A number, one standard deviation of its logarithm, and the name of its source."""

    value: float
    error: float
    source: str


class Site(NamedTuple):
    """The hardware available to one task: the SMs of a GPU or one core of a CPU, the bandwidth they can draw, and a last-level cache.

    `clock_hz` and `power_w` (0: unknown): as in `Device`; `cycles_per_s` is the clock, or what follows from the peak.
    """

    kind: str
    sms: int
    peak_flops: dict[str, float]
    bandwidth_bytes_per_s: float
    cache_bytes: int
    sm: SmLimits | None = None
    clock_hz: float = 0.0
    power_w: float = 0.0

    @property
    def cycles_per_s(self) -> float:
        """The clock of the SMs."""
        return self.clock_hz or self.peak_flops["fp32"] / (2 * _LANES * self.sms)

    @staticmethod
    def of_device(device: Device, memory: Memory, share: float) -> "Site":
        """The site of a task on `device`. `share`: the device's fraction of all SMs (cores) that share its memory."""
        part = 1.0 if device.kind == "gpu" else 1.0 / device.sms
        drawn = memory.bandwidth_bytes_per_s * memory.reached * min(1.0, share * part / memory.saturation_share)
        peaks = {name: flops * part * device.reached for name, flops in device.peak_flops.items()}
        return Site(
            device.kind,
            device.sms,
            peak_flops=peaks,
            bandwidth_bytes_per_s=drawn,
            cache_bytes=memory.cache_bytes,
            sm=device.sm,
            clock_hz=device.clock_hz,
            power_w=device.power_w,
        )


def figure(figures: Mapping[str, _T], precision: str) -> _T:
    """The figure of a precision; tensor cores are as fast in fp16 as in bf16, and without them fp32 counts."""
    if precision == "fp16" and "fp16" not in figures:
        precision = "bf16"
    return figures.get(precision, figures["fp32"])


class Sites:
    """The site of every device of a machine, made once."""

    def __init__(self, machine: Machine):
        self._machine = machine
        self._made: dict[tuple[str, int], Site] = {}

    def site(self, device: str, sms: int | None = None) -> Site:
        """The site of a task on a device, or on the same device with `sms` SMs."""
        whole = self._machine.device(device)
        name = (device, sms or whole.sms)
        if name not in self._made:
            factor = name[1] / whole.sms
            total = sum(d.sms for d in self._machine.devices if d.memory == whole.memory)
            peaks = {p: flops * factor for p, flops in whole.peak_flops.items()}
            scaled = replace(whole, sms=name[1], peak_flops=peaks, power_w=whole.power_w * factor)
            self._made[name] = Site.of_device(scaled, self._machine.memory(device), min(1.0, name[1] / total))
        return self._made[name]
