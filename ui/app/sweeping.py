"""Sweeps of the app: the parameters that a request has, and the outcomes of one point. This module does not import Streamlit."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

from simulator.machine.presets import THIS_CPU
from simulator.machine.scaled import scale_of
from simulator.predict.sweep import Axis, Outcome, outcome, points
from traces.documents.comparison import PYTORCH
from traces.errors import Refusal, SchedcastError
from traces.units import read_number
from ui.app.links import command
from ui.app.request_form import option_fields, option_values, strategy_text
from ui.request import JobRequest
from ui.service import jobs
from ui.service.cache import stamp_now

#: The most points of a sweep.
MOST_POINTS = 144
#: The most predicted points that are cached.
KEPT = 2048
#: The parameter that is the number of samples of a step.
BATCH = "batch"
#: Figures of a machine that a sweep can multiply (`simulator.machine.scaled`), and by what at first.
_SCALED = {"memory": "memory bandwidth", "link": "link bandwidth", "flops": "FLOP/s", "sms": "SMs or cores", "launch": "launch time"}
TIMES = (0.25, 0.5, 1.0, 2.0, 4.0)


@dataclass(frozen=True)
class Parameter:
    """A parameter of requests. `change`: a request with another value of it. `whole`: whether its values are whole numbers.

    `usual`: values to begin with.
    """

    name: str
    change: Callable[[JobRequest, float], JobRequest]
    usual: tuple[float, ...]
    whole: bool = True


def parameters(request: JobRequest) -> list[Parameter]:
    """The parameters that a sweep of a request can have: of the job and the machine, and the strategies' options that are numbers."""
    batches = tuple(quarters / 4 for factor in (1, 2, 4, 8, 16) if (quarters := request.stated_batch * factor) % 4 == 0)
    own = [
        Parameter(BATCH, partial(_field, "batch"), batches),
        Parameter("devices", partial(_field, "devices"), (1, 2, 4)),
        Parameter("parts of one GPU", partial(_field, "partition"), (1, 2, 4)),
        *(Parameter(f"{words}, times", partial(_scale, name), TIMES, whole=False) for name, words in _SCALED.items()),
    ]
    if request.machine == THIS_CPU:
        own.append(Parameter("link GB/s", _link, (0.25, 0.5, 1, 2, 4), whole=False))
    return own + [Parameter(name, partial(_option, name), usual, whole) for name, usual, whole in _numeric_options(request.strategies)]


def _field(name: str, request: JobRequest, value: float) -> JobRequest:
    changed: dict[str, Any] = {name: int(value)}
    return replace(request, **changed)


def _link(request: JobRequest, value: float) -> JobRequest:
    return replace(request, link=f"copy:{value:g}")


def _scale(name: str, request: JobRequest, value: float) -> JobRequest:
    return replace(request, scale=replace(scale_of(request.scale), **{name: value}).text)


def _option(name: str, request: JobRequest, value: float) -> JobRequest:
    return replace(request, strategies=tuple(_with_option(text, name, value) for text in request.strategies))


def _with_option(text: str, name: str, value: float) -> str:
    """The text of a strategy with another value of an option; without a change if it has no such option."""
    strategy = text.partition(":")[0]
    if name not in {field.name for field in option_fields(strategy)}:
        return text
    return strategy_text(strategy, option_values(text) | {name: f"{value:g}"})


def _numeric_options(texts: Sequence[str]) -> list[tuple[str, tuple[float, ...], bool]]:
    """(name, usual values, whether they are whole numbers) of the options of these strategies that are numbers."""
    options: dict[str, bool] = {}
    for field in (field for text in texts for field in option_fields(text.partition(":")[0])):
        if field.kind in ("number", "open"):
            options.setdefault(field.name, not isinstance(field.default, float))
    return [(name, (1, 2, 4, 8) if whole else (0.25, 0.5, 1.0), whole) for name, whole in options.items()]


def parse_values(text: str, parameter: Parameter) -> tuple[float, ...]:
    """Read "8, 16, 32" as the values of a parameter, from small to large. Raises SchedcastError for anything else."""
    values = set()
    for part in filter(None, (part.strip() for part in text.split(","))):
        value = read_number(part)
        if value is None or not (0 <= value < 1e15 and (value > 0 or not parameter.whole) and (value.is_integer() or not parameter.whole)):
            kind = "whole numbers of at least 1" if parameter.whole else "numbers"
            raise SchedcastError(f"cannot read {part[:40]!r} as a value of {parameter.name}; expected {kind}, several separated by commas")
        values.add(value)
    if not values:
        raise SchedcastError(f"{parameter.name} has no values; write some, separated by commas, such as 8, 16, 32")
    return tuple(sorted(values))


def check_points(axes: Sequence[Axis]) -> None:
    """Raise SchedcastError if a sweep has too many points."""
    count = math.prod(len(axis.values) for axis in axes)
    if count > MOST_POINTS:
        raise SchedcastError(f"the sweep has {count} points; the app predicts at most {MOST_POINTS}; try fewer values")


def at_point(request: JobRequest, changed: Sequence[Parameter], at: tuple[float, ...]) -> JobRequest:
    """A request with the parameters at the values `at`. What it does not state is the same at all of them."""
    request = request.settled
    for parameter, value in zip(changed, at, strict=True):
        request = parameter.change(request, value)
    return request


def outcomes_at(request: JobRequest, changed: Sequence[Parameter], at: tuple[float, ...]) -> list[Outcome]:
    """The outcomes of a request with the parameters at the values `at`: of plain PyTorch, and of each strategy under the request's name.

    A point that is refused says why for each.
    """
    there = at_point(request, changed, at)
    answers = {each.strategy: each for each in _outcomes(there, stamp_now())}
    plain = [answers[PYTORCH]] if PYTORCH in answers else []
    named = zip(request.strategies, there.strategies, strict=True)
    own = [replace(answers[text], strategy=name) for name, text in named if text in answers]
    return [replace(each, at=at) for each in (*plain, *own)]


@lru_cache(maxsize=KEPT)
def _outcomes(request: JobRequest, stamp: tuple) -> tuple[Outcome, ...]:
    """The outcomes of one request. They are cached by its content, as long as no profile changes, which `stamp` shows."""
    try:
        answers = jobs.predict_many(request)
    except SchedcastError as error:
        return tuple(Outcome(name, refusal=Refusal.by(error)) for name in request.strategies)
    return tuple(
        Outcome(text, refusal=answer) if isinstance(answer, Refusal) else outcome(text, (), answer.prediction)
        for text, answer in answers.items()
    )


def commands(request: JobRequest, axes: Sequence[Axis], changed: Sequence[Parameter]) -> str:
    """The command lines that predict the points of a sweep. Several batches are one command."""
    if [axis.name for axis in axes] == [BATCH]:
        return command(request).replace(f"--batch {request.batch} ", f"--batch {','.join(f'{value:g}' for value in axes[0].values)} ", 1)
    return "\n".join(command(at_point(request, changed, at)) for at in points(axes))
