"""What the command line and the app have in common: warnings about costs, progress bars, and predictions.

Requests of the app name built-in models, or those named when it was started, so that no user of the app can make it run other code.
"""

import logging
import math
import os
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from calibrate.identity import comparable_cpu
from calibrate.profiles import gpu_here, own_gpu_profile, warn_if_foreign
from simulator.engine.costs.model import CostModel
from simulator.engine.scenario import EAGER, GRAPH
from simulator.machine.machine import HOST, Machine
from simulator.machine.presets import HOSTS, THIS_CPU, THIS_GPU, machine_names, rated
from simulator.model.job import DEFAULT, NAMED, product_precision
from simulator.model.workloads import registry as workloads
from simulator.plan.bodies.update import FORMS, STATE
from simulator.plan.editor.editor import Fault, ScheduleEditor
from simulator.plan.editor.order import Order
from simulator.predict.answers import Answers
from simulator.predict.largest_batch import Fitting
from simulator.predict.normal import normal
from simulator.predict.search.ranking import Ranking, rank
from simulator.predict.search.search import Cache, Progress, candidates
from simulator.predict.search.search import search as searched
from simulator.predict.search.setup import Setup
from simulator.predict.search.variants import read_tries
from simulator.predict.search.workers import usual_processes, workers
from simulator.predict.target import Target
from simulator.strategies import registry as strategies
from traces.documents.comparison import Prediction
from traces.documents.predictions import Normal, Predictions
from traces.documents.profile import slug
from traces.documents.timeline import Timeline
from traces.errors import Refusal, required
from traces.process import gc_paused
from ui.present import machines
from ui.present.machines import precision_words, specification_words, unmeasured_words
from ui.request import JobRequest, check_steered, start_models, stored_profiles
from ui.service.cache import answers_of, asked_of, editor_of, predicted, reordered, stamp_now, target_of

#: Variable of the environment, and its value, by which a command writes its progress as lines.
PROGRESS, LINES = "SCHEDCAST_PROGRESS", "lines"
#: The command line, for `python -m`.
COMMAND_LINE = f"{__package__.removesuffix('.service')}.cli"
#: The most notes of a profile that are logged with a prediction.
MOST_NOTES = 3
#: Acquired while the app predicts: its sessions share the cache, and Python uses only one processor core at a time.
_ONE_AT_A_TIME = threading.Lock()
#: Acquired while the app searches in separate processes, so that other sessions can predict meanwhile.
_ONE_SEARCH = threading.Lock()
log = logging.getLogger("schedcast")


#: By the field of a request, the names that the app offers for it. The first is the initial choice.
Choices = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class Figure:
    """A figure of a machine, and its unit: 3350 GB/s."""

    value: float
    unit: str


@dataclass(frozen=True)
class MachineFacts:
    """What the controls show of a machine.

    `devices`: most that a job can use; `is_cpu`: they are groups of a CPU's cores. `figures`: by the names of `machine.scaled.ABOUT`.
    `about`: the specification in words. `cautions`: sentences on its profile, or that it has none.
    """

    devices: int
    figures: Mapping[str, Figure]
    is_cpu: bool = False
    about: str = ""
    cautions: tuple[str, ...] = ()


@dataclass(frozen=True)
class Answer:
    """The answer for one strategy: its prediction and timeline. `measured_here`: whether measured costs are this machine's.

    `text`: the strategy as requested. `machine`: the name of the machine.
    """

    prediction: Prediction
    timeline: Timeline
    measured_here: bool = True
    text: str = ""
    machine: str = ""


@dataclass(frozen=True)
class OnBoard:
    """A strategy's plan in the schedule editor: its forecast in its own order, and the answer to another order of its tasks.

    `faults`: why that order computes different numbers or cannot run; `edited`: its forecast, None if there are faults.
    """

    editor: ScheduleEditor
    own: Answer
    faults: tuple[Fault, ...] = ()
    edited: Answer | None = None


def caution(targets: Sequence[Target], request: JobRequest) -> None:
    """Warn of what makes the costs of a request's targets less reliable, and say what its precision means there, if that is the default."""
    for target in targets:
        caution_costs(target.costs, request.profile)
    machines = [target.machine for target in targets if target.costs.shown_precision(request.precision) == DEFAULT]
    caution_precision(machines, DEFAULT)


def caution_costs(model: CostModel, profile: Path | None) -> None:
    """Warn if costs come from another machine, were not measured, or were measured under unusual conditions."""
    used = model.profile
    if used is not None and used.notes:
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
    """Whether the measured costs of a model are this machine's own."""
    used = model.profile
    if used is None or used.identity.kind != "gpu":
        return used is None or not used.matches(comparable_cpu())
    own_gpu = gpu_here()
    return own_gpu is not None and slug(own_gpu) == slug(used.identity.gpu)


def caution_precision(machines: Iterable[Machine], precision: str) -> None:
    """Say what the default precision means on GPUs that have TF32."""
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


@contextmanager
def stages(title: str, count: int, quiet: bool = False):
    """Show on standard error which of `count` stages is at work. Yields `progress(stage)`, to be called before each of them."""
    with progress(title, quiet) as report:
        numbers = iter(range(count))
        yield lambda stage: report(next(numbers, count), count, stage)


def choices() -> Choices:
    """What the app offers, with the most likely choice first. Models named at start come before the built-in ones."""
    return {
        **NAMED,
        "model": (*start_models(), *_first("resnet18", workloads.names())),
        "optimizer": _first("momentum", STATE),
        "form": _first("foreach", FORMS),
        "strategies": tuple(strategies.names()),
        "machine": _first(THIS_CPU, [*([THIS_GPU] if own_gpu_profile() else []), *stored_profiles(), *machine_names()]),
        "mode": (EAGER, GRAPH),
        "host": HOSTS,
    }


def _first(name: str, names: Iterable[str]) -> tuple[str, ...]:
    return (name, *(other for other in names if other != name))


def facts(request: JobRequest) -> MachineFacts:
    """What the controls show of the request's machine as it is, not scaled: of a preset, its `rated` figures.

    Raises SchedcastError if there is no such machine.
    """
    plain = replace(request, scale="", devices=None, partition=None, memory_limit=None, mode="eager").placed
    check_steered(plain, start_models())
    target = target_of(plain, stamp_now())
    machine = rated(target.machine)
    device, memory, host = machine.devices[0], machine.memories[0], machine.host(machine.devices[0].name)
    peaks = device.peak_flops
    precision = product_precision(request.precision)
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
    return MachineFacts(count, figures, is_cpu, specification_words(machine, precision), tuple(_cautions(target.costs, request.machine)))


def _cautions(model: CostModel, chosen: str) -> list[str]:
    """How old the profile of a machine is, and what makes it less reliable. A profile chosen by its name may be another machine's."""
    if model.profile is None:
        return [machines.NOT_CALIBRATED] if chosen == THIS_CPU else list(filter(None, [unmeasured_words([model.machine])]))
    stranger = chosen in stored_profiles() and model.profile.identity.kind == "cpu"
    return [machines.age_words(model.profile), *machines.warnings(model.profile, comparable_cpu() if stranger else None)]


def predict_many(request: JobRequest) -> dict[str, Answer | Refusal]:
    """The answers that a table of the request shows (`Answers.table`), by the text of the strategy.

    Answers are cached, so that only a new strategy, or a new option of one, is predicted. Raises SchedcastError if the
    job itself cannot be predicted.
    """
    with _ONE_AT_A_TIME, gc_paused():  # once for all strategies: each end of a pause walks the heap
        own = answers_of(request)
        if not own.known:
            own.forecast(own.headline)
        return {name: _answer(own, name) for name in own.table}


def document(request: JobRequest) -> Predictions:
    """The document of a request's answers. If the job does not fit in memory, other jobs are predicted to say what does."""
    with _ONE_AT_A_TIME:
        return answers_of(request).document()


def fitting(request: JobRequest, strategy: str) -> Fitting:
    """What fits in memory if a strategy does not."""
    with _ONE_AT_A_TIME:
        own = answers_of(request, strategy)
        refusal = own.forecasts[strategy]
        if isinstance(refusal, Refusal) and not refusal.excess_bytes:
            raise refusal.error
        return own.fitting(strategy)


def speed(request: JobRequest, strategy: str, measured_s: float | None) -> Normal:
    """How the predicted step of a strategy compares with a measured one (None: none was measured) and with published ones."""
    with _ONE_AT_A_TIME:
        asked = asked_of(request, strategy)
        return normal(asked.job, required(predicted(asked)), measured_s)


def in_editor(request: JobRequest, strategy: str, order: Order | None = None) -> OnBoard:
    """A strategy's plan, and the result of an order of its tasks (None: its own). Both are cached, so that only the moved order is
    predicted.

    Raises SchedcastError if the strategy cannot be predicted, and OrderError if the order has different tasks.
    """
    with _ONE_AT_A_TIME:
        asked = asked_of(request, strategy)
        own = answers_of(request, strategy)
        editor = editor_of(asked)
        faults = editor.faults(order) if order is not None else ()
        edited = None
        if not faults:
            changed = replace(own, forecasts={**own.forecasts, strategy: reordered(asked, order or editor.own)})
            edited = required(_answer(changed, strategy))
        return OnBoard(editor, required(_answer(own, strategy)), faults, edited)


def search(request: JobRequest, progress: Progress) -> Ranking:
    """Rank everything that the request's strategies (none: all) offer. One search runs at a time. Each plan is reported to `progress`."""
    with _ONE_AT_A_TIME:
        asked = asked_of(request)
        setup = Setup(asked.job, asked.target, request.shared)
    with _ONE_SEARCH:
        return ranking_of(setup, tried(request, setup), progress)


def tried(request: JobRequest, setup: Setup) -> list[str]:
    """The plans that a search of a request tries. Raises SchedcastError for strategies that no executor runs, and for unknown options."""
    strategies.check_shared(request.strategies or strategies.names(), setup.shared)
    for text in request.strategies:
        strategies.require_executed(strategies.parse(text, setup.shared)[0])
    return candidates(setup, request.strategies, read_tries(request.tries) if request.tries else None)


def ranking_of(setup: Setup, names: Sequence[str], progress: Progress, processes: int | None = None, cluster: str | None = None) -> Ranking:
    """Search among `names` with the cache, in several processes or on a Dask cluster, and rank the plans."""
    with workers(processes or usual_processes(len(names)), cluster) as run:
        return rank(searched(setup, names, run, progress, cache=Cache(setup.digest)))


def _answer(own: Answers, text: str) -> Answer | Refusal:
    """The app's answer for one strategy."""
    forecast, target = own.forecasts[text], own.target
    if isinstance(forecast, Refusal):
        return forecast
    return Answer(own.prediction(text), forecast.timeline, measured_here(target.costs), text, target.machine.name)
