"""Whose costs a prediction has, and warnings about them on standard error."""

import logging
from collections.abc import Iterable, Sequence
from pathlib import Path

from calibrate.identity import comparable_cpu
from calibrate.profiles import gpu_here, warn_if_foreign
from simulator.engine.costs.model import CostModel
from simulator.machine.machine import Machine
from simulator.machine.presets import THIS_CPU, THIS_GPU
from simulator.model.job import DEFAULT
from simulator.predict.target import Target
from traces.documents.profile import slug
from ui.present.machines import precision_words
from ui.request import JobRequest

#: The most notes of a profile that are logged with a prediction.
MOST_NOTES = 3
log = logging.getLogger("schedcast")


def caution(targets: Sequence[Target], request: JobRequest) -> None:
    """Warn of what makes the costs of a request's targets less reliable, and say what its precision means there, if that is the default."""
    precision = request.settled.precision or DEFAULT
    for target in targets:
        caution_costs(target.costs, request.profile)
    machines = [target.machine for target in targets if target.costs.shown_precision(precision) == DEFAULT]
    caution_precision(machines, DEFAULT)


def caution_costs(model: CostModel, profile: Path | None) -> None:
    """Warn if costs come from another machine, were not measured, or were measured under unusual conditions.

    In which conditions a preset's shipped profile was measured stands on the app's page of the machine, not in every prediction.
    """
    used = model.profile
    is_own = profile is not None or model.machine.name in (THIS_CPU, THIS_GPU)
    if used is not None and used.notes and is_own:
        rest = f"; and {len(used.notes) - MOST_NOTES} more notes" if len(used.notes) > MOST_NOTES else ""
        log.warning("profile of %s: %s%s", used.identity.name, "; ".join(used.notes[:MOST_NOTES]), rest)
    if profile is not None and used is not None and used.identity.kind == "gpu":
        own_gpu = gpu_here()
        if own_gpu is None or slug(own_gpu) != slug(used.identity.gpu):
            log.warning("profile %s is of %s, this machine has %s", profile, used.identity.gpu, own_gpu or "no GPU that PyTorch can use")
    elif profile is not None and used is not None:
        warn_if_foreign(used, profile)
    elif model.machine.name == THIS_CPU and used is None:
        log.warning("this machine is not calibrated: costs are from specifications; schedcast calibrate measures them")


def measured_here(model: CostModel) -> bool:
    """Whether the measured costs of a model are this machine's own. Those that are shipped for a preset are not."""
    used = model.profile
    if used is None or used.identity.kind != "gpu":
        return used is None or not used.matches(comparable_cpu())
    if model.machine.name not in (THIS_GPU, used.identity.name):
        return False
    own_gpu = gpu_here()
    return own_gpu is not None and slug(own_gpu) == slug(used.identity.gpu)


def caution_precision(machines: Iterable[Machine], precision: str) -> None:
    """Say what the default precision means on GPUs that have TF32."""
    words = precision_words(machines, precision)
    if words:
        log.warning("%s", words)
