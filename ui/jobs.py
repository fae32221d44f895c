"""What the command line and the app ask of the packages below: jobs from options, machines and costs from names, predictions."""

import logging
import sys
from collections.abc import Iterable
from contextlib import contextmanager
from pathlib import Path

from calibrate.gpu_profiles import gpu_here, own_gpu_profile
from calibrate.placement import Placement, check_names
from calibrate.profiles import foreign
from calibrate.sources import costs_for
from simulator.bodies.update import FORMS, STATE
from simulator.costs.model import CostModel
from simulator.job import PRECISIONS, Job
from simulator.machine.presets import THIS_CPU, machine_names
from simulator.machine.this_gpu import THIS_GPU
from simulator.predict.explain import explain
from simulator.predict.forecast import forecast_many, prediction
from simulator.strategies import registry as strategies
from simulator.workloads import registry as workloads
from traces.errors import StepcastError, UnknownNameError
from traces.profile import slug
from ui.app.model import Choices, Forecast, Refusal, Request

#: So many of a profile's notes are told with a prediction.
MOST_NOTES = 3
log = logging.getLogger("stepcast")


def caution(model: CostModel, profile: Path | None) -> None:
    """Warn where the costs are not of this machine, not measured, or measured under odd conditions."""
    known = model.profile
    if known is not None and known.notes:
        more = f"; and {len(known.notes) - MOST_NOTES} more notes" if len(known.notes) > MOST_NOTES else ""
        log.warning("profile of %s: %s%s", known.identity.name, "; ".join(known.notes[:MOST_NOTES]), more)
    if profile is not None and known.identity.kind == "gpu":
        here = gpu_here()
        if here is None or slug(here) != slug(known.identity.gpu):
            log.warning("profile %s is of %s, this machine has %s", profile, known.identity.gpu, here or "no GPU that PyTorch can use")
    elif profile is not None:
        foreign(known, profile)
    elif model.machine.name == THIS_CPU and model.profile is None:
        log.warning("this machine is not calibrated: costs are guessed; stepcast calibrate measures them")


@contextmanager
def progress(title: str, quiet: bool = False):
    """A progress bar with time left on standard error; yields `report(done, total, text)`."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = [
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[text]}"),
    ]
    console = Console(file=sys.stderr)
    with Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal, refresh_per_second=4) as bar:
        task = bar.add_task(title, total=None, text="")
        yield lambda done, total, text: bar.update(task, completed=done, total=total, text=text[:40])


def choices() -> Choices:
    """What the app offers, the likeliest first."""
    return Choices(
        models=_first("resnet18", workloads.names()),
        optimizers=_first("momentum", STATE),
        forms=_first("foreach", FORMS),
        precisions=PRECISIONS,
        strategies=tuple(strategies.names()),
        machines=_first(THIS_CPU, [*machine_names(), *([THIS_GPU] if own_gpu_profile() else [])]),
    )


def _first(name: str, names: Iterable[str]) -> tuple[str, ...]:
    return (name, *(other for other in names if other != name))


def predict_many(request: Request) -> list[Forecast | Refusal]:
    """Predict every strategy of the request. Raises StepcastError where the job itself cannot be served."""
    if request.model not in workloads.names():  # names only: the app runs no code of its visitors
        raise UnknownNameError("model", request.model, workloads.names())
    job = Job(request.model, request.batch, request.image_size, request.optimizer, request.form, precision=request.precision)
    shared = dict(request.settings)
    strategies.check_shared(request.strategies, shared)
    where = Placement(devices=request.devices, link=request.link)
    check_names(where)
    machine, model = costs_for(job, None, request.machine, where)
    found = dict(forecast_many(job, request.strategies, shared, machine, model))
    base = found["baseline"]
    if isinstance(base, StepcastError):
        raise base
    return [_answer(name, found[name], base, job.precision) for name in request.strategies]


def _answer(name: str, found, base, precision: str) -> Forecast | Refusal:
    if isinstance(found, StepcastError):
        return Refusal(name, str(found))
    why = tuple(explain(base.timeline, found.timeline)) if found is not base else ()
    return Forecast(prediction(found, base, precision), found.timeline, why)
