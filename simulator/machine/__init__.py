"""Machines. In: a preset name, this machine, or a profile. Out: devices, memories, host lanes and links."""
