"""What the command line and the app ask of the packages below: jobs from options, machines and costs from names, predictions."""

import logging
import sys
from collections.abc import Iterable, Sequence
from contextlib import contextmanager
from pathlib import Path

from calibrate.cpu.testbed import CpuStand, Stand
from calibrate.gpu_profiles import gpu_here, own_gpu_profile
from calibrate.profiles import foreign, own_profile
from simulator.bodies.update import FORMS, STATE
from simulator.costs.model import CostModel
from simulator.job import PRECISIONS, Job
from simulator.machine.machine import Machine
from simulator.machine.presets import THIS_CPU, load_machine, machine_names, product_of
from simulator.machine.this_cpu import link_bytes_per_s, this_cpu
from simulator.machine.this_gpu import THIS_GPU, gpu_machine
from simulator.predict.explain import explain
from simulator.predict.forecast import check_shared, forecast_many, prediction
from simulator.strategies import registry as strategies
from simulator.workloads import registry as workloads
from traces.errors import StepcastError, UnknownNameError
from traces.profile import Profile, slug
from traces.profile_files import default_folder
from traces.shipped import shipped_profile
from ui.app.model import Choices, Forecast, Refusal, Request
from ui.placement import HERE, Where

#: So many of a profile's notes are told with a prediction.
MOST_NOTES = 3
log = logging.getLogger("stepcast")


def settings(pairs: Sequence[str]) -> dict[str, str]:
    """`--set k=v` pairs as a mapping. Raises StepcastError for anything else."""
    found = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not (name and equals and value):
            raise StepcastError(f"--set {pair!r} is not option=value; give it as in --set update_stream=on")
        found[name] = value
    return found


def requested(texts: list[str], pairs: list[str], devices: int = 1) -> tuple[list[str], dict[str, str]]:
    """The strategies asked for (default: all that can use the devices) and the options of `--set`.

    Raises StepcastError for a wrong name or option.
    """
    shared = settings(pairs)
    chosen = texts or strategies.names(devices)
    check_shared(chosen, shared)
    for text in chosen:  # before anything is measured
        strategies.parse(text, shared)
    return chosen, shared


def check_names(where: Where) -> None:
    """Refuse a device, link or mode that does not exist. Raises StepcastError."""
    device, devices, mode = where.device, where.devices, where.mode
    link_bytes_per_s(where.link)
    if mode not in ("eager", "graph"):
        raise UnknownNameError("mode", mode, ("eager", "graph"))
    name, colon, number = device.partition(":")
    if device != "cpu" and (name != "cuda" or (colon and not number.isdecimal())):
        raise UnknownNameError("device", device, ("cpu", "cuda", "cuda:N"))
    if devices is not None and devices < 1:
        raise StepcastError(f"--devices is {devices}; expected at least 1")
    limit = where.memory_limit_gb
    if limit is not None and not 0 < limit < float("inf"):
        raise StepcastError(f"--memory-limit is {limit} GB; expected a number above 0, such as 16")


def stand_for(where: Where, precision: str) -> Stand:
    """Where to measure. Raises StepcastError for what this machine or version cannot run."""
    check_names(where)
    stand = _stand(where, precision)
    stand.memory_limit_bytes = where.memory_limit_bytes
    return stand


def _stand(where: Where, precision: str) -> Stand:
    device, mode = where.device, where.mode
    if device == "cpu":
        if mode == "graph":
            raise StepcastError("--mode graph needs CUDA; use --mode eager or --device cuda, or predict it with --machine h200")
        if precision == "tf32":
            raise StepcastError("--precision tf32 needs an NVIDIA GPU; use fp32 or --device cuda, or predict it with --machine h200")
        if where.ranks is not None:
            from calibrate.distributed.testbed import CpuTeamStand
            from executors.distributed.control import lead

            return CpuTeamStand(lead(where.ranks))
        return CpuStand(where.devices or 1, where.link)
    from calibrate.cuda.testbed import GpuStand
    from executors.cuda.torch_driver import gpu

    if where.ranks is not None:
        if device != "cuda":
            raise StepcastError(f"--device {device}: under torchrun every process has the GPU of its own number; use --device cuda")
        from calibrate.distributed.gpus import GpuTeamStand
        from executors.distributed.control import lead

        return GpuTeamStand(lead(where.ranks), gpu(where.ranks.local_rank), mode, precision)
    return GpuStand(gpu(int(device.partition(":")[2] or 0)), mode, precision, partitions=where.devices or 1)


def costs_for(job: Job, profile: Path | None, machine: str | None, where: Where = HERE) -> tuple[Machine, CostModel]:
    """Machine and cost model of `--profile` or `--machine`, exactly one of which must be given.

    A preset has the costs of the profile that is shipped for its GPU, where there is one.
    """
    if (profile is None) == (machine is None):
        given = "both" if profile is not None else "neither"
        raise StepcastError(f"predict needs exactly one of --profile and --machine, {given} given; stepcast machines lists machines")
    precision = job.precision if job.precision in ("fp32", "tf32") else None
    if profile is not None:
        found = Profile.load(profile)
        if found.identity.kind == "gpu":
            _check_tf32(found, profile, job.precision)
            here = _gpu(found, where, found.identity.name)
        else:
            here = _cpu(found, where)
        here = here.limited(where.memory_limit_bytes)
        return here, CostModel(here, found, precision)
    tf32 = job.precision == "tf32"
    if machine == THIS_GPU:
        known = own_gpu_profile(tf32)
        if known is None:
            raise StepcastError(_no_gpu_profile(tf32))
        here = _gpu(known, where)
    else:
        known = own_profile() if machine == THIS_CPU else shipped_profile(product_of(machine), tf32)
        here = _cpu(known, where) if machine == THIS_CPU else load_machine(machine, known, where.devices, where.link)
    here = here.limited(where.memory_limit_bytes)
    return here, CostModel(here, known, precision)


def _cpu(profile: Profile | None, where: Where) -> Machine:
    """This CPU, or the profile's: in processes joined by gloo where there are several."""
    return this_cpu(profile, devices=where.devices or 1, link=where.link, library="gloo" if where.ranks is not None else "")


def _gpu(profile: Profile, where: Where, name: str = THIS_GPU) -> Machine:
    """The profile's GPU, split into several; or, of several processes, as many of it."""
    if where.ranks is None:
        return gpu_machine(profile, where.devices or 1, name)
    from calibrate.distributed.gpus import several

    return several(gpu_machine(profile, name=name), where.ranks.world)


def _check_tf32(profile: Profile, path: Path, precision: str) -> None:
    """Refuse costs of kernels that a job's float32 products do not use."""
    if precision in ("fp32", "tf32") and profile.identity.tf32 != (precision == "tf32"):
        used = "tf32" if profile.identity.tf32 else "fp32"
        raise StepcastError(f"--precision {precision}: profile {path} was measured in {used}; use --precision {used}, or another profile")


def _no_gpu_profile(tf32: bool) -> str:
    name = gpu_here() or "NVIDIA GPU"
    precision = "tf32" if tf32 else "fp32"
    return (
        f"--machine this-gpu: no calibrated {name} on this machine (no {precision} profile of one in {default_folder()});"
        " stepcast calibrate --device cuda makes one, or use a preset such as h100"
    )


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
    check_shared(request.strategies, shared)
    where = Where(devices=request.devices, link=request.link)
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
