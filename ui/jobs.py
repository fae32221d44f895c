"""What the command line and the app have in common: warnings about costs, progress bars, and predictions."""

import logging
import os
import sys
from collections.abc import Iterable, Mapping
from contextlib import contextmanager
from pathlib import Path

from calibrate.gpu_profiles import gpu_here, own_gpu_profile
from calibrate.identity import comparable_cpu
from calibrate.placement import Placement, check_names
from calibrate.profiles import warn_if_foreign
from calibrate.sources import costs_for
from simulator.bodies.update import FORMS, STATE
from simulator.costs.model import CostModel
from simulator.job import PRECISIONS, Job
from simulator.machine.machine import Machine
from simulator.machine.presets import THIS_CPU, machine_names
from simulator.machine.this_gpu import THIS_GPU
from simulator.predict.forecast import forecast_many, prediction
from simulator.predict.largest_batch import with_batch_words, with_largest_batch
from simulator.strategies import registry as strategies
from simulator.workloads import registry as workloads
from traces.comparison import PYTORCH
from traces.errors import StepcastError, UnknownNameError
from traces.profile import slug
from ui.app.command_run import LINES, PROGRESS
from ui.app.model import Choices, Forecast, Refusal, Request
from ui.text.machines import precision_words

#: Largest image size (of a recurrent model: sequence length) and batch that the app predicts. The command line takes any.
LARGEST_SIZE, LARGEST_BATCH = 32_768, 1_000_000
#: Notes of a profile that are logged with a prediction at most.
MOST_NOTES = 3
log = logging.getLogger("stepcast")


def caution(model: CostModel, profile: Path | None) -> None:
    """Warn if costs come from another machine, were not measured, or were measured under unusual conditions."""
    used = model.profile
    if used is not None and used.notes:
        rest = f"; and {len(used.notes) - MOST_NOTES} more notes" if len(used.notes) > MOST_NOTES else ""
        log.warning("profile of %s: %s%s", used.identity.name, "; ".join(used.notes[:MOST_NOTES]), rest)
    if profile is not None and used.identity.kind == "gpu":
        own_gpu = gpu_here()
        if own_gpu is None or slug(own_gpu) != slug(used.identity.gpu):
            log.warning("profile %s is of %s, this machine has %s", profile, used.identity.gpu, own_gpu or "no GPU that PyTorch can use")
    elif profile is not None:
        warn_if_foreign(used, profile)
    elif model.machine.name == THIS_CPU and model.profile is None:
        log.warning("this machine is not calibrated: costs are from specifications; stepcast calibrate measures them")


def measured_here(model: CostModel) -> bool:
    """Whether the measured costs of a model are this machine's own."""
    used = model.profile
    if used is None or used.identity.kind != "gpu":
        return used is None or not used.matches(comparable_cpu())
    own_gpu = gpu_here()
    return own_gpu is not None and slug(own_gpu) == slug(used.identity.gpu)


def caution_precision(machines: Iterable[Machine], precision: str) -> None:
    """Say what fp32 means on GPUs that have TF32."""
    words = precision_words(machines, precision)
    if words:
        log.warning("%s", words)


@contextmanager
def progress(title: str, quiet: bool = False):
    """Show a progress bar with the time left on standard error, unless `quiet`. Yields `report(done, total, text)`.

    For a process that reads it (LINES in the environment), each step is a line instead: `validating lenet5-b64: 12 of 60, mm`.
    """
    if os.environ.get(PROGRESS) == LINES and not quiet:
        yield lambda done, total, text: print(f"{title}: {done} of {total}, {text[:40]}", file=sys.stderr, flush=True)
        return
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
    """What the app offers, with the most likely choice first."""
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
    """Predict plain PyTorch and every strategy of the request. Raises StepcastError if the job itself cannot be predicted."""
    if request.model not in workloads.names():  # built-in names only: the app runs no code of its users
        raise UnknownNameError("model", request.model, workloads.names())
    for what, number, most in (("image size", request.image_size or 1, LARGEST_SIZE), ("batch", request.batch, LARGEST_BATCH)):
        if not 1 <= number <= most:
            raise StepcastError(f"the {what} is {number}; the app predicts 1 to {most:,}; stepcast predict takes larger ones")
    job = Job(request.model, request.batch, request.image_size, request.optimizer, request.form, precision=request.precision)
    shared = dict(request.settings)
    if "schedule" in shared:  # whoever reaches the app must not make it read files
        raise StepcastError("the app reads no schedule files; use stepcast predict --schedule FILE.csv")
    strategies.check_shared(request.strategies, shared)
    placement = Placement(devices=request.devices, link=request.link, partition=request.partition)
    check_names(placement)
    machine, model = costs_for(job, None, request.machine, placement)
    forecasts = dict(forecast_many(job, request.strategies, shared, machine, model))
    base = forecasts["baseline"]
    if isinstance(base, StepcastError):
        raise base
    plain = None if isinstance(forecasts[PYTORCH], StepcastError) else forecasts[PYTORCH]
    names = dict.fromkeys([PYTORCH, *request.strategies])
    return [_answer(name, forecasts[name], base, plain, job, shared, model) for name in names]


def _answer(name: str, forecast, base, plain, job: Job, shared: Mapping[str, str], model: CostModel) -> Forecast | Refusal:
    """The app's answer made of a forecast, or of the error that is in its place."""
    if isinstance(forecast, StepcastError):
        return Refusal(name, str(with_batch_words(forecast, job, name, shared, model)))
    document = with_largest_batch(prediction(forecast, base, job.precision, plain), job, name, shared, forecast, model)
    return Forecast(document, forecast.timeline, measured_here(model))
