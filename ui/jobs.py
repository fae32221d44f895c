"""What the command line and the app have in common: warnings about costs, progress bars, and predictions."""

import logging
import math
import os
import sys
import threading
from collections.abc import Iterable, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from calibrate.gpu_profiles import gpu_here, own_gpu_profile
from calibrate.identity import comparable_cpu
from calibrate.placement import Placement, check_names
from calibrate.profiles import warn_if_foreign
from calibrate.sources import costs_for
from simulator.board.board import Board
from simulator.board.order import Order
from simulator.bodies.update import FORMS, STATE
from simulator.costs.model import CostModel
from simulator.costs.scaled import scaled_costs
from simulator.job import LAYOUTS, PRECISIONS, Job
from simulator.machine.machine import HOST, Machine
from simulator.machine.presets import THIS_CPU, machine_names
from simulator.machine.scaled import AS_IT_IS, scale_of
from simulator.machine.this_gpu import THIS_GPU
from simulator.memory.needs import TooLargeError
from simulator.models.usual_batch import source_file
from simulator.predict import forecast as simulated
from simulator.predict.largest_batch import largest_batch as largest
from simulator.search.cache import Cache
from simulator.search.ranking import Ranking, rank
from simulator.search.search import Progress, candidates
from simulator.search.search import search as searched
from simulator.search.setup import Setup
from simulator.search.workers import usual_processes, workers
from simulator.strategies import registry as strategies
from simulator.workloads import registry as workloads
from traces.comparison import PYTORCH
from traces.errors import StepcastError, UnknownNameError
from traces.garbage import gc_paused
from traces.profile import slug
from traces.profile_files import list_profiles
from ui.app.command_run import LINES, PROGRESS
from ui.app.model import Choices, Figure, Forecast, MachineFacts, OnBoard, Refusal, Request, Searched, start_models, stored_profiles
from ui.text import machine_facts
from ui.text.machines import precision_words, specification_words

#: Largest image size (of a recurrent model: sequence length) and batch that the app predicts. The command line takes any.
LARGEST_SIZE, LARGEST_BATCH = 32_768, 1_000_000
#: Notes of a profile that are logged with a prediction at most.
MOST_NOTES = 3
#: Held while the app predicts: its sessions share what is kept, and one processor core at a time is all that Python uses.
_ONE_AT_A_TIME = threading.Lock()
#: Held while the app searches, in processes of its own, so that others can predict meanwhile.
_ONE_SEARCH = threading.Lock()
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
    """What the app offers, with the most likely choice first. Models named at start come before the built-in ones."""
    return Choices(
        models=(*start_models(), *_first("resnet18", workloads.names())),
        optimizers=_first("momentum", STATE),
        forms=_first("foreach", FORMS),
        precisions=PRECISIONS,
        strategies=tuple(strategies.names()),
        machines=_first(THIS_CPU, [*([THIS_GPU] if own_gpu_profile() else []), *stored_profiles(), *machine_names()]),
        layouts=LAYOUTS,
    )


def _first(name: str, names: Iterable[str]) -> tuple[str, ...]:
    return (name, *(other for other in names if other != name))


def facts(request: Request) -> MachineFacts:
    """What the controls show of the request's machine. Raises StepcastError if there is no such machine."""
    plain = replace(request, scale="", devices=None, partition=None, memory_limit_gb=None, mode="eager")
    machine, model = _target(plain.precision, plain.machine, _placement(plain), _stamp())
    device, memory, host = machine.devices[0], machine.memories[0], machine.host(machine.devices[0].name)
    peaks = device.peak_flops
    precision = {"amp": "bf16", "amp-fp16": "fp16"}.get(request.precision, request.precision)
    launch_s = host.dispatch_s if host is not None else device.task_overhead_s
    figures = {
        "sms": Figure(device.sms, "SMs" if device.kind == "gpu" else "cores"),
        "flops": Figure(peaks.get(precision, peaks["fp32"]) / 1e12, "TFLOP/s"),
        "memory": Figure(memory.bandwidth_bytes_per_s / 1e9, "GB/s"),
        "launch": Figure(launch_s * 1e6, "us"),
    }
    rates = [link.bandwidth_bytes_per_s for link in machine.links if HOST not in (link.source, link.target)]
    if rates and math.isfinite(max(rates)):
        figures["link"] = Figure(max(rates) / 1e9, "GB/s")
    is_cpu = device.kind == "cpu"
    count = device.sms if is_cpu else len(machine.devices)
    return MachineFacts(count, figures, is_cpu, specification_words(machine, precision), tuple(_cautions(model, request.machine)))


def _cautions(model: CostModel, chosen: str) -> list[str]:
    """How old the profile of a machine is, and what makes it less reliable. A profile chosen by its name may be another machine's."""
    if model.profile is None:
        return [machine_facts.NOT_CALIBRATED] if chosen == THIS_CPU else []
    stranger = chosen in stored_profiles() and model.profile.identity.kind == "cpu"
    return [machine_facts.age_words(model.profile), *machine_facts.warnings(model.profile, comparable_cpu() if stranger else None)]


def predict_many(request: Request) -> list[Forecast | Refusal]:
    """Predict plain PyTorch and every strategy of the request. Raises StepcastError if the job itself cannot be predicted.

    Each answer is kept, so that another strategy, or another option of one, is all that is predicted anew.
    """
    with _ONE_AT_A_TIME, gc_paused():  # once for all strategies: each end of a pause walks the heap
        job, stamp = _job(request), _stamp()
        strategies.check_shared(request.strategies, dict(request.settings))
        placement = _placement(request)
        _, model = _target(job.precision, request.machine, placement, stamp)
        names = dict.fromkeys([PYTORCH, *request.strategies])
        forecasts = {text: _kept(job, text, request, placement, stamp) for text in dict.fromkeys(["baseline", *names])}
        base, plain = forecasts["baseline"], forecasts[PYTORCH]
        if isinstance(base, StepcastError):
            raise base
        return [_answer(name, forecasts[name], base, _known(plain), job, model) for name in names]


def largest_batch(request: Request, strategy: str) -> int | None:
    """The largest batch of a strategy that fits in memory; None if none does."""
    with _ONE_AT_A_TIME:
        job, placement, stamp = _job(request), _placement(request), _stamp()
        _, model = _target(job.precision, request.machine, placement, stamp)
        answer = _kept(job, strategy, request, placement, stamp)
        if isinstance(answer, StepcastError) and not isinstance(answer, TooLargeError):
            raise answer
        return largest(job, strategy, dict(request.settings), answer, model, placement.mode)


def on_board(request: Request, strategy: str, order: Order | None = None) -> OnBoard:
    """A strategy's plan, and what follows from an order of its tasks (None: its own). Both are kept, so that a move is all that is new."""
    with _ONE_AT_A_TIME:
        job, placement, stamp = _job(request), _placement(request), _stamp()
        _, model = _target(job.precision, request.machine, placement, stamp)
        base, plain = (_known(_kept(job, name, request, placement, stamp)) for name in ("baseline", PYTORCH))
        asked = _asked(job, strategy, request, placement, stamp)
        board = _board(asked)
        faults = board.faults(order) if order is not None else ()
        own, edited = _predicted(asked), None if faults else _reordered(asked, order or board.own)
        answers = [forecast and _answer(strategy, forecast, base, plain, job, model) for forecast in (own, edited)]
        return OnBoard(board, answers[0], faults, answers[1])


def search(request: Request, progress: Progress) -> Searched:
    """Rank everything that the request's strategies (none: all) offer. One search runs at a time."""
    with _ONE_AT_A_TIME:
        job, placement = _job(request), _placement(request)
        machine, model = _target(job.precision, request.machine, placement, _stamp())
    shared = dict(request.settings)
    strategies.check_shared(request.strategies or strategies.names(), shared)
    with _ONE_SEARCH:
        ranking = ranked(Setup(job, machine, model, placement.mode, shared), candidates(job, machine, request.strategies), progress)
    best, rival = (None if forecast is None else forecast.timeline for forecast in (ranking.best, ranking.rival))
    return Searched(ranking.result, best, rival)


def ranked(setup: Setup, names: Sequence[str], progress: Progress, processes: int | None = None, cluster: str | None = None) -> Ranking:
    """Search among `names` with the cache, in several processes or on a Dask cluster, and rank the plans."""
    with workers(processes or usual_processes(len(names)), cluster) as run:
        return rank(searched(setup, names, run, progress, cache=Cache(setup.digest)))


def check_mode(machine: Machine, mode: str) -> None:
    """Raise StepcastError if CUDA graphs are asked of a CPU."""
    if mode == "graph" and machine.devices[0].kind == "cpu":
        raise StepcastError(f"--mode graph needs CUDA; machine {machine.name} is a CPU; use --mode eager or a GPU's machine")


def _job(request: Request) -> Job:
    """The job of a request. Raises StepcastError for a model that the app does not offer, and for numbers beyond what it predicts."""
    if request.model not in (offered := [*start_models(), *workloads.names()]):  # the app runs no other code of its users
        raise UnknownNameError("model", request.model, offered)
    for what, number, most in (("image size", request.image_size or 1, LARGEST_SIZE), ("batch", request.batch, LARGEST_BATCH)):
        if not 1 <= number <= most:
            raise StepcastError(f"the {what} is {number}; the app predicts 1 to {most:,}; stepcast predict takes larger ones")
    options = [name for name, _ in request.settings]
    for text in request.strategies:
        options += [part.partition("=")[0].strip() for part in text.partition(":")[2].split(",")]
    if "schedule" in options:  # whoever reaches the app must not make it read files
        raise StepcastError("the app reads no schedule files; use stepcast predict --schedule FILE.csv")
    names = ("model", "batch", "image_size", "optimizer", "form", "precision", "accumulate", "clip_norm", "layout")
    return _same(Job(**{name: getattr(request, name) for name in names}), _stamp_of(request.model))


@lru_cache(maxsize=24)
def _same(job: Job, stamp: int) -> Job:
    """The job that was asked for before and is equal, with the graphs that it has captured. `stamp`: of the file of a user's model."""
    return job


def _placement(request: Request) -> Placement:
    placement = Placement(
        devices=request.devices, mode=request.mode, link=request.link, partition=request.partition, scale=scale_of(request.scale),
        memory_limit_gb=request.memory_limit_gb,
    )  # fmt: skip
    check_names(placement)
    return placement


def _stamp_of(model: str) -> int:
    """When the file of a user's model was last changed; 0 for a built-in one."""
    file = source_file(model)
    return file.stat().st_mtime_ns if file is not None and file.exists() else 0


def _stamp() -> tuple[tuple[str, int], ...]:
    """The stored profiles and when they were last changed, which calibration does."""
    return tuple((str(path), path.stat().st_mtime_ns) for path in list_profiles())


@lru_cache(maxsize=24)
def _target(precision: str, name: str, placement: Placement, stamp: tuple) -> tuple[Machine, CostModel]:
    """The machine and its costs, which depend on nothing but the arguments. `stamp` is that of `_stamp`.

    A scaled machine has the costs of the machine as it is, which are kept, scaled.
    """
    if placement.scale != AS_IT_IS:
        model = scaled_costs(_target(precision, name, replace(placement, scale=AS_IT_IS), stamp)[1], placement.scale)
        return model.machine, model
    profile = stored_profiles().get(name)
    machine, model = costs_for(Job("", 1, precision=precision), profile, None if profile else name, placement)
    check_mode(machine, placement.mode)
    return machine, model


class _Asked(NamedTuple):
    """What the forecast of a strategy depends on. The stamps are those of `_stamp_of` and `_stamp`."""

    job: Job
    model_stamp: int
    text: str
    settings: tuple
    machine: str
    placement: Placement
    stamp: tuple

    @property
    def target(self) -> tuple[Machine, CostModel]:
        """The machine and its costs."""
        return _target(self.job.precision, self.machine, self.placement, self.stamp)


def _asked(job: Job, text: str, request: Request, placement: Placement, stamp: tuple) -> _Asked:
    return _Asked(job, _stamp_of(job.model), text, request.settings, request.machine, placement, stamp)


def _kept(job: Job, text: str, request: Request, placement: Placement, stamp: tuple) -> simulated.Forecast | StepcastError:
    """The forecast of one strategy, or why there is none, as it was predicted before if nothing has changed."""
    return _predicted(_asked(job, text, request, placement, stamp))


@lru_cache(maxsize=48)
def _predicted(asked: _Asked) -> simulated.Forecast | StepcastError:
    """The forecast of a strategy's own order, or why there is none."""
    return simulated.forecast_strategy(asked.job, asked.text, dict(asked.settings), *asked.target, asked.placement.mode)


@lru_cache(maxsize=8)
def _board(asked: _Asked) -> Board:
    """The board of a strategy's plan. Raises StepcastError if there is no plan."""
    own = _predicted(asked)
    if isinstance(own, StepcastError):
        raise own
    return Board(own.plan, own.machine)


@lru_cache(maxsize=24)
def _reordered(asked: _Asked, order: Order) -> simulated.Forecast:
    """The forecast of a strategy's plan in another order."""
    return simulated.forecast(order.applied(_board(asked).plan), *asked.target, asked.placement.mode)


def _known(forecast: simulated.Forecast | StepcastError) -> simulated.Forecast | None:
    return None if isinstance(forecast, StepcastError) else forecast


def _answer(name: str, forecast, base, plain, job: Job, model: CostModel) -> Forecast | Refusal:
    """The app's answer made of a forecast, or of the error that is in its place."""
    if isinstance(forecast, StepcastError):
        return Refusal(name, str(forecast))
    document = simulated.prediction(forecast, base, job.precision, plain)
    return Forecast(document, forecast.timeline, measured_here(model), name, model.machine.name)
