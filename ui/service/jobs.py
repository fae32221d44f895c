"""What the app asks: its choices, the facts of machines, predictions, edited schedules and searches, each from a request.

Requests of the app name built-in models, or those named when it was started, so that no user of the app can make it run other code.
"""

import math
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from calibrate.identity import comparable_cpu
from calibrate.profiles import own_gpu_profile
from simulator.engine.costs.model import CostModel
from simulator.engine.scenario import EAGER, GRAPH
from simulator.machine.machine import HOST
from simulator.machine.presets import HOSTS, THIS_CPU, THIS_GPU, machine_names, rated
from simulator.model.job import DEFAULT, NAMED, product_precision
from simulator.model.workloads import registry as workloads
from simulator.plan.bodies.update import FORMS, STATE
from simulator.plan.editor.editor import Fault, ScheduleEditor
from simulator.plan.editor.order import Order
from simulator.predict.answers import Answers
from simulator.predict.largest_batch import Fitting
from simulator.predict.normal import normal
from simulator.predict.search.ranking import Ranking
from simulator.predict.search.search import Progress
from simulator.predict.search.setup import Setup
from simulator.strategies import registry as strategies
from traces.documents.comparison import Prediction
from traces.documents.predictions import Normal, Predictions
from traces.documents.timeline import Timeline
from traces.errors import Refusal, required
from traces.process import gc_paused
from ui.present import machines
from ui.present.machines import specification_words, unmeasured_words
from ui.request import JobRequest, check_steered, start_models, stored_profiles
from ui.service.cache import answers_of, asked_of, editor_of, job_of, predicted, reordered, stamp_now, target_of
from ui.service.cautions import measured_here
from ui.service.searches import ranking_of, tried

#: Acquired while the app predicts: its sessions share the cache, and Python uses only one processor core at a time.
_ONE_AT_A_TIME = threading.Lock()
#: Acquired while the app searches in separate processes, so that other sessions can predict meanwhile.
_ONE_SEARCH = threading.Lock()

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
    plain = replace(request, scale="", devices=None, partition=None, memory_limit=None, network=None, mode="eager").placed
    check_steered(plain, start_models())
    target = target_of(plain, stamp_now())
    machine = rated(target.machine)
    device, memory, host = machine.devices[0], machine.memories[0], machine.host(machine.devices[0].name)
    peaks = device.peak_flops
    precision = product_precision(request.settled.precision or DEFAULT)
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
        setup = Setup(job_of(request), target_of(request.placed, stamp_now()), request.shared)
    with _ONE_SEARCH:
        return ranking_of(request, setup, tried(request, setup), progress)


def _answer(own: Answers, text: str) -> Answer | Refusal:
    """The app's answer for one strategy."""
    forecast, target = own.forecasts[text], own.target
    if isinstance(forecast, Refusal):
        return forecast
    return Answer(own.prediction(text), forecast.timeline, measured_here(target.costs), text, target.machine.name)
