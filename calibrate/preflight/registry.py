"""All probes: the quick ones that the modules of `probes` declare, and the long ones."""

from collections.abc import Iterable, Sequence

from calibrate.preflight import validations
from calibrate.preflight.probe import Probe
from simulator.plan.discovery import modules
from traces.errors import UnknownNameError

#: The package whose modules declare the quick probes.
QUICK = f"{__package__}.probes"


def probes(targets: Sequence[validations.Target] = validations.TARGETS) -> list[Probe]:
    """The probes in their order. The first one says which GPU it is. `targets` are validated."""
    declared = [probe for module in modules(QUICK) for probe in module.PROBES]
    return sorted([*declared, *validations.probes(targets)], key=lambda probe: probe.order)


def named(names: Iterable[str]) -> list[str]:
    """The names, if they are names of quick probes. Raises UnknownNameError."""
    known = [probe.name for probe in probes(()) if probe.file is None]
    for name in names:
        if name not in known:
            raise UnknownNameError("check", name, known)
    return list(names)
