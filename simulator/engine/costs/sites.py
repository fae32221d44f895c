"""The sites of a machine: what the table of efficiencies knows of a device, or of a part of it."""

from dataclasses import replace

from simulator.engine.costs.efficiencies import Site
from simulator.machine.machine import Machine


class Sites:
    """The site of every device of a machine, made once."""

    def __init__(self, machine: Machine):
        self._machine = machine
        self._made: dict[tuple[str, int], Site] = {}

    def of(self, device: str, sms: int | None = None) -> Site:
        """The site of a task on a device, or on the same device with `sms` SMs."""
        whole = self._machine.device(device)
        name = (device, sms or whole.sms)
        if name not in self._made:
            factor = name[1] / whole.sms
            total = sum(d.sms for d in self._machine.devices if d.memory == whole.memory)
            scaled = replace(whole, sms=name[1], peak_flops={p: flops * factor for p, flops in whole.peak_flops.items()})
            self._made[name] = Site.of(scaled, self._machine.memory(device), min(1.0, name[1] / total))
        return self._made[name]
